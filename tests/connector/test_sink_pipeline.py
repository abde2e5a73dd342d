"""`ms.sinks.connector`: phase one before the manifest, phase two after it; what fails in between decides nothing by itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sourcekit import free_port

import millstream as ms
import sinkjob
import taskkit as kit
from millstream.connector import SinkServer, WorkerClient
from millstream.connector.sink.outputs import files
from millstream.sinks.base import DriverContext, SinkRow, TaskContext
from millstream.state.storage import open_storage
from sinkjob import pipeline


@contextlib.contextmanager
def serving(folder: Path, **options: Any) -> Iterator[SinkServer]:
    """A sink on a folder, which is free again afterwards."""
    outputs = ms.connector.FileOutputs(folder)
    with SinkServer(outputs, **options) as running:
        yield running
    outputs.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SinkServer]:
    with serving(tmp_path / "sink") as running:
        yield running


def write(work: Path, number: int, keys: str = "ab") -> None:
    (work / "in").mkdir(parents=True, exist_ok=True)
    hidden = work / "in" / f".{number}"
    hidden.write_text("".join(json.dumps({"k": key, "n": number + 1, "at": 1_000 + number}) + "\n" for key in keys))
    os.utime(hidden, (1_000 + number, 1_000 + number))
    hidden.rename(work / "in" / f"{number}.json")


def committed(folder: Path) -> list[tuple[str, int]]:
    """What a reader of the sink sees."""
    rows = []
    for worker in files.workers(folder):
        data = b"".join(files.read(folder, worker))
        rows += [json.loads(line) for line in data.splitlines()]
    return sorted((row["key"], row["value"]) for row in rows)


def expected(count: int, keys: str = "ab") -> list[tuple[str, int]]:
    return sorted((key, sum(range(1, n + 2))) for key in keys for n in range(count))


def run(spark: Any, work: Path, sink: ms.sinks.Sink) -> None:
    pipeline(work, sink).run(spark, checkpoint=work / "checkpoint", available_now=True, drain=False, shards=2).await_termination()


@pytest.mark.spark
def test_rows_are_committed_with_their_epoch_and_open_transactions_of_others_are_rolled_back(
    spark: Any, tmp_path: Path, server: SinkServer
) -> None:
    for number in range(3):
        write(tmp_path, number)
    for shard in range(2):  # an attempt of a run that died before its manifest
        with WorkerClient.connect(server.address, f"sums-w-sums-id-{shard}", fence=7) as left:
            left.write(b'{"key":"a","value":666}\n')
            assert left.prepare("left by nobody")
    run(spark, tmp_path, ms.sinks.connector(server.address))
    assert committed(tmp_path / "sink") == expected(3)


@pytest.mark.spark
def test_a_sink_that_is_away_fails_the_epoch_and_nothing_is_lost(spark: Any, tmp_path: Path) -> None:
    write(tmp_path, 0)
    with serving(tmp_path / "sink") as server:
        address = server.address
        run(spark, tmp_path, ms.sinks.connector(address))
    write(tmp_path, 1)
    with pytest.raises(ms.errors.SinkError, match=address):
        run(spark, tmp_path, ms.sinks.connector(address, patience="200ms"))
    assert committed(tmp_path / "sink") == expected(1)
    with serving(tmp_path / "sink", listen=address) as server:
        run(spark, tmp_path, ms.sinks.connector(address))
    assert committed(tmp_path / "sink") == expected(2)


@pytest.mark.spark
def test_a_sink_that_votes_no_fails_the_epoch_and_nothing_is_lost(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "sink"

    class Full(OSError):
        pass

    outputs = ms.connector.FileOutputs(folder)

    def full(worker: str) -> Any:
        output = outputs(worker)

        def prepare(*args: Any) -> None:
            raise Full("no room")

        output.prepare = prepare  # type: ignore[method-assign]
        return output

    write(tmp_path, 0)
    with SinkServer(full) as server, pytest.raises(ms.errors.SinkError):
        run(spark, tmp_path, ms.sinks.connector(server.address, patience="1s"))
    outputs.close()
    with serving(folder) as server:
        run(spark, tmp_path, ms.sinks.connector(server.address))
    assert committed(folder) == expected(1)


@pytest.mark.spark
def test_rows_may_be_encoded_by_the_user_and_the_cookie_is_needed(spark: Any, tmp_path: Path) -> None:
    write(tmp_path, 0, keys="a")
    with serving(tmp_path / "sink", cookie="secret") as server:
        with pytest.raises(ms.errors.SinkError, match="cookie"):
            run(spark, tmp_path, ms.sinks.connector(server.address, patience="0s"))
        run(spark, tmp_path, ms.sinks.connector(server.address, cookie="secret", encode=lambda row: f"{row.key}={row.value};".encode()))
    assert b"".join(b"".join(files.read(tmp_path / "sink", worker)) for worker in files.workers(tmp_path / "sink")) == b"a=1;"


@pytest.mark.crash
@pytest.mark.parametrize("resident", [True, False], ids=["resident", "micro-batch"])
def test_after_a_kill_the_manifest_decides_what_becomes_of_open_transactions(tmp_path: Path, resident: bool) -> None:
    """After the manifest: committed by the next run, and not written again. Before it: what is left is rolled back."""
    kit.write_rows(tmp_path, sinkjob.rows(4, "ab"))
    with serving(tmp_path / "sink") as server:
        (tmp_path / "address").write_text(server.address)

        def run(crash: str = "") -> int:
            return kit.Driver(tmp_path, crash, per_epoch=2, resident=resident, build=sinkjob.build).wait()

        assert run("epoch.6-committed@1") == -signal.SIGKILL
        assert committed(tmp_path / "sink") == expected(1), "the manifest is there, phase two is not"
        assert run("epoch.5-checked@3") == -signal.SIGKILL
        assert committed(tmp_path / "sink") == expected(2)
        assert run() == 0
    assert committed(tmp_path / "sink") == expected(4)


@pytest.mark.crash
@pytest.mark.parametrize("votes", [1, 2], ids=["one shard", "two shards"])
def test_a_sink_that_is_killed_between_the_two_phases_is_waited_for(tmp_path: Path, votes: int) -> None:
    """The run goes on: the sink is started again and still has what it has voted for."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "millstream.cli", "sink", "run", "--listen", address, "--dir", str(tmp_path / "sink")]
    storage = open_storage(tmp_path / "checkpoint")
    sink, context = ms.sinks.connector(address, patience="30s"), DriverContext(storage, "p", "out", token="1-a")
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        rows = [SinkRow("a", 1, 1)]
        parts = [sink.stage(TaskContext(storage, "out", 0, "l", "x", "1-a", "p", shard), rows) for shard in range(votes)]
        sink.prepare(context, 0, parts)
    finally:
        first.kill()
        first.wait()
    second = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        sink.commit(context, 0, parts)
    finally:
        second.kill()
        second.wait()
    assert committed(tmp_path / "sink") == [("a", 1)] * votes
    assert sink.stats().rows == votes
