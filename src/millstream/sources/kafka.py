"""Topics of Kafka as a source, and what its epochs are: ranges of offsets, which stand in the manifests.

Rules
1. Where an epoch ends is asked of the brokers when it is planned: the end of what is committed. Consumer groups have no say; `group=` only tells
   people's tools.
2. A new partition, or a new topic of a pattern, is read from its beginning. A partition that has gone, or ends before what was read, is an error.
3. A split is a partition, and has its place in every plan, also with nothing to read: so the resident task that has a consumer for it gets it again. In
   micro-batches nothing ties a split to a process, and those with nothing to read make no task.
"""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.errors import DefinitionError, InputError
from millstream.extras import needed
from millstream.kafka_client import ANSWER, connected, passes, quiet, said, settings_of
from millstream.network import retried
from millstream.sources.base import Source
from millstream.sources.schema import columns
from millstream.sources.splits import Offset, PlannedReader, SplitPlan

if TYPE_CHECKING:
    import pyarrow as pa

_METADATA = {
    "key": "string",
    "topic": "string",
    "partition": "int",
    "offset": "long",
    "timestamp": "timestamp",
    "headers": "map<string, string>",
    "id": "string",
    "source": "string",
}
_REFRESH = 5.0  # seconds after which topics and partitions are looked at again
_BYTES = 1_000  # of a record, until some were seen
_MOST = 500_000  # records

TopicPart = tuple[str, int]


class KafkaOffset(Offset, frozen=True):
    """topics of Kafka"""

    positions: dict[str, dict[int, int]]


