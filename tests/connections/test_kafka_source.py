"""Topics of a real Kafka broker as a source: what is read, in which portions, and what is said of what cannot be."""

from __future__ import annotations

import http.server
import importlib
import io
import itertools
import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import kafkakit
import msgspec
import pyarrow as pa
import pytest

import millstream as ms
from millstream.errors import DefinitionError, InputError
from millstream.sources.kafka import KafkaReader, KafkaSplit

pytest.importorskip("confluent_kafka")
kafka_reading = importlib.import_module("millstream.sources.kafka_reading")

_names = itertools.count()
TYPES = {"string": pa.string(), "binary": pa.binary(), "int": pa.int32(), "long": pa.int64(), "timestamp": pa.timestamp("us", "UTC")}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    found = kafkakit.start(tmp_path_factory.mktemp("kafka"))
    yield found
    found.kill()


@pytest.fixture
def topic(broker: Any) -> str:
    name = f"clicks-{next(_names)}"
    kafkakit.create(broker.address, name, 3, **{"retention.ms": "-1"})
    return name


def arrow(ddl: str) -> pa.Schema:
    pairs = [part.split(maxsplit=1) for part in ddl.replace("map<string, string>", "map").split(",")]
    return pa.schema([(name, pa.map_(pa.string(), pa.string()) if kind == "map" else TYPES[kind]) for name, kind in pairs])


def opened(source: Any, unreadable: str | None = None, bounded: bool = False) -> KafkaReader:
    found: KafkaReader = source.reader(arrow, unreadable)
    found.begin({}, bounded)
    return found


def rows(reader: KafkaReader, take: Any) -> list[dict[str, Any]]:
    return [row for split in take.splits for batch in reader.read(split) for row in batch.to_pylist()]


def numbers(reader: KafkaReader, take: Any) -> list[int]:
    return sorted(row["n"] for row in rows(reader, take))


def send(broker: Any, topic: str, values: Any, partition: int = 0, **settings: Any) -> None:
    kafkakit.send(broker.address, topic, [json.dumps({"n": n}).encode() for n in values], partition, **settings)


def test_all_records_are_read_once_whatever_the_portions(broker: Any, topic: str) -> None:
    for partition in range(3):
        send(broker, topic, range(partition * 1000, partition * 1000 + 300 * (partition + 1)), partition)
    reader = opened(ms.sources.kafka(broker.address, topic, schema="n long", max_per_epoch=500))
    at, found, portions = reader.first(), [], 0
    while (take := reader.plan(at)).splits:
        found += numbers(reader, take)
        at, portions = take.end, portions + 1
    assert found.sort() is None and found == [*range(300), *range(1000, 1600), *range(2000, 2900)]
    assert portions == 4 and len(take.splits) == 0 and take.end == at
    send(broker, topic, [7], 1)
    assert numbers(reader, reader.plan(at)) == [7]
    reader.close()


def test_an_epoch_that_was_not_committed_is_read_again(broker: Any, topic: str) -> None:
    send(broker, topic, range(10))
    reader = opened(ms.sources.kafka(broker.address, topic, schema="n long"))
    at = reader.first()
    assert numbers(reader, reader.plan(at)) == [*range(10)]
    send(broker, topic, range(10, 20))
    assert numbers(reader, reader.plan(at)) == [*range(20)]
    split = reader.plan(at).splits[0]
    assert [n for n in rows(reader, reader.plan(at)) if n["n"] >= 15] and sum(b.num_rows for b in reader.read(split)) == 20
    reader.close()


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_a_range_that_ends_with_the_marker_of_a_transaction(broker: Any, topic: str, ends: str) -> None:
    """Such a marker has an offset, and is never given out. So a range has fewer records than offsets, or none."""
    reader = opened(ms.sources.kafka(broker.address, topic, schema="n long"))
    at = reader.first()
    for turn in range(3):
        send(broker, topic, [turn], ends=ends)
        while not (take := reader.plan(at)).splits or sum(split.end - split.start for split in take.splits) < 2:
            pass  # the end of a transaction is seen a moment later
        assert [split.end - split.start for split in take.splits if split.start < split.end] == [2]
        assert numbers(reader, take) == ([turn] if ends == "commit" else [])
        at = take.end
    reader.close()


