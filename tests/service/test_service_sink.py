"""`ms.sinks.service`: staged in tasks, decided after the manifest; each value of a key is seen once, whoever is killed."""

from __future__ import annotations

import contextlib
import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from servicekit import SRC, NodeProcess
from servicesinkkit import MANY, NAME, many

import millstream as ms
import sinkjob
import taskkit as kit
from millstream.engine.worker_process import WorkerProcess
from millstream.errors import SinkError, StorageError
from millstream.service import HASH, Client, Table, Turn
from millstream.service.channel import Channel
from millstream.sinks import DriverContext, Part, Sink, SinkRow, TaskContext
from millstream.state.storage import LocalStorage


def node(folder: Path) -> contextlib.AbstractContextManager[str]:
    """A node in a thread; where it listens."""
    return ms.testing.serving(Table("t", point=HASH, partitions=3), folder=folder)


def task(work: Path, epoch: int, shard: int = 0, attempt: str = "a", token: str = "1-x") -> TaskContext:
    return TaskContext(LocalStorage(work), "sums", epoch, f"p-sums-{shard}", attempt, token, "p", shard)


def driver(work: Path, token: str = "1-x") -> DriverContext:
    return DriverContext(LocalStorage(work), "p", "sums", token=token)


def rows(**values: int | None) -> list[SinkRow]:
    return [SinkRow(key, 0, value) for key, value in values.items()]


def there(address: str) -> dict[str, object]:
    with Client(address, "t") as client:
        return {found.key.decode(): json.loads(found.value or b"null") for found in client.scan()}


def test_rows_are_seen_when_their_epoch_is_decided_and_deciding_again_is_harmless(tmp_path: Path) -> None:
    with node(tmp_path / "n") as address:
        sink: Sink = ms.sinks.service(address, "t")
        sink.check()
        parts = [sink.stage(task(tmp_path, 0, shard), rows(**{f"k{shard}{n}": n for n in range(20)})) for shard in (0, 1)]
        lost = sink.stage(task(tmp_path, 0, 0, attempt="b"), rows(k00=99))  # an attempt that no manifest names
        assert there(address) == {}
        sink.prepare(driver(tmp_path), 0, parts)
        sink.commit(driver(tmp_path), 0, parts)
        expected = {f"k{shard}{n}": n for shard in (0, 1) for n in range(20)}
        assert there(address) == expected
        sink.commit(driver(tmp_path), 0, parts)
        part = sink.stage(task(tmp_path, 1), [*rows(k00=5, k01=None), SinkRow("k00", 1, 6)])
        sink.prepare(driver(tmp_path), 1, [part])
        sink.commit(driver(tmp_path), 1, [part])
        sink.commit(driver(tmp_path), 0, parts)  # a late one must not bring the old back
        del expected["k01"]
        assert there(address) == {**expected, "k00": 6}
        sink.sweep(driver(tmp_path), 100, [])
        with pytest.raises(SinkError, match="were staged in partition"):
            sink.prepare(driver(tmp_path), 2, [lost])


def clients_running() -> int:
    return sum(thread.name == "millstream-client" for thread in threading.enumerate())


def test_a_run_and_a_worker_process_let_go_of_the_sinks_connection_and_tasks_share_one(tmp_path: Path) -> None:
    before = clients_running()
    with node(tmp_path / "n") as address:
        pipeline = ms.Pipeline("p")
        pipeline.emit(
            pipeline.inject("sums", ms.sources.files("in", schema="user string, at long"), timestamp="at"), ms.sinks.service(address, "t")
        )
        program = pipeline.program()
        process = WorkerProcess()
        for epoch in range(3):
            compiled = process.compiled("digest", pickle.dumps(program))
            compiled.topology.emissions[0].sink.stage(task(tmp_path, epoch), rows(a=epoch))
            process.end_task()
        assert clients_running() == before + 1
        process.close()
        assert clients_running() == before
        sink = ms.sinks.service(address, "t")
        sink.check()
        sink.close()
        assert clients_running() == before
        sink.check()  # it may be used again
        assert clients_running() == before + 1
        sink.close()