class KafkaSplit(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    start: int
    end: int

    def describe(self) -> str:
        return f"topic {self.topic!r} of Kafka, partition {self.partition}, offsets {self.start} to {self.end}"


class KafkaStats(msgspec.Struct, frozen=True):
    """How a source is doing. backlog: records that were there when an epoch was planned last, and are not read yet."""

    partitions: int = 0
    backlog: int = 0


class KafkaSource(Source):
    """Records of one or several topics, each once. Of transactions, only what is committed is read.

    servers: bootstrap servers, or settings of librdkafka with "bootstrap.servers" in them (TLS, SASL). topics: a name, names, or a pattern ("^clicks-.*").
    schema: the columns of the values, as DDL. value: what values are: "json" (with a schema: its columns are read of the objects), "bytes" or "text" (a column
    `value`), "avro" (with a schema, and registry=: the address of a schema registry, or settings of its client), or a function that makes a dict of bytes
    (with a schema). metadata: what else is wanted, of "key", "topic", "partition", "offset", "timestamp", "headers", "id" (topic-partition-offset) and
    "source" (topic-partition): each is a column kafka_key and so on. start: where a new checkpoint begins: "earliest", "latest", or a time (milliseconds, or
    a datetime). max_per_epoch: a number of records. group: a consumer group whose offsets follow what is committed, for tools that show lag.

    >>> kafka("localhost:9092", "clicks", schema="user string", metadata=["timestamp"]).schema
    'user string, kafka_timestamp timestamp'
    """

    def __init__(
        self,
        servers: str | Mapping[str, Any],
        topics: str | Sequence[str],
        *,
        schema: str | None = None,
        value: str | Callable[[bytes], Mapping[str, Any]] | None = None,
        metadata: Sequence[str] = (),
        start: str | int | datetime.datetime = "earliest",
        max_per_epoch: int = _MOST,
        registry: str | Mapping[str, Any] | None = None,
        group: str | None = None,
    ) -> None:
        self.settings = settings_of(servers, "sources.kafka")
        self.topics = (topics,) if isinstance(topics, str) else tuple(topics)
        if not self.topics or not all(isinstance(topic, str) and topic for topic in self.topics):
            raise DefinitionError(f"sources.kafka(..., {topics!r}): give a topic, a list of topics, or a pattern such as '^clicks-.*'")
        for topic in self.topics:
            _check_pattern(topic)
        self.value = value if value is not None else "bytes" if schema is None else "json"
        if not callable(self.value) and self.value not in ("json", "bytes", "text", "avro"):
            raise DefinitionError(
                f"sources.kafka(value={value!r}): use 'json', 'bytes', 'text', 'avro' or a function that makes a dict of bytes"
            )
        if (schema is None) != (self.value in ("bytes", "text")):
            wants = "needs a schema, such as schema='user string, at long'" if schema is None else "has one column `value`, and no schema"
            raise DefinitionError(f"sources.kafka(value={self.value!r}) {wants}")
        if (registry is None) == (self.value == "avro"):
            raise DefinitionError("sources.kafka: value='avro' and registry='http://...' need each other")
        self.fields = schema
        if isinstance(metadata, str) or (unknown := [name for name in metadata if name not in _METADATA]):
            wrong = repr(metadata) if isinstance(metadata, str) else repr(unknown[0])
            raise DefinitionError(f"sources.kafka(metadata=...): {wrong} is not a list of {', '.join(_METADATA)}")
        self.metadata = tuple(metadata)
        self.start = int(start.timestamp() * 1000) if isinstance(start, datetime.datetime) else start
        if self.start not in ("earliest", "latest") and not isinstance(self.start, int):
            raise DefinitionError(f"sources.kafka(start={start!r}): use 'earliest', 'latest', or a time (milliseconds, or a datetime)")
        if max_per_epoch < 1:
            raise DefinitionError("sources.kafka(max_per_epoch=...): at least 1")
        self.max_per_epoch, self.registry, self.group = max_per_epoch, registry, group
        self._reader: KafkaReader | None = None
        if twice := set(columns(schema) or ()) & {f"kafka_{name}" for name in self.metadata}:
            raise DefinitionError(f"sources.kafka: column {min(twice)!r} is in schema= and in metadata=")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    @property
    def schema(self) -> str:  # type: ignore[override]
        own = self.fields or f"value {'binary' if self.value == 'bytes' else 'string'}"
        return ", ".join([own, *(f"kafka_{name} {_METADATA[name]}" for name in self.metadata)])

    def load(self, spark: Any, unreadable: str | None = None) -> Any:
        raise DefinitionError(f"{self.describe()}: Spark is not to read it. Give its pipeline no source that only Spark can read")

    def unplanned(self) -> str | None:
        return None

    def reader(self, arrow_schema: Callable[[Any], Any], unreadable: str | None = None) -> PlannedReader:
        with needed("ms.sources.kafka"):
            import confluent_kafka  # noqa: F401
        self._reader = KafkaReader(self, arrow_schema(self.schema), unreadable)
        return self._reader

    def partitioned(self) -> tuple[Source, str]:
        if "source" in self.metadata:
            return self, "kafka_source"
        made = KafkaSource.__new__(KafkaSource)
        made.__dict__ |= {**self.__dict__, "metadata": (*self.metadata, "source")}
        return made, "kafka_source"

    def stats(self) -> KafkaStats | None:
        return None if self._reader is None else self._reader.stats

    def describe(self) -> str:
        return f"{'topics' if len(self.topics) > 1 or self.topics[0].startswith('^') else 'topic'} {', '.join(map(repr, self.topics))} of Kafka"


class KafkaReader(PlannedReader):
    counts = "records"

    def __init__(self, source: KafkaSource, schema: pa.Schema, unreadable: str | None) -> None:
        import pyarrow as pa

        self.schema = schema if unreadable is None else schema.append(pa.field(unreadable, pa.string()))
        self.stats = KafkaStats()
        self._source = source
        self._settings = quiet(source.settings)
        self._unreadable = unreadable
        self._own = schema
        self._admin: Any = None
        self._group: Any = None
        self._rows: Any = None
        self._known: list[TopicPart] = []
        self._looked = 0.0
        self._bounded = False
        self._targets: dict[TopicPart, int] | None = None
        self._behind: set[str] = set()
        self._size = float(_BYTES)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_admin": None, "_group": None, "_rows": None}

    # --- the driver

    def begin(self, names: Mapping[str, int], bounded: bool) -> None:
        self._bounded, self._targets = bounded, None

    def first(self) -> str:
        start = self._source.start
        found = self._offsets(self._partitions(), start)
        if isinstance(start, int):  # -1: all records are older
            ends = self._offsets([one for one, at in found.items() if at < 0], "latest")
            found |= ends
        return _offset(found).text()

    def plan(self, start: str) -> SplitPlan:
        positions = {(topic, number): at for topic, some in KafkaOffset.read(start).positions.items() for number, at in some.items()}
        ends = self._ends(positions)
        positions |= self._offsets([one for one in ends if one not in positions], "earliest")
        for one, end in ends.items():
            if end < positions[one]:
                raise InputError(
                    f"{_name(one)} of Kafka ends at offset {end}, and was read up to {positions[one]}: the topic was deleted and made anew, or lost records. "
                    f"Begin with a new checkpoint"
                )
        planned = shares({one: end - positions[one] for one, end in ends.items()}, self._source.max_per_epoch)
        count = sum(planned.values())
        self._behind = {_name_of_source(one) for one, end in ends.items() if positions[one] + planned[one] < end}
        there = sum(end - positions[one] for one, end in ends.items())
        self.stats = KafkaStats(len(ends), there)
        if not count:
            return SplitPlan(start)
        splits = [KafkaSplit(*one, positions[one], positions[one] + planned[one]) for one in sorted(ends)]
        read = {one: positions[one] + planned[one] for one in positions}
        return SplitPlan(_offset(read).text(), splits, int(count * self._size), takes=count, left=there - count)

    def _ends(self, positions: Mapping[TopicPart, int]) -> dict[TopicPart, int]:
        if self._targets is not None:
            return self._targets
        there = self._partitions()
        if gone := sorted(positions.keys() - set(there)):
            raise InputError(
                f"{_name(gone[0])} of Kafka is gone, and was read up to offset {positions[gone[0]]}. Bring it back, or begin with a new checkpoint"
            )
        ends = self._offsets(there, "latest")
        if self._bounded:
            self._targets = ends
        return ends

    def _partitions(self) -> list[TopicPart]:
        """All there are, looked at again from time to time."""
        if not self._known or time.monotonic() - self._looked > _REFRESH:
            topics = self._asked(lambda admin: admin.list_topics(timeout=ANSWER).topics)
            wanted = []
            for given in self._source.topics:
                found = [name for name in topics if (re.fullmatch(given, name) if given.startswith("^") else name == given)]
                if not found:
                    raise InputError(
                        f"{self._source.describe()} at {self._settings['bootstrap.servers']}: {given!r} is not there, or may not be seen; there are: "
                        f"{', '.join(sorted(topics)[:20]) or 'none'}"
                    )
                wanted += found
            self._known = sorted({(name, number) for name in wanted for number in topics[name].partitions})
            self._looked = time.monotonic()
        return self._known

    def _offsets(self, partitions: Sequence[TopicPart], which: str | int) -> dict[TopicPart, int]:
        if not partitions:
            return {}
        import confluent_kafka
        from confluent_kafka.admin import OffsetSpec

        spec = {"earliest": OffsetSpec.earliest, "latest": OffsetSpec.latest}.get(str(which), lambda: OffsetSpec.for_timestamp(which))()
        committed = confluent_kafka.IsolationLevel.READ_COMMITTED
        asked = {confluent_kafka.TopicPartition(*one): spec for one in partitions}

        def answers(admin: Any) -> dict[TopicPart, int]:
            futures = admin.list_offsets(asked, isolation_level=committed, request_timeout=ANSWER)
            found = {(one.topic, one.partition): future.result(ANSWER).offset for one, future in futures.items()}
            if not isinstance(which, int) and (unknown := [one for one, at in found.items() if at < 0]):  # who was to tell it is away
                raise _Passing(f"nobody tells the offsets of {_name(unknown[0])}")
            return found

        found: dict[TopicPart, int] = self._asked(answers)
        return found

    def _asked(self, question: Callable[[Any], Any]) -> Any:
        import confluent_kafka

        try:
            for attempt in retried(lambda error: isinstance(error, _Passing)):
                with attempt:
                    try:
                        self._admin = self._admin or connected(self._settings)
                        return question(self._admin)
                    except (confluent_kafka.KafkaException, _Passing) as error:
                        self._admin = None  # it would go on asking those who led before
                        if isinstance(error, _Passing) or not passes(error, "_FATAL"):
                            raise
                        raise _Passing(said(error)) from error
        except (confluent_kafka.KafkaException, _Passing) as error:
            raise InputError(f"{self._source.describe()} at {self._settings['bootstrap.servers']}: {said(error)}") from error

    def committed(self, end: str) -> None:
        if self._source.group is None:
            return
        import confluent_kafka

        if self._group is None:
            self._group = confluent_kafka.Consumer({**self._settings, "group.id": self._source.group, "enable.auto.commit": False})
        told = [
            confluent_kafka.TopicPartition(topic, number, at)
            for topic, some in KafkaOffset.read(end).positions.items()
            for number, at in some.items()
        ]
        try:
            self._group.commit(offsets=told, asynchronous=True)
        except confluent_kafka.KafkaException as error:
            raise InputError(f"{self._source.describe()}, group {self._source.group!r}: {said(error)}") from error

    def parts(self) -> Mapping[str, int]:
        return dict.fromkeys(map(_name_of_source, self._known), 0)

    def parts_read(self) -> set[str]:
        return {*map(_name_of_source, self._known)} - self._behind

    def close(self) -> None:
        from millstream.sources.kafka_reading import close_consumers

        close_consumers(self._settings)
        group, self._group, self._admin = self._group, None, None
        if group is not None:
            group.close()

    # --- anywhere

    def has_rows(self, split: KafkaSplit) -> bool:
        return split.start < split.end

    def read(self, split: KafkaSplit) -> Iterator[pa.RecordBatch]:
        from millstream.sources.kafka_reading import KafkaRows, messages

        if self._rows is None:
            source = self._source
            self._rows = KafkaRows(
                self._own, self._unreadable, source.value, [f"kafka_{name}" for name in source.metadata], source.registry
            )
        for some in messages(self._settings, split):
            batch = self._rows.batch(some)
            self._size += (batch.nbytes / len(some) - self._size) / 8
            yield batch


class _Passing(Exception):
    """An error of a broker that may pass."""


def _check_pattern(topic: str) -> None:
    try:
        re.compile(topic if topic.startswith("^") else "")
    except re.error as error:
        raise DefinitionError(f"sources.kafka(..., {topic!r}): this is no pattern: {error}") from None


def _name(one: TopicPart) -> str:
    return f"partition {one[1]} of topic {one[0]!r}"


def _name_of_source(one: TopicPart) -> str:
    return f"{one[0]}-{one[1]}"


def _offset(positions: Mapping[TopicPart, int]) -> KafkaOffset:
    found: dict[str, dict[int, int]] = {}
    for (topic, number), at in sorted(positions.items()):
        found.setdefault(topic, {})[number] = at
    return KafkaOffset(found)


def shares(waiting: Mapping[TopicPart, int], most: int) -> dict[TopicPart, int]:
    """How much of what waits in each partition an epoch reads: all; or, where that is too much, the same part of each, so that event time goes on evenly.

    >>> shares({("a", 0): 900, ("a", 1): 99, ("a", 2): 1}, 100)
    {('a', 0): 90, ('a', 1): 10, ('a', 2): 1}
    """
    total = sum(waiting.values())
    return dict(waiting) if total <= most else {one: -(-count * most // total) for one, count in waiting.items()}


kafka = KafkaSource
