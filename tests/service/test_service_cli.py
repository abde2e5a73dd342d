"""The commands of the state service, as a user types them; and the code that is generated from service.proto."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from livekit import Checkpoint
from servicekit import APP, SRC, NodeProcess

import millstream as ms
from millstream.cli import main
from millstream.errors import StorageError
from millstream.service import Client, Table, functions
from millstream.service.blocking import ServerThread
from millstream.service.live.backend import LiveServer
from millstream.state.memory_storage import MemoryStorage

ROOT = Path(__file__).resolve().parents[2]


def said(capsys: pytest.CaptureFixture[str], *command: str, code: int = 0) -> str:
    """What a command prints."""
    found = main(list(command))
    out = capsys.readouterr()
    assert found == code, out.err
    return out.out + out.err


def test_keys_are_put_got_scanned_called_and_removed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with ms.testing.serving(Table("t", functions=[functions.add])) as address:
        at = ("--address", address)
        assert said(capsys, "kv", "put", "t", "tea", "green", *at) == "tea: written, version 1\n"
        assert said(capsys, "kv", "get", "t", "tea", *at) == "tea = green  (version 1)\n"
        assert "has version 1, not 7" in said(capsys, "kv", "put", "t", "tea", "x", "--expect", "7", *at, code=1)
        assert json.loads(said(capsys, "kv", "put", "t", "tea", "black", "--expect", "1", "--json", *at)) == {"key": "tea", "version": 3}
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\x00")))
        said(capsys, "kv", "put", "t", "raw", "-", *at)
        assert said(capsys, "kv", "call", "t", "add", "n", "5", *at) == "5\n"
        assert said(capsys, "kv", "scan", "t", *at).splitlines() == [
            "n = 5  (version 5)",
            "raw = hex:ff00  (version 4)",
            "tea = black  (version 3)",
            "3 entries",
        ]
        found = json.loads(said(capsys, "kv", "get", "t", "tea", "--json", "--level", "bounded", *at))
        assert found == {"key": "tea", "value": "black", "version": 3, "partition": 1, "age_ms": 0}
        assert said(capsys, "kv", "remove", "t", "tea", *at) == "tea: removed, at position 6\n"
        assert "1 of 1 keys are not there" in said(capsys, "kv", "get", "t", "tea", *at, code=1)
        assert "there is no table 'other'; this node has: t" in said(capsys, "kv", "get", "other", "tea", *at, code=1)
        assert "are for live state" in said(capsys, "kv", "get", "t", "n", "--as-of", "3", *at, code=1)
        assert "this table has no function 'nope'" in said(capsys, "kv", "call", "t", "nope", "n", *at, code=1)
    assert "127.0.0.1:1" in said(capsys, "kv", "get", "t", "tea", "--address", "127.0.0.1:1", "--timeout", "300ms", code=1)
    assert said(capsys, "kv", code=2).startswith("usage: millstream kv")


def test_a_table_whose_partitions_were_removed_stays_empty_after_a_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ms.testing.serving(Table("t"), folder=tmp_path / "n") as address:
        said(capsys, "kv", "put", "t", "a", "1", "--address", address)
        said(capsys, "partitions", "remove", "t", "--id", "1", "--address", f"{tmp_path}/n/control.sock")
        refusal = said(capsys, "kv", "get", "t", "a", "--address", address, "--timeout", "300ms", code=1)
        assert "table 't' has no partitions: add one" in refusal
    with ms.testing.serving(Table("t"), folder=tmp_path / "n") as address:
        assert "has no partitions" in said(capsys, "kv", "get", "t", "a", "--address", address, "--timeout", "300ms", code=1)


def test_add_refuses_what_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    with ms.testing.serving(Table("t", functions=[functions.add])) as address:
        said(capsys, "kv", "put", "t", "a", "5", "--address", address)
        assert "key b'a' holds 1 bytes, and add keeps a number as 8 bytes" in said(
            capsys, "kv", "call", "t", "add", "a", "1", "--address", address, code=1
        )
        said(capsys, "kv", "call", "t", "add", "n", "7", "--address", address)
        assert json.loads(said(capsys, "kv", "get", "t", "n", "--json", "--address", address))["value"] == 7
        assert "there is no level 'other'" in refused_level(address)


def refused_level(address: str) -> str:
    with Client(address, "t") as client, pytest.raises(ms.errors.RefusedRequest) as error:
        client.get_many(["a"], level="other")
    return str(error.value)


def test_a_watch_shows_what_is_there_and_then_changes(capsys: pytest.CaptureFixture[str]) -> None:
    with ms.testing.serving(Table("t")) as address, Client(address, "t") as client:
        client.put("a", "1")
        writing = threading.Timer(0.5, lambda: (client.put("a", "2"), client.remove("a")))
        writing.start()
        found = said(capsys, "kv", "watch", "t", "--changes", "2", "--address", address)
        writing.join()
    assert found.splitlines() == ["a = 1  (version 1)", "a = 2  (version 2)", "a is gone  (version 3)"]


class MayBeAway(MemoryStorage):
    """A checkpoint's storage that cannot be read for a while."""

    is_away = False

    def __getattribute__(self, name: str) -> Any:
        if name in ("read", "exists", "list", "folders", "size") and self.is_away:
            raise StorageError("the storage is away")
        return super().__getattribute__(name)


