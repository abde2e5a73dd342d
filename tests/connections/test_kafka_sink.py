"""Rows into a topic of a real Kafka broker: each epoch once for readers of committed records, whoever is killed."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafkakit
import kafkarefuses
import pyarrow as pa
import pytest

import millstream as ms
from millstream.errors import DefinitionError, InputError, SinkError
from millstream.simulation.sink_checks import Stage
from millstream.sinks.base import IdentifiedRow, SinkRow
from millstream.sinks.kafka import KafkaSink, _Marker

_names = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    found = kafkakit.start(tmp_path_factory.mktemp("kafka"))
    yield found
    found.kill()


@pytest.fixture
def topic(broker: Any) -> str:
    name = f"rows-{next(_names)}"
    kafkakit.create(broker.address, name, 2, **{"retention.ms": "-1"})  # the rows of the tests are from 1970
    return name


def numbers(address: str, topic: str) -> list[int]:
    return [json.loads(message.value())["n"] for message in kafkakit.read(address, topic)]


def run_of(tmp_path: Path, sink: KafkaSink, row: Any = None) -> Any:
    return Stage(tmp_path / "checkpoint", row or (lambda n: SinkRow(f"k{n % 3}", n, {"n": n}))).run(sink)


@pytest.mark.crash
def test_the_sink_passes_the_kit(broker: Any, topic: str) -> None:
    ms.testing.check_sink(ms.sinks.kafka(broker.address, topic), lambda: numbers(broker.address, topic), kills=3)


class MarkerBefore(KafkaSink):
    """A twin: it reads the marker before it shuts out older producers."""

    def begin(self, writer: Any) -> int | None:
        marker = self._read_marker(f"millstream.{writer.name}.0")
        super().begin(writer)
        return None if marker is None else marker.epoch


class MarkerApart(KafkaSink):
    """A twin: the marker has a transaction of its own."""

    def write(self, writer: Any, epoch: int, rows: Any) -> None:
        kept, self.markers = self.markers, self.topic + "-elsewhere"
        try:
            super().write(writer, epoch, rows)
        finally:
            self.markers = kept
        producer = self._producers[writer]
        producer.begin_transaction()
        value = json.dumps({"epoch": epoch, "run": writer.run}).encode()
        producer.produce(self.markers, value=value, key=f"millstream.{writer.name}.0".encode())
        producer.commit_transaction(30)


@pytest.mark.crash
@pytest.mark.soak
def test_the_kit_finds_a_marker_in_a_transaction_of_its_own(broker: Any, topic: str) -> None:
    kafkakit.create(broker.address, topic + "-elsewhere", 1)
    with pytest.raises(AssertionError, match="drivers were killed"):
        ms.testing.check_sink(MarkerApart(broker.address, topic), lambda: numbers(broker.address, topic), kills=8, seed=2)


@pytest.mark.parametrize("kind", [KafkaSink, MarkerBefore])
def test_a_marker_is_read_when_older_producers_are_shut_out(broker: Any, topic: str, tmp_path: Path, kind: type[KafkaSink]) -> None:
    """An older run commits its epoch between the two steps of a younger one."""
    old = run_of(tmp_path, KafkaSink(broker.address, topic))
    old.publish(0, [1])
    late = old.staged(1, [2])
    new = run_of(tmp_path, kind(broker.address, topic))
    seen = new.sink._read_marker

    def meanwhile(id: str) -> _Marker | None:
        found: _Marker | None = seen(id)
        if kind is MarkerBefore:
            old.sink._commit(old._context(False), old.sink._writer(old._context(False)), 1, _rows(old, late))
        return found

    new.sink._read_marker = meanwhile
    new.commit(1, late)
    assert numbers(broker.address, topic) == ([1, 2] if kind is KafkaSink else [1, 2, 2])


def _rows(run: Any, parts: Any) -> Any:
    from millstream.sinks.epoch_sink import EpochRows

    return EpochRows(run.stage.storage, parts)


def test_records_have_key_timestamp_value_and_id(broker: Any, topic: str, tmp_path: Path) -> None:
    rows = {0: IdentifiedRow("tea", 1_000, {"a": [1, "é"]}, "id-1"), 1: SinkRow(7, 2_000, None), 2: SinkRow(("x", 1), 3_000, "y")}
    run_of(tmp_path, ms.sinks.kafka(broker.address, topic), rows.__getitem__).publish(0, [0, 1, 2])
    found = {message.timestamp()[1]: message for message in kafkakit.read(broker.address, topic)}
    assert (
        found[1_000].key() == b"tea" and json.loads(found[1_000].value()) == {"a": [1, "é"]} and found[1_000].headers() == [("id", b"id-1")]
    )
    assert found[2_000].value() is None and found[3_000].value() == b'"y"'


def test_an_open_transaction_of_another_writer_does_not_hide_the_marker(broker: Any, topic: str, tmp_path: Path) -> None:
    import confluent_kafka

    run = run_of(tmp_path, ms.sinks.kafka(broker.address, topic))
    run.publish(0, [0])
    other = confluent_kafka.Producer({"bootstrap.servers": broker.address, "transactional.id": "other", "transaction.timeout.ms": 60_000})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce("millstream-epochs", b"{}", b"other")
    other.flush(30)
    parts = run.publish(1, [1, 2])
    again = run_of(tmp_path, ms.sinks.kafka(broker.address, topic))
    ends = threading.Timer(2.0, lambda: other.abort_transaction(30))
    ends.start()
    again.commit(1, parts, redo=True)
    ends.join()
    assert sorted(numbers(broker.address, topic)) == [0, 1, 2]


@pytest.mark.crash
def test_a_broker_that_is_killed_and_comes_back_loses_and_doubles_nothing(broker: Any, topic: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, ms.sinks.kafka(broker.address, topic))
    run.publish(0, [0, 1])
    for epoch in range(1, 3):
        broker.kill()
        back = threading.Timer(0.5, broker.start)
        back.start()
        run.publish(epoch, [2 * epoch, 2 * epoch + 1])
        back.join()
    assert sorted(numbers(broker.address, topic)) == list(range(6))


def test_what_cannot_be_written_is_told(broker: Any, topic: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, ms.sinks.kafka(broker.address, topic), lambda n: SinkRow("k", n, "x" * 2_000_000))
    with pytest.raises(
        SinkError, match=r"stream 'rows' into topic '.*' of Kafka: key 'k': .* cannot be written: it comes to 2,000,003 bytes"
    ):
        run.staged(0, [1])
    with pytest.raises(SinkError, match="topic 'nowhere' of Kafka is not there, or may not be seen; there are: "):
        ms.sinks.kafka(broker.address, "nowhere").check()
    with pytest.raises(SinkError, match=r"which has the epochs that are written, has cleanup\.policy=delete"):
        ms.sinks.kafka(broker.address, topic, markers=topic).check()
    with pytest.raises(DefinitionError, match="'json', 'text', 'bytes', 'key'"):
        ms.sinks.kafka("x", "t", value="xml")
    with pytest.raises(DefinitionError, match="bootstrap"):
        ms.sinks.kafka({}, "t")


def test_what_the_topic_does_not_take_is_found_in_the_task(broker: Any, tmp_path: Path) -> None:
    topic, now = f"strict-{next(_names)}", int(time.time() * 1000)
    day = {"message.timestamp.after.max.ms": "3600000", "message.timestamp.before.max.ms": "86400000"}
    kafkakit.create(broker.address, topic, 1, **{"max.message.bytes": "10000", "retention.ms": "-1", **day})
    rows = {1: SinkRow("k", now, "x" * 20_000), 2: SinkRow("k", now + 7_200_000, 2), 3: SinkRow("k", now - 90_000_000, 3)}
    many = {n: SinkRow("k", now, "x" * 1_000) for n in range(4, 104)}
    run = run_of(tmp_path, ms.sinks.kafka(broker.address, topic), {**rows, **many, 104: SinkRow("k", 0, 0)}.__getitem__)
    for n, says in ((1, "it comes to 20,003 bytes, and 9,800 are"), (2, "is too far from now"), (3, r"alter message\.timestamp\.after")):
        with pytest.raises(SinkError, match=says):
            run.staged(0, [n])
    run.publish(0, [*many, 104])  # more than a batch may have
    found = [message.timestamp()[1] for message in kafkakit.read(broker.address, topic)]
    assert len(found) == 101 and now - 1_000 < min(found), "a row of 1970 has the time of its writing"
    relaxed = ms.sinks.kafka(broker.address, topic)
    kafkakit.alter(broker.address, topic, **{"message.timestamp.type": "LogAppendTime"})
    run_of(tmp_path, relaxed, rows.__getitem__).publish(1, [2, 3])
    assert len(kafkakit.read(broker.address, topic)) == 103


def test_what_the_topic_refuses_behind_the_commit_is_told_at_once(broker: Any, tmp_path: Path) -> None:
    topic = f"altered-{next(_names)}"
    kafkakit.create(broker.address, topic, 1, **{"retention.ms": "-1"})
    run = run_of(tmp_path, ms.sinks.kafka(broker.address, topic), lambda n: SinkRow("k", n, "x" * 20_000))
    run.publish(0, [1])
    kafkakit.alter(broker.address, topic, **{"max.message.bytes": "10000"})
    begins: list[Any] = []
    begin = run.sink.begin
    run.sink.begin = lambda writer: begins.append(writer) or begin(writer)
    with pytest.raises(SinkError, match="MSG_SIZE_TOO_LARGE"):
        run.publish(1, [2])
    assert begins == []


def test_settings_that_may_not_be_seen_are_no_error(
    broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import confluent_kafka.admin

    class Unseen:
        def result(self, _: float) -> None:
            raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED))

    monkeypatch.setattr(confluent_kafka.admin.AdminClient, "describe_configs", lambda self, asked: dict.fromkeys(asked, Unseen()))
    ms.sinks.kafka(broker.address, topic).check()
    assert f"the settings of topic {topic!r} of Kafka may not be seen" in caplog.text


def test_a_wrong_password_is_told_at_once() -> None:
    pytest.importorskip("confluent_kafka")
    with kafkarefuses.Server(("127.0.0.1", 0), kafkarefuses.Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(SinkError, match=r"topic 't' of Kafka at .*Invalid username or password"):
            ms.sinks.kafka(server.settings(), "t").check()
        with pytest.raises(InputError, match=r"topic 't' of Kafka at .*Invalid username or password"):
            reader = ms.sources.kafka(server.settings(), "t").reader(lambda ddl: pa.schema([("value", pa.binary())]))
            reader.begin({}, False)
            reader.first()
        assert time.monotonic() - began < 20  # the promise, not a measurement: each would be tried for 30 seconds
        server.shutdown()


def test_a_broker_that_is_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("confluent_kafka")

    monkeypatch.setattr("millstream.kafka_client.ANSWER", 0.5)
    monkeypatch.setattr("millstream.network.TRIED_FOR", 1.0)
    with pytest.raises(SinkError, match=r"topic 't' of Kafka at 127\.0\.0\.1:1"):
        ms.sinks.kafka({"bootstrap.servers": "127.0.0.1:1"}, "t").check()