def test_all_rows_of_an_epoch_are_there_at_one_position_of_each_partition(tmp_path: Path) -> None:
    with node(tmp_path / "n") as address, Client(address, "t") as client:
        sink: Sink = ms.sinks.service(address, "t")
        parts = [sink.stage(task(tmp_path, 0, shard), rows(**{f"k{shard}{n}": n for n in range(20)})) for shard in range(4)]
        sink.prepare(driver(tmp_path), 0, parts)
        sink.commit(driver(tmp_path), 0, parts)
        positions = {(found.partition, found.version) for found in client.scan()}
        assert len(positions) == 3
        more = [sink.stage(task(tmp_path, 1, shard), rows(**{f"k{shard}{n}": n for n in range(20)})) for shard in range(4)]
        sink.commit(driver(tmp_path), 1, more[:2])  # a crash in between: two of four were decided
        sink.commit(driver(tmp_path), 1, more)
        assert len(there(address)) == 80


def test_a_replaced_run_is_refused_and_its_successor_decides_what_it_committed(tmp_path: Path) -> None:
    with node(tmp_path / "n") as address:
        sink: Sink = ms.sinks.service(address, "t")
        old = sink.stage(task(tmp_path, 0), rows(a=1))
        sink.prepare(driver(tmp_path), 0, [old])
        new = sink.stage(task(tmp_path, 0, token="2-y"), rows(a=1))
        with pytest.raises(SinkError, match="a newer run"):
            sink.stage(task(tmp_path, 1), rows(a=2))
        sink.commit(driver(tmp_path, "2-y"), 0, [old])  # the old run's manifest had won
        assert there(address) == {"a": 1}
        with pytest.raises(SinkError, match="in its place"):
            sink.commit(driver(tmp_path, "2-y"), 0, [new])


@pytest.mark.slow
def test_an_epoch_of_many_shards_with_long_names_is_decided_at_one_position(tmp_path: Path) -> None:
    with ms.testing.serving(Table("t"), folder=tmp_path / "n") as address:
        sink, context, parts = many(address, tmp_path, 0)
        assert sum(len(part.own["txn"]) for part in parts) > 4 * 4096
        sink.commit(context, 0, parts)
        with Client(address, "t") as client:
            assert len({found.version for found in client.scan()}) == 1
        assert there(address) == {f"k{shard}": [0, shard] for shard in range(MANY)}
        sink.sweep(context, 100, [part.own["txn"] for part in parts])


@pytest.mark.slow
def test_names_that_do_not_fit_into_one_request_are_decided_in_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    ask = Channel.ask

    async def counted(self: Channel, name: str, request: Any, timeout: float) -> Any:
        if name == "Decide":
            asked.append(request.ByteSize())
        return await ask(self, name, request, timeout)

    monkeypatch.setattr("millstream.service.client.BATCH", 4096)
    monkeypatch.setattr(Channel, "ask", counted)
    with ms.testing.serving(Table("t"), folder=tmp_path / "n") as address:
        sink, context, parts = many(address, tmp_path, 0)
        sink.commit(context, 0, parts[:100])  # killed in the middle of it
        sink.commit(context, 0, parts)
        assert there(address) == {f"k{shard}": [0, shard] for shard in range(MANY)}
    assert len(asked) > 10 and max(asked) < 8192