def test_an_open_transaction_ends_what_is_read(broker: Any, topic: str) -> None:
    from confluent_kafka import Producer

    send(broker, topic, [1])
    open_one = Producer({"bootstrap.servers": broker.address, "transactional.id": f"open-{topic}", "log_level": 0})
    open_one.init_transactions(30)
    open_one.begin_transaction()
    open_one.produce(topic, value=b'{"n": 2}', partition=0)
    open_one.flush(30)
    send(broker, topic, [3])
    reader = opened(ms.sources.kafka(broker.address, topic, schema="n long"))
    take = reader.plan(reader.first())
    assert numbers(reader, take) == [1]
    open_one.commit_transaction(30)
    while not (more := reader.plan(take.end)).splits:
        pass  # what was committed is seen a moment later
    assert numbers(reader, more) == [2, 3]
    reader.close()


def test_what_is_read_ahead_of_other_partitions_has_a_bound(broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where partition 1 is read by another process by now."""
    monkeypatch.setattr(kafka_reading, "_ROWS", 50)
    monkeypatch.setattr(kafka_reading, "_AHEAD", 100)
    for partition in (0, 1):
        send(broker, topic, range(partition * 5000, partition * 5000 + 2000), partition)
    reader = opened(ms.sources.kafka(broker.address, topic, schema="n long"))
    zero, one, _ = reader.plan(reader.first()).splits

    def read(split: Any, start: int, end: int) -> list[int]:
        return [row["n"] for batch in reader.read(msgspec.structs.replace(split, start=start, end=end)) for row in batch.to_pylist()]

    assert read(one, 0, 10) == [*range(5000, 5010)]
    assert read(zero, 0, 2000) == [*range(2000)]
    consumer = kafka_reading._consumers[kafka_reading._name(reader._settings)]
    assert all(len(ahead.messages) <= 100 for ahead in consumer._ahead.values())
    assert read(one, 10, 2000) == [*range(5010, 7000)]
    reader.close()


class Frames:
    """What stands for Spark where splits become tasks."""

    def range(self, start: int, end: int, step: int, partitions: int) -> Any:
        self.tasks = end
        return self

    def mapInArrow(self, read: Any, schema: Any) -> list[Any]:
        ids = [iter([pa.record_batch({"id": [at]})]) for at in range(self.tasks)]
        return [row for one in ids for batch in read(one) for row in batch.to_pylist()]


def test_in_micro_batches_a_partition_with_nothing_to_read_makes_no_task_and_tasks_share_a_reader(broker: Any, topic: str) -> None:
    from millstream.engine.spark import job_runner, pickling

    send(broker, topic, [1, 2], 1)
    source = ms.sources.kafka(broker.address, topic, schema="n long")
    reader = opened(source)
    plan = reader.plan(reader.first())
    assert len(plan.splits) == 3, "in resident runs each partition has its place"
    frames: Any = job_runner.SplitFrames.__new__(job_runner.SplitFrames)
    frames._spark = Frames()
    frames._topology = SimpleNamespace(injectors={"in": SimpleNamespace(source=source)})
    frames._sources = {"in": job_runner.PlannedSource(reader, reader.schema, None)}
    frames._readers, frames._frames = {"in": pickling.dumps(reader)}, {"in": SimpleNamespace(schema=None)}
    assert frames._read("in", plan) == [{"n": 1}, {"n": 2}] and frames._spark.tasks == 1
    assert job_runner._unpickled(frames._readers["in"]) is job_runner._unpickled(frames._readers["in"])
    reader.close()


class Scripted:
    """A consumer with some records, and an error of a partition that nobody reads now."""

    def __init__(self, settings: Any) -> None:
        self.assigned: set[tuple[str, int]] = set()
        self.is_closed = False
        self.gives: list[Any] = []

    def incremental_assign(self, partitions: Any) -> None:
        self.assigned |= {(one.topic, one.partition) for one in partitions}

    def incremental_unassign(self, partitions: Any) -> None:
        self.assigned -= {(one.topic, one.partition) for one in partitions}

    def poll(self, _: float) -> Any:
        assert not self.is_closed
        return self.gives.pop(0)

    def consume(self, *_: Any) -> list[Any]:
        return []

    def close(self) -> None:
        self.is_closed = True


class Given:
    def __init__(self, partition: int, offset: int = 0, error: Any = None) -> None:
        self.topic, self.partition, self.offset, self.error = (lambda: "t"), (lambda: partition), (lambda: offset), (lambda: error)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr("confluent_kafka.Consumer", Scripted)
    return {"bootstrap.servers": f"scripted-{next(_names)}"}


def test_an_error_of_another_partition_is_not_that_of_the_one_that_is_read(scripted: dict[str, Any]) -> None:
    import confluent_kafka

    consumer = kafka_reading._Consumer(scripted)
    inner: Any = consumer._consumer
    gone = confluent_kafka.KafkaError(confluent_kafka.KafkaError._AUTO_OFFSET_RESET)
    inner.gives = [Given(1, 0)]
    assert [len(some) for some in consumer.read(KafkaSplit("t", 1, 0, 1))] == [1]
    inner.gives = [Given(1, 0, gone), Given(7, 0, gone), Given(0, 0)]
    assert [len(some) for some in consumer.read(KafkaSplit("t", 0, 0, 1))] == [1]
    assert inner.assigned == {("t", 0)}
    inner.gives, inner.get_watermark_offsets = [Given(0, 1, gone)], lambda *_, **__: (5, 9)
    with pytest.raises(InputError, match="partition 0, offsets 1 to 4 are not there any longer: the broker has 5 to 9"):
        list(consumer.read(KafkaSplit("t", 0, 1, 4)))


def test_a_partition_that_was_silent_for_long_is_read_on_and_others_are_given_up(
    scripted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_reading, "_FORGOTTEN", -1.0)
    consumer = kafka_reading._Consumer(scripted)
    inner: Any = consumer._consumer
    for partition, offset in ((1, 0), (0, 0), (0, 1)):
        inner.gives = [Given(partition, offset)]
        assert [len(some) for some in consumer.read(KafkaSplit("t", partition, offset, offset + 1))] == [1]
    assert inner.assigned == {("t", 0)}


def test_a_consumer_is_closed_by_the_last_one_who_reads_from_it(scripted: dict[str, Any]) -> None:
    reading = kafka_reading.messages(scripted, KafkaSplit("t", 0, 0, 2))
    consumer: Any = kafka_reading._consumers.setdefault(kafka_reading._name(scripted), kafka_reading._Consumer(scripted))
    inner = consumer._consumer
    inner.gives = [Given(0, 0), Given(0, 1)]
    assert len(next(reading)) == 1
    kafka_reading.close_consumers(scripted)  # another pipeline of this process ends
    assert not inner.is_closed
    assert len(next(reading)) == 1
    assert list(reading) == [] and inner.is_closed
    kafka_reading.close_consumers(scripted)


def test_metadata(broker: Any, topic: str) -> None:
    kafkakit.send(broker.address, topic, [b"x"], 2, key=b"tea", timestamp=1_500, headers=[("trace", b"a1"), ("none", None)])
    kafkakit.send(broker.address, topic, [None], 2, timestamp=1_600)
    every = ["key", "topic", "partition", "offset", "timestamp", "headers", "id", "source"]
    reader = opened(ms.sources.kafka(broker.address, topic, value="text", metadata=every))
    one, two = rows(reader, reader.plan(reader.first()))
    assert one["value"] == "x" and one["kafka_key"] == "tea" and one["kafka_topic"] == topic
    assert (one["kafka_partition"], one["kafka_offset"], one["kafka_timestamp"].timestamp()) == (2, 0, 1.5)
    assert (
        dict(one["kafka_headers"]) == {"trace": "a1", "none": None}
        and one["kafka_id"] == f"{topic}-2-0"
        and one["kafka_source"] == f"{topic}-2"
    )
    assert two["value"] is None and two["kafka_key"] is None and two["kafka_offset"] == 1
    reader.close()


def test_values_by_a_function_and_bytes(broker: Any, topic: str) -> None:
    kafkakit.send(broker.address, topic, [b"4 tea", b"\xff"])
    reader = opened(ms.sources.kafka(broker.address, topic))
    assert rows(reader, reader.plan(reader.first())) == [{"value": b"4 tea"}, {"value": b"\xff"}]

    def parsed(value: bytes) -> dict[str, Any]:
        number, word = value.decode().split()
        return {"n": int(number), "word": word}

    reader = opened(ms.sources.kafka(broker.address, topic, schema="n long, word string", value=parsed), "bad")
    good, bad = rows(reader, reader.plan(reader.first()))
    assert good == {"n": 4, "word": "tea", "bad": None}
    assert bad["n"] is None and f"topic '{topic}', partition 0, offset 1: UnicodeDecodeError" in bad["bad"]
    reader.close()


def test_json_that_does_not_fit_is_named(broker: Any, topic: str) -> None:
    kafkakit.send(broker.address, topic, [b'{"n": 1}', b'{\n "n":\n 2}', b'{"n": "three"}', b"nonsense", b"", None])
    source = ms.sources.kafka(broker.address, topic, schema="n long", metadata=["offset"])
    reader = opened(source, "bad")
    found = rows(reader, reader.plan(reader.first()))
    assert [(row["n"], row["kafka_offset"]) for row in found] == [(1, 0), (2, 1), (None, 2), (None, 3), (None, 4), (None, 5)]
    assert [row["bad"] is None for row in found] == [True, True, False, False, False, True]
    strict = opened(source)
    with pytest.raises(InputError, match=rf"topic '{topic}', partition 0, offset 2: column 'n': \"three\" does not fit"):
        rows(strict, strict.plan(strict.first()))
    reader.close()


class Registry(http.server.BaseHTTPRequestHandler):
    """A schema registry with one schema."""

    schema = json.dumps({"type": "record", "name": "Click", "fields": [{"name": "n", "type": "long"}, {"name": "word", "type": "string"}]})

    def do_GET(self) -> None:
        is_there = self.path.startswith("/schemas/ids/7")
        body = json.dumps({"schema": self.schema} if is_there else {"error_code": 40403, "message": "Schema not found"}).encode()
        self.send_response(200 if is_there else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def test_avro_by_a_schema_registry(broker: Any, topic: str) -> None:
    fastavro = pytest.importorskip("fastavro", reason="confluent-kafka[avro,schemaregistry] is not installed")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        text = io.BytesIO()
        fastavro.schemaless_writer(text, fastavro.parse_schema(json.loads(Registry.schema)), {"n": 3, "word": "tea"})
        framed = {number: b"\0" + number.to_bytes(4, "big") + text.getvalue() for number in (7, 8)}
        kafkakit.send(broker.address, topic, [framed[7], framed[7][:7]])
        place = f"http://127.0.0.1:{server.server_port}"
        reader = opened(ms.sources.kafka(broker.address, topic, schema="n long, word string", value="avro", registry=place), "bad")
        take = reader.plan(reader.first())
        good, bad = rows(reader, take)
        assert good == {"n": 3, "word": "tea", "bad": None} and bad["n"] is None and "offset 1" in bad["bad"]
        kafkakit.send(broker.address, topic, [framed[8]])
        with pytest.raises(InputError, match=f"the schema registry {place} does not give the schema of a value: Schema not found"):
            rows(reader, reader.plan(take.end))  # it may be there tomorrow: no dead letter
        reader.close()
        server.shutdown()


def test_where_a_new_checkpoint_begins(broker: Any, topic: str) -> None:
    for n in range(5):
        send(broker, topic, [n], timestamp=1_000 + n)
    begins = {"earliest": [0, 1, 2, 3, 4, 9], "latest": [9], 1_003: [3, 4, 9], 5_000: [9]}
    readers = {start: opened(ms.sources.kafka(broker.address, topic, schema="n long", start=start)) for start in begins}
    firsts = {start: reader.first() for start, reader in readers.items()}
    send(broker, topic, [9], timestamp=6_000)
    for start, expected in begins.items():
        assert numbers(readers[start], readers[start].plan(firsts[start])) == expected, start
    readers["latest"].close()


def test_a_bounded_run_reads_what_was_there_when_it_began(broker: Any, topic: str) -> None:
    send(broker, topic, range(10))
    reader = opened(ms.sources.kafka(broker.address, topic, schema="n long", max_per_epoch=4), bounded=True)
    take = reader.plan(reader.first())
    found = numbers(reader, take)
    send(broker, topic, range(10, 20))
    while (take := reader.plan(take.end)).splits:
        found += numbers(reader, take)
    assert found == [*range(10)]
    reader.close()


def test_new_topics_of_a_pattern_and_new_partitions_are_read_from_their_beginning(
    broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka.admin import NewPartitions

    monkeypatch.setattr(_module(), "_REFRESH", 0.0)
    reader = opened(ms.sources.kafka(broker.address, f"^{topic}(-more)?$", schema="n long", start="latest"))
    send(broker, topic, [0])
    at = reader.first()
    kafkakit.create(broker.address, f"{topic}-more", 1)
    send(broker, f"{topic}-more", [1])
    client = kafkakit.admin(broker.address)
    client.create_partitions([NewPartitions(topic, 4)])[topic].result(30)
    send(broker, topic, [2], 3)
    take = reader.plan(at)
    assert numbers(reader, take) == [1, 2]
    assert reader.plan(take.end).splits == () and len(reader.parts()) == 5
    client.delete_topics([f"{topic}-more"])[f"{topic}-more"].result(30)
    with pytest.raises(InputError, match=f"partition 0 of topic '{topic}-more' of Kafka is gone, and was read up to offset 1"):
        while True:  # a broker goes on listing it for a moment
            reader.plan(take.end)
    reader.close()


def test_records_that_retention_has_removed(broker: Any, topic: str) -> None:
    from confluent_kafka import TopicPartition

    send(broker, topic, range(10))
    reader = opened(ms.sources.kafka(broker.address, topic, schema="n long"))
    at = reader.first()
    take = reader.plan(at)
    client = kafkakit.admin(broker.address)
    gone = TopicPartition(topic, 0, 6)
    client.delete_records([gone])[gone].result(30)
    with pytest.raises(
        InputError, match=rf"topic '{topic}' of Kafka, partition 0, offsets 0 to 10 are not there any longer: the broker has 6 to 10"
    ):
        rows(reader, take)
    again = opened(ms.sources.kafka(broker.address, topic, schema="n long"))
    assert numbers(again, again.plan(again.first())) == [6, 7, 8, 9]
    reader.close()


def test_a_topic_that_was_made_anew(broker: Any, topic: str) -> None:
    send(broker, topic, range(10))
    reader = opened(ms.sources.kafka(broker.address, topic, schema="n long"))
    end = reader.plan(reader.first()).end
    client = kafkakit.admin(broker.address)
    client.delete_topics([topic])[topic].result(30)
    for _ in range(50):
        try:
            kafkakit.create(broker.address, topic, 3)
            break
        except Exception:
            continue
    send(broker, topic, [1])
    with pytest.raises(InputError, match="ends at offset 1, and was read up to 10: the topic was deleted and made anew"):
        opened(ms.sources.kafka(broker.address, topic, schema="n long")).plan(end)


def test_a_topic_that_is_not_there_and_a_broker_that_is_away(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"topic 'nothing' of Kafka at .*: 'nothing' is not there, or may not be seen; there are: "):
        opened(ms.sources.kafka(broker.address, "nothing")).first()
    monkeypatch.setattr("millstream.network.TRIED_FOR", 0.5)
    monkeypatch.setattr("millstream.kafka_client.ANSWER", 0.3)
    with pytest.raises(InputError, match=r"topic 'x' of Kafka at 127.0.0.1:9: "):
        opened(ms.sources.kafka("127.0.0.1:9", "x")).first()


def _module() -> Any:
    import sys

    return sys.modules["millstream.sources.kafka"]


def test_the_offsets_of_a_group_follow(broker: Any, topic: str) -> None:
    from confluent_kafka import Consumer, TopicPartition

    send(broker, topic, range(10))
    reader = opened(ms.sources.kafka(broker.address, topic, schema="n long", group="shop"))
    reader.committed(reader.plan(reader.first()).end)
    reader.close()
    looking = Consumer({"bootstrap.servers": broker.address, "group.id": "shop", "log_level": 0})
    assert [one.offset for one in looking.committed([TopicPartition(topic, 0)], timeout=30)] == [10]
    looking.close()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"topics": []}, "give a topic"),
        ({"topics": "^("}, "this is no pattern"),
        ({"value": "json"}, "needs a schema"),
        ({"value": "text", "schema": "n long"}, "has one column `value`"),
        ({"value": "xml"}, "use 'json', 'bytes'"),
        ({"value": "avro", "schema": "n long"}, "need each other"),
        ({"metadata": ["colour"]}, "'colour' is not a list of key, topic"),
        ({"metadata": ["key"], "schema": "kafka_key string"}, "column 'kafka_key' is in schema= and in metadata="),
        ({"start": "yesterday"}, "use 'earliest', 'latest', or a time"),
        ({"max_per_epoch": 0}, "at least 1"),
        ({"servers": {}}, "give bootstrap servers"),
    ],
)
def test_what_is_written_wrongly(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(DefinitionError, match=text):
        ms.sources.kafka(**{"servers": "localhost:9092", "topics": "x", **wrong})
