"""Rows into a topic of Kafka, exactly once for readers with `isolation.level=read_committed`: rows and the epoch's marker in one transaction.

Rules
1. A transaction is opened when its epoch is committed, and lives for milliseconds; any run can repeat it. So nothing is lost, however long a pipeline is down.
2. The marker is a record of a compacted topic with one partition: the writer's transactional id, the epoch, and the run. It is sent in the transaction of
   the rows.
3. A run calls `init_transactions`, by which the broker refuses older producers with that id and ends their transaction; only then it reads the marker.
   It reads up to the end that uncommitted readers see: another writer's open transaction would hide what lies behind it.
4. Tasks make keys and values, and refuse what the broker would find too large, or too far from its clock, before the epoch is committed. What it takes is
   asked of the topic at the start. An error that would come again with the same rows is not retried.
5. After an error nothing is known of the transaction. The producer is given up, and the next one begins with rule 3.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.core.keys import key_bytes
from millstream.core.time import Duration
from millstream.errors import DefinitionError, Fenced, SinkError
from millstream.extras import needed
from millstream.kafka_client import ANSWER, connected, passes, quiet, said, settings_of
from millstream.sinks.base import SinkRow
from millstream.sinks.epoch_sink import EpochRows, EpochSink, SinkWriter
from millstream.sinks.files import json_bytes

if TYPE_CHECKING:
    import confluent_kafka

MARKERS = "millstream-epochs"
_MARKER_SETTINGS = {"cleanup.policy": "compact", "segment.ms": "600000", "segment.bytes": str(1 << 20), "min.cleanable.dirty.ratio": "0.1"}
_LIVES = 60_000  # milliseconds: a transaction whose producer is gone
_LARGEST = 1_000_000  # bytes of a record, as the client's default has it
_OF_ROWS = ("MSG_SIZE_TOO_LARGE", "INVALID_TIMESTAMP", "INVALID_RECORD", "POLICY_VIOLATION", "RECORD_LIST_TOO_LARGE")
_ANY = 1 << 62
_OVERHEAD = 200

_log = logging.getLogger("millstream.sinks")

ToBytes = Callable[[Any], "bytes | None"]
_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(list[tuple[bytes | None, bytes | None, int, str | None]])


class _Marker(msgspec.Struct):
    epoch: int
    run: int


class _Limits(msgspec.Struct, frozen=True):
    """What the topic takes. size: bytes of a batch. before, after: by how many milliseconds a record's time may differ from the broker's clock."""

    size: int = _ANY
    before: int = _ANY
    after: int = _ANY


class KafkaSink(EpochSink):
    """Rows into a topic, exactly once for readers with isolation.level=read_committed. The topic must be there.

    servers: bootstrap servers, or settings of librdkafka with "bootstrap.servers" in them (TLS, SASL). key, value: "json", "text", "bytes" or a function that
    gives bytes (a serializer of a schema registry's client, say); by default the key's text, and the value as JSON. A value of None is a tombstone. With
    emit(..., ids=True) a record has a header "id". A record's timestamp is the row's; the broker deletes records that are older than the topic's
    retention.ms. markers: the topic with the epochs that are there, which all pipelines may share; it is made if it is not there. roll: for how long epochs
    wait, to be written together.

    >>> kafka("localhost:9092", "counts").describe()
    "topic 'counts' of Kafka"
    """

    def __init__(
        self,
        servers: str | Mapping[str, Any],
        topic: str,
        *,
        key: str | ToBytes = "key",
        value: str | ToBytes = "json",
        markers: str = MARKERS,
        roll: Duration | None = None,
    ) -> None:
        super().__init__(roll=roll)
        self.settings = settings_of(servers, "sinks.kafka")
        self.topic, self.markers = topic, markers
        self.key, self.value = _codec("key", key), _codec("value", value)
        self._producers: dict[SinkWriter, Any] = {}
        self._limits = _Limits()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_producers": {}}

    def describe(self) -> str:
        return f"topic {self.topic!r} of Kafka"

    form = "kafka"

    @property
    def transient(self) -> tuple[type[Exception], ...]:  # type: ignore[override]
        with needed("ms.sinks.kafka"):
            import confluent_kafka
        return (confluent_kafka.KafkaException, BufferError)

    def passes(self, error: Exception) -> bool:
        return super().passes(error) and (isinstance(error, BufferError) or passes(error, *_OF_ROWS))

    # --- topics

    def check(self) -> None:
        with needed("ms.sinks.kafka"):
            import confluent_kafka
        try:
            for attempt in self.tries():
                with attempt:
                    self._check_topics(connected(self.settings))
        except confluent_kafka.KafkaException as error:
            raise SinkError(f"{self.describe()} at {self.settings['bootstrap.servers']}: {said(error)}") from error

    def _check_topics(self, admin: Any) -> None:
        topics = admin.list_topics(timeout=ANSWER).topics
        if self.topic not in topics:
            raise SinkError(
                f"{self.describe()} is not there, or may not be seen; there are: {', '.join(sorted(topics)[:20]) or 'none'}. Create it first"
            )
        if self.markers not in topics:
            self._make_markers(admin)
        count = len(admin.list_topics(self.markers, timeout=ANSWER).topics[self.markers].partitions)
        cleanup = self._settings_of(admin, self.markers).get("cleanup.policy", "compact")
        if cleanup != "compact" or count != 1:
            raise SinkError(
                f"topic {self.markers!r} of Kafka, which has the epochs that are written, has cleanup.policy={cleanup} and {count} partitions: it must be "
                f"compacted, or markers expire, and have one. Alter it, or name another with markers="
            )
        self._limits = _limits(self._settings_of(admin, self.topic))

    def _settings_of(self, admin: Any, topic: str) -> dict[str, str]:
        """What a topic is set to; nothing, where we may not see it."""
        import confluent_kafka
        from confluent_kafka.admin import ConfigResource, ResourceType

        (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        try:
            return {name: one.value for name, one in future.result(ANSWER).items()}
        except confluent_kafka.KafkaException as error:
            if "AUTHORIZATION" not in error.args[0].name():
                raise
            text = "the settings of topic %r of Kafka may not be seen, so nobody knows whether it takes what is written: %s. Grant DescribeConfigs"
            _log.warning(text, topic, said(error))
            return {}

    def _make_markers(self, admin: Any) -> None:
        import confluent_kafka.admin

        copies = min(3, len(admin.list_topics(timeout=ANSWER).brokers))
        new = confluent_kafka.admin.NewTopic(self.markers, 1, copies, config=_MARKER_SETTINGS)
        try:
            admin.create_topics([new])[self.markers].result(ANSWER)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() != confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    # --- tasks

    def encode(self, rows: Sequence[SinkRow]) -> bytes:
        largest, now = self._largest() - _OVERHEAD, int(time.time() * 1000)
        found = []
        for row in rows:
            try:
                key, value = self.key(row.key), None if row.value is None else self.value(row.value)
                id = getattr(row, "id", None)
                size = len(key or b"") + len(value or b"") + len(id or "")
                if size > largest:
                    raise ValueError(
                        f"it comes to {size:,} bytes, and {largest:,} are allowed (message.max.bytes of the client, max.message.bytes of the topic)"
                    )
                if row.timestamp - now > self._limits.after or (now - row.timestamp > self._limits.before and row.timestamp > 0):
                    raise ValueError(
                        f"its time, {row.timestamp}, is too far from now for the topic: alter message.timestamp.after.max.ms or "
                        f"message.timestamp.before.max.ms, or set message.timestamp.type=LogAppendTime"
                    )
            except Exception as error:
                raise ValueError(f"key {row.key!r}: value {row.value!r:.200} cannot be written: {error}") from error
            found.append((key, value, row.timestamp, id))
        return _encoder.encode(found)

    def _largest(self) -> int:
        """Bytes of a record. With compression the broker sees fewer, and nobody knows how many."""
        mine = int(self.settings.get("message.max.bytes", _LARGEST))
        is_plain = self.settings.get("compression.type", self.settings.get("compression.codec", "none")) == "none"
        return min(mine, self._limits.size) if is_plain else mine

    # --- the driver

    def begin(self, writer: SinkWriter) -> int | None:
        import confluent_kafka

        id = f"millstream.{writer.name}.0"
        batch = min(int(self.settings.get("batch.size", _LARGEST)), self._largest())
        settings = {"linger.ms": 5, **quiet(self.settings), "transactional.id": id, "transaction.timeout.ms": _LIVES, "batch.size": batch}
        producer = self._producers[writer] = confluent_kafka.Producer({"partitioner": "murmur2_random", **settings})
        producer.init_transactions(ANSWER)
        marker = self._read_marker(id)
        if marker is None:
            return None
        if marker.run > writer.run:
            raise Fenced(f"run {marker.run} has written there, and this is run {writer.run}")
        return marker.epoch

    def _read_marker(self, id: str) -> _Marker | None:
        """Rule 3. Raises KafkaException if an open transaction of somebody else's hides the end for longer than such may last."""
        import confluent_kafka

        partition = confluent_kafka.TopicPartition(self.markers, 0, confluent_kafka.OFFSET_BEGINNING)
        base = {
            **quiet(self.settings),
            "group.id": "millstream-markers",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
        }
        looking = confluent_kafka.Consumer({**base, "isolation.level": "read_uncommitted"})
        try:
            _, end = looking.get_watermark_offsets(partition, timeout=ANSWER)
        finally:
            looking.close()
        reading = confluent_kafka.Consumer({**base, "isolation.level": "read_committed"})
        found: _Marker | None = None
        deadline = time.monotonic() + _LIVES / 1000 + ANSWER
        try:
            reading.assign([partition])
            at = 0
            while at < end:
                message = reading.poll(1.0)
                if message is None or (error := message.error()) is None:
                    if message is not None and message.key() == id.encode():
                        found = msgspec.json.decode(message.value(), type=_Marker)
                    at = at if message is None else message.offset() + 1
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    at = message.offset()
                elif not error.retriable():
                    raise confluent_kafka.KafkaException(error)
                if time.monotonic() > deadline:
                    raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT))
        finally:
            reading.close()
        return found

    def write(self, writer: SinkWriter, epoch: int, rows: EpochRows) -> None:
        producer = self._producers[writer]
        failed: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        producer.begin_transaction()
        for piece in rows.pieces():
            for key, value, timestamp, id in _decoder.decode(piece):
                headers = {} if id is None else {"headers": [("id", id)]}
                _produce(producer, self.topic, value=value, key=key, timestamp=max(0, timestamp), on_delivery=delivered, **headers)
        marker = msgspec.json.encode(_Marker(epoch, writer.run))
        _produce(producer, self.markers, value=marker, key=f"millstream.{writer.name}.0".encode(), on_delivery=delivered)
        self._commit_transaction(producer, failed)

    def _commit_transaction(self, producer: confluent_kafka.Producer, failed: Sequence[Any]) -> None:
        """Asked again where the answer did not come: librdkafka goes on with the same commit."""
        import confluent_kafka

        deadline = time.monotonic() + _LIVES / 1000
        while True:
            try:
                producer.commit_transaction(ANSWER)
                return
            except confluent_kafka.KafkaException as error:
                if failed:
                    raise confluent_kafka.KafkaException(failed[0]) from error
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def close(self) -> None:
        super().close()
        producers, self._producers = self._producers, {}
        for producer in producers.values():
            with warnings.catch_warnings(action="ignore"):  # of a transaction that is open: the next one with its id ends it
                producer.purge()
                producer.close(1.0)