STAGES = """
import os, signal, sys
from pathlib import Path
import msgspec
sys.path[:0] = {path!r}
from servicesinkkit import many
_, _, parts = many(sys.argv[1], Path(sys.argv[2]), 0)
Path(sys.argv[2], "manifest").write_bytes(msgspec.json.encode(parts))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_killed_between_manifest_and_decision_many_shards_are_there_once_after_the_restart(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "nodes") as serving:
        code = STAGES.format(path=[SRC, str(Path(__file__).parent), str(Path(__file__).parents[1])])
        killed = subprocess.run([sys.executable, "-c", code, serving.address, str(tmp_path)], timeout=120)
        assert killed.returncode == -9
        assert there(serving.address) == {}
        serving.kill()
        serving.start()
        parts = msgspec.json.decode((tmp_path / "manifest").read_bytes(), type=list[Part])
        sink: Sink = ms.sinks.service(serving.address, "t")
        context = DriverContext(LocalStorage(tmp_path), "p", NAME, token="2-y")
        for _ in range(2):
            sink.commit(context, 0, parts)
            with Client(serving.address, "t") as client:
                assert len({found.version for found in client.scan()}) == 1
            assert there(serving.address) == {f"k{shard}": [0, shard] for shard in range(MANY)}
        with pytest.raises(SinkError, match="a newer run"):
            many(serving.address, tmp_path, 1)


def test_a_function_may_be_called_decide_since_deciding_is_a_call_of_its_own(tmp_path: Path) -> None:
    def decide(turn: Turn, key: bytes, argument: bytes) -> bytes:
        return key + argument

    table = Table("t", functions=[decide])
    with ms.testing.serving(table, folder=tmp_path / "n") as address, Client(address, "t") as client:
        assert client.call("decide", "a|1|1|x", "commit 1") == b"a|1|1|xcommit 1"


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    with node(tmp_path / "n") as address:
        sink: Sink = ms.sinks.service(address, "t")
        with pytest.raises(SinkError, match=r"stream 'sums' into table 't' at .*: key 'a': value nan cannot be written"):
            sink.stage(task(tmp_path, 0), [SinkRow("a", 0, float("nan"))])
        with pytest.raises(SinkError, match="524,288 are allowed"):
            sink.stage(task(tmp_path, 0), [SinkRow("a", 0, "x" * 600_000)])
        with pytest.raises(SinkError, match="there is no table 'other'"):
            ms.sinks.service(address, "other").check()
    with pytest.raises(SinkError, match="cannot be reached"):
        ms.sinks.service("127.0.0.1:1", "t", timeout="1s").check()


def test_a_second_node_on_a_folder_is_refused(tmp_path: Path) -> None:
    with node(tmp_path / "n"), pytest.raises(StorageError, match="in use by another node"), node(tmp_path / "n"):
        pass


@pytest.mark.crash
def test_a_pipeline_into_a_table_counts_each_value_once_over_kills_of_driver_and_node(tmp_path: Path) -> None:
    kit.write_rows(tmp_path, sinkjob.rows(4, "abcde"))
    with NodeProcess(tmp_path / "nodes", options="point=ms.service.HASH, partitions=2") as serving:
        (tmp_path / "address").write_text(f"table:{serving.address}")

        def job(crash: str = "") -> int:
            return kit.Driver(tmp_path, crash, per_epoch=5, build=sinkjob.build).wait()

        assert job("epoch.6-committed@1") == -9
        serving.kill()  # with rows of epoch 1 that are staged, committed and not decided
        serving.start()
        told: dict[str, list[int]] = {}
        ready, done = threading.Event(), threading.Event()

        def watch() -> None:
            with Client(serving.address, "t") as client:
                marks = 0
                for change in client.watch():
                    marks += change.kind == "mark"
                    if marks == 2:
                        ready.set()
                    for key, value, _ in change.rows:
                        told.setdefault(key.decode(), []).append(int(value or b"-1"))
                    if all(told.get(key, [0])[-1] == 10 for key in "abcde"):
                        done.set()
                        return

        threading.Thread(target=watch, daemon=True).start()
        assert ready.wait(30)
        assert job() == 0
        assert done.wait(30)
        assert told == {key: [1, 3, 6, 10] for key in "abcde"}
        assert there(serving.address) == dict.fromkeys("abcde", 10)
