"""The connector as a Spark source: rows, offsets, epochs that are run again, a driver that starts anew. One query, stopped and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from waiting import until

import millstream as ms
from millstream.connector.source.push import PushClient
from millstream.engine.spark.versions import HAS_READ_LIMITS
from millstream.errors import CheckpointError, DefinitionError
from millstream.sources import PushedSource
from millstream.sources.pushed import PushedStats


class Reader:
    """A query that does what Millstream's engine does: takes an epoch, commits it once (here: to a dictionary), and acknowledges its offset as Spark wrote
    it. An epoch whose commit Spark has not noted comes again, after it was acknowledged: it is read again, and found to be committed."""

    def __init__(self, spark: Any, source: PushedSource, checkpoint: Path) -> None:
        self.spark, self.source, self.checkpoint = spark, source, checkpoint
        self.epochs: dict[int, list[Any]] = {}
        self.failed: dict[int, list[Any]] = {}
        self.fails = 0

    def start(self) -> Any:
        frame = self.source.load(self.spark)
        writer = frame.writeStream.foreachBatch(self.epoch).option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(processingTime="100 milliseconds").start()

    def epoch(self, batch: Any, number: int) -> None:
        rows = batch.collect()
        if number not in self.epochs and self.fails:
            self.fails -= 1
            self.failed[number] = rows
            raise ValueError("the engine dies before the commit")
        assert self.epochs.setdefault(number, rows) == rows
        self.source.acknowledge((self.checkpoint / "offsets" / str(number)).read_text().split("\n")[2])

    def seen(self) -> list[Any]:
        return [row for _, rows in sorted(self.epochs.items()) for row in rows]


@pytest.mark.spark
@pytest.mark.skipif(not HAS_READ_LIMITS, reason="Spark reads an intake from 4.2 on")
def test_every_message_is_seen_once_across_a_stop_a_failed_epoch_and_a_new_driver(spark: Any, tmp_path: Path) -> None:
    source = ms.sources.connector(dir=tmp_path / "intake", listen="127.0.0.1:0", max_per_epoch=400, streams=["s"])
    reader = Reader(spark, source, tmp_path / "checkpoint")
    query = reader.start()
    with PushClient(source.address, patience="60s") as client:
        assert client.notify("s") is None
        for id in range(1, 1001):
            client.send("s", id, b"%d" % id, event_time=10 * id, key="even" if id % 2 == 0 else "")
        client.declare("s", 9_000)
        assert client.wait("60s") and client.acknowledged("s") == 1000
        assert source.watermark() == 9_000
        assert all(len(rows) <= 400 for rows in reader.epochs.values())
        query.stop()

        for id in range(1001, 1101):  # the query is stopped, the server is not
            client.send("s", id, b"%d" % id)
        until(lambda: source.start().stats().received == 1101)
        reader.fails = 1
        query = reader.start()
        with pytest.raises(Exception, match="dies before the commit"):
            query.awaitTermination()
        assert not client.wait("0.1s")

        address = source.address
        source.close()  # the driver ends; a new one has the same folder and address
        source = reader.source = ms.sources.connector(dir=tmp_path / "intake", listen=address, max_per_epoch=400, streams=["s"])
        query = reader.start()
        assert source.watermark() == 9_000
        client.send("s", 1101, b"1101", key="é")
        assert client.wait("60s")
    seen = reader.seen()
    assert [row.id for row in seen] == list(range(1, 1102))
    (failed,) = reader.failed
    assert reader.failed[failed] == reader.epochs[failed] != []  # an epoch that is run again has the same rows
    first, last = seen[1], seen[-1]
    assert (first.stream, first.event_time, first.key, bytes(first.payload), first.record_id) == ("s", 20, "even", b"2", "s/2")
    assert seen[0].key is None and last.key == "é"
    query.stop()
    source.close()


def test_what_cannot_be_is_found_before_anything_runs(tmp_path: Path) -> None:
    for wrong in (
        {"max_per_epoch": 0},
        {"max_per_epoch": "lots"},
        {"streams": "s"},
        {"partitions": 0},
        {"backlog": "4"},
        {"credits": 0},
        {"idle": "soon"},
    ):
        with pytest.raises(DefinitionError):
            ms.sources.connector(dir=tmp_path, **wrong)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="HOST:PORT"):
        ms.sources.connector(dir=tmp_path, listen="7401")
    with pytest.raises(DefinitionError, match="without a cookie"):
        ms.sources.connector(dir=tmp_path, listen="0.0.0.0:7401")
    assert not list(tmp_path.iterdir())


def test_an_offset_of_another_source_is_refused(tmp_path: Path) -> None:
    source = ms.sources.connector(dir=tmp_path, listen="127.0.0.1:0")
    source.acknowledge('{"position": 5}')  # not loaded: nothing to acknowledge
    source.start()
    try:
        source.acknowledge("-")
        source.acknowledge('{"position": 0}')
        for wrong in ('{"offset": 5}', "7", "nonsense", '{"position": 99999}'):
            with pytest.raises(CheckpointError):
                source.acknowledge(wrong)
    finally:
        source.close()
        source.close()


def test_a_source_travels_without_its_server(tmp_path: Path) -> None:
    import pickle

    source = ms.sources.connector(dir=tmp_path, listen="127.0.0.1:0")
    source.start()
    copy = pickle.loads(pickle.dumps(source))
    assert copy.watermark() is None and copy.describe() == "messages pushed to 127.0.0.1:0" and copy.stats() == PushedStats()
    source.close()