def test_the_level_of_a_read_is_asked_of_live_state_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = MayBeAway()
    world = Checkpoint(storage=storage)
    world.put(C={"tea": b"\x01"})
    server = ServerThread(LiveServer(storage, "127.0.0.1:0", cache_folder=tmp_path))
    at = ("--address", server.address, "--timeout", "2s")
    try:
        assert said(capsys, "kv", "get", "C", "tea", *at).startswith("tea = ")
        storage.is_away = True
        assert said(capsys, "kv", "get", "C", "tea", "--level", "bounded", "--max-age", "1h", *at).startswith("tea = ")
        assert "ms ago, and at most" in said(capsys, "kv", "get", "C", "tea", "--level", "bounded", "--max-age", "1ms", *at, code=1)
        assert said(capsys, "kv", "get", "C", "tea", "--level", "session", *at).startswith("tea = ")
        assert "the storage is away" in said(capsys, "kv", "get", "C", "tea", *at, code=1)
    finally:
        server.stop()


def test_partitions_are_listed_added_removed_saved_and_restored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    from millstream.service import limits

    folder = tmp_path / "n"
    with (
        ms.testing.serving(Table("t"), folder=folder, control_limits=limits.off(limits.CONTROL)) as address,
        Client(address, "t") as client,
    ):
        control = ("--address", f"unix:{folder}/control.sock")
        client.put("a", "1")
        assert "serving" in said(capsys, "partitions", "list", *control)
        assert "as of position 1: 1 rows in" in said(capsys, "partitions", "snapshot", "1", "saved", *control)
        assert "holds a snapshot already" in said(capsys, "partitions", "snapshot", "1", "saved", *control, code=1)
        client.put("a", "2")
        assert "1 rows of saved" in said(capsys, "partitions", "restore", "1", "saved", *control)
        assert client.get("a") == b"1"
        assert "has points of that range already" in said(capsys, "partitions", "add", "t", "--from", "m", *control, code=1)
        assert "no partition of table 't' has exactly" in said(capsys, "partitions", "remove", "t", "--to", "m", *control, code=1)
        assert "is gone" in said(capsys, "partitions", "remove", "t", "--id", "1", *control)
        assert "serves from" in said(capsys, "partitions", "add", "t", "--to", "m", *control)
        assert "serves from" in said(capsys, "partitions", "add", "t", "--from", "m", "--id", "9", *control)
        found = json.loads(said(capsys, "partitions", "list", "t", "--json", *control))
        assert [(one["id"], one["start"], one["end"], one["state"]) for one in found] == [(2, "", "m", "serving"), (9, "m", "", "serving")]
        assert client.get("a") is None
        client.put_many({"a": "x", "z": "y"})
        assert [one.key for one in client.scan()] == [b"a", b"z"]
        assert "does not cover" in said(capsys, "partitions", "restore", "9", "saved", *control, code=1)
        assert list((folder / "trash").glob("t-1-*/snapshot.json"))
        said(capsys, "partitions", "upload", str(folder / "trash"), str(tmp_path / "far"), "--once")
        assert list((tmp_path / "far").glob("t-1-*/snapshot.json"))
    assert "there is no control plane" in said(capsys, "partitions", "list", *control, code=1)


@pytest.mark.crash
def test_serve_says_what_it_does_and_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    def served(*arguments: str, code: int = 1) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "millstream.cli", "serve", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env={"PYTHONPATH": SRC, "PATH": ""},
        )
        assert done.returncode == code
        return done.stderr

    (tmp_path / "app.py").write_text(APP.format(options=""))
    (tmp_path / "empty.py").write_text("x = 1")
    assert "usage: millstream serve" in served(code=2)
    assert "has no table" in served("tables", "empty.py")
    assert "no table, and no list of tables, in a variable 'nope'" in served("tables", "app.py:nope")
    assert "without a cookie" in served("tables", "app.py", "--listen", "0.0.0.0:0")
    assert "would be open to every user of this machine" in served(
        "tables", "app.py", "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"
    )
    with NodeProcess(tmp_path / "node") as node:
        assert "in use by another node" in served("tables", "app.py", "--listen", "127.0.0.1:0", "--dir", str(node.folder / "n1"), code=5)
        assert "cannot listen" in served("tables", "app.py", "--listen", node.address, "--dir", "other", code=5)
        assert node.process is not None
        node.process.terminate()
        assert node.process.stdout is not None
        assert "serve: stopped; what was answered is kept in" in node.process.stdout.read()
        assert node.process.wait() == 0


def test_what_is_generated_from_the_proto_is_what_is_in_git(tmp_path: Path) -> None:
    subprocess.run(["sh", str(ROOT / "scripts" / "protos.sh"), sys.executable, str(tmp_path)], check=True)
    for name in ("service_pb2.py", "service_pb2.pyi"):
        made, kept = tmp_path / "millstream/service/proto" / name, ROOT / "src/millstream/service/proto" / name
        assert made.read_text() == kept.read_text(), "run scripts/protos.sh"


def test_options_of_a_table_are_checked() -> None:
    def refused(**options: Any) -> str:
        with pytest.raises(ms.errors.DefinitionError) as error:
            Table(**{"name": "t", **options})
        return str(error.value)

    assert "cannot be called 'a b'" in refused(name="a b")
    assert "need point=ms.service.HASH" in refused(partitions=3)
    assert "KEY (itself) or ms.service.HASH" in refused(point="other")
    assert "must be durable by itself, and memory is not" in refused(log=ms.service.logs.none())
    assert "no function with a name" in refused(functions=[lambda turn, key, argument: b""])
    assert "store='lmdb' is none" in refused(store="lmdb")
    assert "must take three arguments" in refused(functions=[functions.number])
    assert "there is a function 'add' already" in refused(functions=[functions.add, functions.add])
