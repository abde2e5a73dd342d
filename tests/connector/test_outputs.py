"""Outputs: one contract for files, memory and PostgreSQL; and what is particular to files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.connector import FileOutputs, MemoryOutputs, Open, Output, PostgresOutputs, Recovered
from millstream.connector.sink.outputs import files
from millstream.connector.sink.protocol import txnlog
from millstream.errors import DamageError, DefinitionError, SinkError

#: (the outputs, a function that reads what is committed, what a crash of the process makes of them)
Kit = tuple[Callable[[str], Output], Callable[[str], bytes]]


def rows(dsn: str, table: str, worker: str) -> bytes:
    import psycopg

    with psycopg.connect(dsn) as connection:
        found = connection.execute(f"SELECT line FROM {table} WHERE worker = %s ORDER BY at", (worker,)).fetchall()
        return b"".join(bytes(line) + b"\n" for (line,) in found)


@pytest.fixture(params=["files", "memory", "postgres"])
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "files":
        outputs = FileOutputs(tmp_path)
        yield outputs, lambda worker: b"".join(files.read(tmp_path, worker))
        outputs.close()
    elif request.param == "memory":
        memory = MemoryOutputs()
        yield memory, memory.committed
    else:
        dsn = request.getfixturevalue("postgres")
        table = f"t{abs(hash(request.node.name))}"
        yield PostgresOutputs(dsn, table), lambda worker: rows(dsn, table, worker)


def written(output: Output, offset: int, *data: bytes) -> int:
    output.begin(offset)
    for piece in data:
        output.append(piece)
    return offset + sum(map(len, data))


@pytest.mark.slow
def test_a_new_worker_begins_at_nothing(kit: Kit) -> None:
    assert kit[0]("w").recover() == Recovered()


def test_bytes_are_visible_after_the_commit_and_not_before(kit: Kit) -> None:
    outputs, committed = kit
    output = outputs("w")
    output.recover()
    end = written(output, 0, b"one\n", b"two\n")
    assert committed("w") == b""
    output.prepare("t", 0, end)
    assert committed("w") == b""
    output.commit("t", end)
    assert committed("w") == b"one\ntwo\n"
    output.close()
    assert outputs("w").recover() == Recovered(8, None, "t")


def test_what_was_not_prepared_is_dropped_by_recovery(kit: Kit) -> None:
    outputs, committed = kit
    output = outputs("w")
    output.recover()
    written(output, 0, b"lost\n")
    output.close()
    again = outputs("w")
    assert again.recover() == Recovered()
    end = written(again, 0, b"kept\n")
    again.prepare("t", 0, end)
    again.commit("t", end)
    assert committed("w") == b"kept\n"
    again.close()


@pytest.mark.parametrize("commit", [True, False])
def test_a_promise_survives_and_can_be_kept_or_taken_back(kit: Kit, commit: bool) -> None:
    outputs, committed = kit
    output = outputs("w")
    output.recover()
    output.prepare("s", 0, written(output, 0, b"first\n"))
    output.commit("s", 6)
    output.prepare("t", 6, written(output, 6, b"second\n"))
    output.close()
    again = outputs("w")
    assert again.recover() == Recovered(6, Open("t", 13), "s")
    if commit:
        again.commit("t", 13)
    else:
        again.rollback("t", 6)
        again.prepare("u", 6, written(again, 6, b"other!\n"))
        again.commit("u", 13)
    again.close()
    assert committed("w") == (b"first\nsecond\n" if commit else b"first\nother!\n")
    assert outputs("w").recover() == Recovered(13, None, "t" if commit else "u")


def test_a_veto_survives_until_it_is_rolled_back(kit: Kit) -> None:
    outputs, _ = kit
    output = outputs("w")
    output.recover()
    written(output, 0, b"spoilt\n")
    output.veto("t", "a gap")
    output.close()
    again = outputs("w")
    assert again.recover() == Recovered(0, Open("t", 0, "a gap"), None)
    again.rollback("t", 0)
    again.close()
    last = outputs("w")
    assert last.recover() == Recovered()
    last.close()


def test_a_fence_survives_with_everything_else(kit: Kit) -> None:
    outputs, committed = kit
    output = outputs("w")
    output.recover()
    output.seal(3)
    output.prepare("s", 0, written(output, 0, b"first\n"))
    output.commit("s", 6)
    output.prepare("t", 6, written(output, 6, b"gone\n"))
    output.close()
    again = outputs("w")
    assert again.recover() == Recovered(6, Open("t", 11), "s", 3)
    again.seal(4)
    again.rollback("t", 6)
    again.close()
    last = outputs("w")
    assert last.recover() == Recovered(6, None, "s", 4) and committed("w") == b"first\n"
    last.close()


def test_a_line_may_be_split_over_messages_and_transactions(kit: Kit) -> None:
    outputs, committed = kit
    output = outputs("w")
    output.recover()
    output.prepare("s", 0, written(output, 0, b"a\nhal", b"f of "))
    output.commit("s", 10)
    output.prepare("t", 10, written(output, 10, b"it\n\nend"))
    output.rollback("t", 10)
    output.prepare("t", 10, written(output, 10, b"it!\n\nend\n"))
    output.close()
    again = outputs("w")
    assert again.recover().open == Open("t", 19)
    again.commit("t", 19)
    again.close()
    assert committed("w") == b"a\nhalf of it!\n\nend\n"


def tailed(output: Output, ends: bytes = b"\n") -> None:
    """Bytes 0 to 6 are committed, 6 to 13 are prepared by `t`, and six more have come behind them; lines end within each, or run over all ends."""
    output.recover()
    output.prepare("s", 0, written(output, 0, b"first" + ends))
    output.commit("s", 6)
    output.prepare("t", 6, written(output, 6, b"second" + ends))
    assert output.begin_next(13)
    output.append(b"thi")
    output.append(b"rd\n")


@pytest.mark.parametrize("ends", [b"\n", b"+"])
def test_bytes_between_the_phases_survive_a_commit_and_are_promised_by_the_next_transaction(kit: Kit, ends: bytes) -> None:
    outputs, committed = kit
    output = outputs("w")
    tailed(output, ends)
    output.commit("t", 13)
    assert committed("w") == (b"first\nsecond\n" if ends == b"\n" else b"" if "postgres" in str(type(output)) else b"first+second+")
    output.append(b"fourth\n")
    output.prepare("u", 13, 26)
    output.close()
    again = outputs("w")
    assert again.recover() == Recovered(13, Open("u", 26), "t")
    again.commit("u", 26)
    assert committed("w") == b"first" + ends + b"second" + ends + b"third\nfourth\n"
    again.close()


@pytest.mark.parametrize("ends", [b"\n", b"+"])
def test_bytes_between_the_phases_go_with_a_rollback(kit: Kit, ends: bytes) -> None:
    outputs, committed = kit
    output = outputs("w")
    tailed(output, ends)
    output.rollback("t", 6)
    output.prepare("u", 6, written(output, 6, b"other\n"))
    output.commit("u", 12)
    assert committed("w") == b"first" + ends + b"other\n"
    output.close()


@pytest.mark.parametrize("ends", [b"\n", b"+"])
@pytest.mark.parametrize("is_committed", [True, False])
def test_bytes_between_the_phases_are_dropped_by_recovery(kit: Kit, is_committed: bool, ends: bytes) -> None:
    outputs, committed = kit
    output = outputs("w")
    tailed(output, ends)
    if is_committed:
        output.commit("t", 13)
        output.append(b"of the next\n")
    output.close()
    again = outputs("w")
    assert again.recover() == (Recovered(13, None, "t") if is_committed else Recovered(6, Open("t", 13), "s"))
    if not is_committed:
        again.commit("t", 13)
    again.prepare("u", 13, written(again, 13, b"kept\n"))
    again.commit("u", 18)
    assert committed("w") == b"first" + ends + b"second" + ends + b"kept\n"
    again.close()


def test_a_veto_behind_a_commit_drops_what_came_between_the_phases_when_it_is_rolled_back(kit: Kit) -> None:
    outputs, committed = kit
    output = outputs("w")
    tailed(output)
    output.commit("t", 13)
    output.veto("u", "a gap")
    output.rollback("u", 13)
    output.prepare("u", 13, written(output, 13, b"again\n"))
    output.commit("u", 19)
    assert committed("w") == b"first\nsecond\nagain\n"
    output.close()


def test_an_output_of_six_methods_takes_nothing_between_the_phases() -> None:
    assert Output().begin_next(3) is False


def test_workers_do_not_touch_each_other(kit: Kit) -> None:
    outputs, committed = kit
    a, b = outputs("a"), outputs("b/../a")
    a.recover(), b.recover()
    a.prepare("t", 0, written(a, 0, b"of a\n"))
    b.prepare("t", 0, written(b, 0, b"of b\n"))
    a.commit("t", 5)
    b.rollback("t", 0)
    assert committed("a") == b"of a\n" and committed("b/../a") == b""
    a.close(), b.close()


def test_a_worker_that_has_left_begins_again_at_nothing(kit: Kit) -> None:
    outputs, committed = kit
    output = outputs("w")
    output.recover()
    output.prepare("t", 0, written(output, 0, b"old\n"))
    output.commit("t", 4)
    output.close()
    gone = outputs("w")
    gone.archive()
    gone.close()
    again = outputs("w")
    assert again.recover() == Recovered()
    again.prepare("t", 0, written(again, 0, b"new\n"))
    again.commit("t", 4)
    again.close()
    assert committed("w") == b"new\n"


# ---- files


def promised(folder: Path, end: int = 6) -> files.FileOutput:
    output = files.FileOutput(folder, "w")
    output.recover()
    output.prepare("t", 0, written(output, 0, b"x" * end))
    output.commit("t", end)
    output.close()
    return files.FileOutput(folder, "w")


def test_an_output_shorter_than_its_last_commit_is_refused(tmp_path: Path) -> None:
    output = promised(tmp_path)
    os.truncate(tmp_path / "workers" / "w" / "output", 5)
    with pytest.raises(DamageError, match="has 5 bytes, but its log says that 6"):
        output.recover()
    assert (tmp_path / "workers" / "w" / "output").stat().st_size == 5
    with pytest.raises(DamageError):
        list(files.read(tmp_path, "w"))


def test_a_torn_record_is_tolerated_and_overwritten(tmp_path: Path) -> None:
    output = promised(tmp_path)
    log = tmp_path / "workers" / "w" / "log"
    whole = log.read_bytes()
    log.write_bytes(whole + txnlog.encode_entry(txnlog.Committed("u", 99))[:-3])
    assert files.committed(tmp_path, "w") == 6
    assert output.recover() == Recovered(6, None, "t")
    assert log.read_bytes() == whole
    output.close()


def test_a_damaged_log_is_refused(tmp_path: Path) -> None:
    output = promised(tmp_path)
    log = tmp_path / "workers" / "w" / "log"
    data = bytearray(log.read_bytes())
    data[20] ^= 1
    log.write_bytes(data)
    with pytest.raises(DamageError, match="damaged"):
        output.recover()


def test_a_log_under_another_workers_name_is_refused(tmp_path: Path) -> None:
    promised(tmp_path)
    (tmp_path / "workers" / "w").rename(tmp_path / "workers" / "v")
    with pytest.raises(DamageError, match="belongs to worker 'w'"):
        files.FileOutput(tmp_path, "v").recover()


def test_data_is_synced_before_the_promise_and_the_promise_before_the_vote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    def name(fd: int) -> str:
        return os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))

    for call in ("write", "fsync", "fdatasync", "ftruncate"):
        original = getattr(os, call)

        def noted(fd: int, *args: Any, call: str = call, original: Any = original) -> Any:
            happened.append(f"{'sync' if 'sync' in call else call} {name(fd)}")
            return original(fd, *args)

        monkeypatch.setattr(os, call, noted)
    output = files.FileOutput(tmp_path, "w")
    output.recover()
    assert "sync workers" in happened and "sync w" in happened  # the folders of what is new
    happened.clear()
    written(output, 0, b"abc")
    output.prepare("t", 0, 3)
    assert happened == ["write output", "sync output", "write log", "sync log"]
    happened.clear()
    output.commit("t", 3)
    assert happened == ["write log", "sync log"]
    happened.clear()
    output.prepare("u", 3, written(output, 3, b"de"))
    happened.clear()
    output.rollback("u", 3)
    assert happened == ["write log", "sync log", "ftruncate output"]
    output.close()


def test_a_long_log_is_condensed_and_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOG_LIMIT", 2000)
    output = files.FileOutput(tmp_path, "w")
    output.recover()
    reader = files.read(tmp_path, "w", follow=True, every=0.001)
    for number in range(100):
        output.prepare(f"t{number}", number, written(output, number, b"x"))
        output.commit(f"t{number}", number + 1)
        next(reader)
    assert (tmp_path / "workers" / "w" / "log").stat().st_size < 2200
    assert output.recover() == Recovered(100, None, "t99")
    output.close()


def test_a_reader_follows_commits_and_never_sees_the_tail(tmp_path: Path) -> None:
    output = files.FileOutput(tmp_path, "w")
    output.recover()
    reader = files.read(tmp_path, "w", follow=True, every=0.001)
    for number in range(5):
        written(output, number * 4, b"lost, and long\n")
        output.prepare("x", 0, 99)
        output.rollback("x", number * 4)
        output.prepare("t", number * 4, written(output, number * 4, b"%03d\n" % number))
        output.commit("t", number * 4 + 4)
        written(output, number * 4 + 4, b"tail")
        assert next(reader) == b"%03d\n" % number
        output.recover()
    output.close()


def test_a_reader_that_follows_is_told_that_the_worker_has_left(tmp_path: Path) -> None:
    (tmp_path / "left").mkdir()
    output = promised(tmp_path)
    reader = files.read(tmp_path, "w", follow=True, every=0.001)
    assert next(reader) == b"xxxxxx"
    output.archive()
    promised(tmp_path, 9).close()
    with pytest.raises(SinkError, match="has left"):
        next(reader)


def test_one_server_owns_a_folder(tmp_path: Path) -> None:
    first = FileOutputs(tmp_path)
    with pytest.raises(SinkError, match="another sink"):
        FileOutputs(tmp_path)
    first.close()
    FileOutputs(tmp_path).close()


@pytest.mark.parametrize(
    "name",
    [
        "a/b",
        "..",
        ".",
        "/etc/passwd",
        "a b",
        "~root",
        "x;rm -rf",
        "\x00",
        "%2E",
        "Ü" * 90,
        "w" * 200,
        "a" * 40 + "~" + "b" * 80,
        "-rf",
        "$(id)",
    ],
)
def test_names_are_data_and_never_paths(tmp_path: Path, name: str) -> None:
    output = files.FileOutput(tmp_path, name)
    output.recover()
    output.close()
    (made,) = (tmp_path / "workers").iterdir()
    assert set(made.name) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-%~") and len(made.name) <= 120
    assert files.workers(tmp_path) == [name]


def test_different_names_have_different_files() -> None:
    names = ["a.b", "a%2Eb", "a/b", "a%2Fb", "~", "%7E", "w" * 130, "w" * 131, "W" * 130]
    assert len({files.file_name(name) for name in names}) == len(names)


@pytest.mark.parametrize("table", ["Lines", "a;b", 'a"b', "", "a.b.c", "9a"])
def test_a_table_is_a_plain_name(table: str) -> None:
    with pytest.raises(DefinitionError):
        PostgresOutputs("", table)


def test_a_second_server_cannot_write_the_same_rows(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream.connector.sink.outputs import postgres as module

    monkeypatch.setattr(module, "_LOCK_WAIT", "50ms")
    first, second = PostgresOutputs(postgres, "locked")("w"), PostgresOutputs(postgres, "locked")("w")
    first.recover()
    with pytest.raises(SinkError, match="another sink"):
        second.recover()
    first.close()
    second.recover()
    second.close()


def test_a_line_without_end_is_refused_before_it_fills_the_memory(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream.connector.sink.outputs import postgres as module

    monkeypatch.setattr(module, "_LINE_LIMIT", 1000)
    output = PostgresOutputs(postgres, "long")("w")
    output.recover()
    output.append(b"x" * 999 + b"\n")
    with pytest.raises(SinkError, match="a line has more than"):
        output.append(b"x" * 1001)
    output.close()


def test_a_database_that_is_away_is_a_clear_error() -> None:
    with pytest.raises(SinkError, match="cannot be reached"):
        PostgresOutputs("host=127.0.0.1 port=1 connect_timeout=2")
