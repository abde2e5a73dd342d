"""Every part says how it is doing: a struct, with numbers that are those of what was done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from sourcekit import RawPusher
from waiting import until

import millstream as ms
from millstream.connector import MemoryOutputs, PushClient, SinkServer, SourceServer, SourceStats, WorkerClient, WorkerStats
from millstream.sinks.base import DriverContext, SinkRow, TaskContext
from millstream.sinks.two_phase import TwoPhaseStats
from millstream.sources.pushed import PushedStats

PAGES = Path(__file__).parent.parent.parent / "docs"


def test_a_worker_counts_over_all_of_its_connections() -> None:
    with SinkServer(MemoryOutputs()) as server, WorkerClient.connect(server.address, "w") as worker:
        assert worker.stats() == WorkerStats(connections=1)
        worker.write(b"one\n")
        assert worker.prepare("t1")
        before = worker.stats()
        worker.finish("t1", commit=True, confirm=True)
        worker.write(b"no\n")
        assert worker.prepare("t2")
        worker.reconnect()
        worker.resolve("t2", commit=False)
        assert worker.stats() == WorkerStats(connections=3, messages=2, bytes=7, votes_yes=2, commits=1, rollbacks=1)
        assert before == WorkerStats(connections=1, messages=1, bytes=4, votes_yes=1), "what was given away does not change"
        assert server.stats().commits == worker.stats().commits and server.stats().rollbacks == worker.stats().rollbacks


def test_a_no_is_counted() -> None:
    with SinkServer(MemoryOutputs()) as server, WorkerClient.connect(server.address, "w") as worker:
        worker.write(b"x")
        assert worker.prepare("t")
        worker.finish("t", commit=True, confirm=True)
        worker.write(b"y")
        assert not worker.prepare("t"), "this name was committed already"
        assert worker.stats().votes_yes == 1 and worker.stats().votes_no == 1
        assert server.stats().votes_no == 1


def test_a_sink_of_a_pipeline_counts_what_it_has_committed() -> None:
    def task(epoch: int, shard: int) -> TaskContext:
        return TaskContext(None, "counts", epoch, f"p-counts-{shard:04}", "a", "1-x", "p", shard)  # type: ignore[arg-type]

    driver = DriverContext(None, "p", "counts", None, False, "1-x")  # type: ignore[arg-type]
    with SinkServer(MemoryOutputs()) as server:
        sink = ms.sinks.connector(server.address)
        assert sink.stats() == TwoPhaseStats()
        for epoch in (1, 2):
            parts = [sink.stage(task(epoch, shard), [SinkRow("a", 1, n) for n in range(shard + 1)]) for shard in range(2)]
            sink.prepare(driver, epoch, parts)
            sink.commit(driver, epoch, parts)
        found = sink.stats()
        assert (found.epochs, found.commits, found.rows) == (2, 4, 6) and found.connections >= 4
        assert server.stats().commits == 4
        sink.commit(driver, 2, parts)
        assert sink.stats().commits == 4 and sink.stats().rows == 6, "to commit again does nothing"


def test_a_server_of_a_source_counts(tmp_path: Path) -> None:
    with SourceServer(tmp_path, sessions=1) as server:
        assert server.stats().waiting_for == f"a program to push to {server.address}"
        with PushClient(server.address) as client:
            client.notify("s")
            client.send("s", 1, b"x")
            client.send("s", 2, b"y")
            client.declare("s", 5)
            until(lambda: server.stats().received == 3)
            with RawPusher(server.address) as stranger:
                until(lambda: server.stats().unauthenticated == 1)
                with pytest.raises(AssertionError):
                    stranger.greet()
            found = server.stats()
            assert (found.sessions, found.streams, found.refused, found.acknowledged, found.waiting_bytes) == (1, 1, 1, 0, 0)
            assert found.end > 0 and 1 <= found.fsyncs <= 3 and found.waiting_for is None
            server.acknowledge(found.end)
            until(lambda: server.stats().acknowledged == found.end)


def test_a_pushed_source_says_what_holds_its_watermark(tmp_path: Path) -> None:
    source = ms.sources.connector(dir=tmp_path, listen="127.0.0.1:0")
    assert source.stats() == PushedStats(None, None, None)
    server = source.start()
    try:
        with PushClient(server.address) as client:
            client.notify("s")
            client.send("s", 1, b"x")
            until(lambda: server.stats().received == 1)
            found = source.stats()
            assert found.server is not None and found.server.received == 1
            assert found.watermark is None and found.held_by == "stream 's', of which nothing was declared"
    finally:
        source.close()


@pytest.mark.parametrize(
    ("page", "kinds"), [("connector.md", [WorkerStats, TwoPhaseStats]), ("pushing.md", [SourceStats, PushedStats])], ids=["sink", "source"]
)
def test_the_pages_explain_every_number(page: str, kinds: list[Any]) -> None:
    text = (PAGES / page).read_text().split("counts\n", 1)[1].split("\n## ")[0]
    assert [name for kind in kinds for name in kind.__struct_fields__ if f"`{name}`" not in text] == []


def test_they_can_be_written_as_json(tmp_path: Path) -> None:
    with SourceServer(tmp_path) as server:
        assert msgspec.json.decode(msgspec.json.encode(PushedStats(server.stats())))["server"]["received"] == 0