def _limits(settings: Mapping[str, str]) -> _Limits:
    """Before Kafka 3.6 one setting has both differences."""
    size = int(settings.get("max.message.bytes", _ANY))
    if settings.get("message.timestamp.type") == "LogAppendTime":
        return _Limits(size)
    names = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
    old = int(settings.get("message.timestamp.difference.max.ms", _ANY))
    return _Limits(size, *(min(old, int(settings.get(name, _ANY))) for name in names))


def _produce(producer: Any, topic: str, **record: Any) -> None:
    while True:
        try:
            producer.produce(topic, **record)
            return
        except BufferError:
            producer.poll(0.1)


def _text(value: Any) -> bytes:
    return str(value).encode()


def _bytes(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray)):
        raise ValueError(f"it is {type(value).__name__}, not bytes")
    return bytes(value)


_CODECS: dict[str, ToBytes] = {"json": json_bytes, "text": _text, "bytes": _bytes, "key": key_bytes}


def _codec(what: str, given: str | ToBytes) -> ToBytes:
    if callable(given):
        return given
    if given not in _CODECS:
        raise DefinitionError(f"sinks.kafka({what}={given!r}): use {', '.join(map(repr, _CODECS))} or a function that gives bytes")
    return _CODECS[given]


kafka = KafkaSink
