"""Records of Kafka in a task: one consumer for each process and cluster, which stays connected and reads ahead; and columns of what it gives.

Rules
1. A range is read by its offsets. It has come to its end when a record from behind it is there, or when the broker says that nothing follows: markers of
   transactions have offsets too, and are never given out.
2. Records of other partitions that come meanwhile are kept, for they are asked for next. A partition that nobody asked for in `_FORGOTTEN`, or of which
   more has come than `_AHEAD`, is given up: another process may read it now.
3. An error that names another partition is not that of the range that is read: that partition is given up, and asked for again by whoever wants it.
4. Pipelines of one process share a consumer. It is closed when one of them ends and nobody reads from it: at once, or by the last one who does.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import HookError, InputError
from millstream.extras import needed
from millstream.kafka_client import said
from millstream.sources.base import BETWEEN
from millstream.sources.filereading.json_rows import JsonRows
from millstream.sources.filereading.settings import Settings
from millstream.sources.filereading.text_rows import BadLine

if TYPE_CHECKING:
    from millstream.sources.kafka import KafkaSplit

_ROWS = 20_000
_AHEAD = 2 * _ROWS  # records of a partition that nobody has asked for yet
_FORGOTTEN, _PATIENCE = 60.0, 60.0  # seconds
_CONSUMER = {
    "group.id": "millstream",  # librdkafka wants one; it is not used
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 50,  # a partition that is new to a consumer waits for so long
    "fetch.queue.backoff.ms": 5,
    "queued.max.messages.kbytes": 32 << 10,
}


class _Ahead:
    """What has come of a partition. reached: there is nothing before it that has not come."""

    def __init__(self, start: int) -> None:
        self.messages: deque[Any] = deque()
        self.at = self.reached = start
        self.used = time.monotonic()


class _Consumer:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._consumer = confluent_kafka.Consumer({**_CONSUMER, **settings})
        self._ahead: dict[tuple[str, int], _Ahead] = {}
        self._where = settings["bootstrap.servers"]
        self.lock = threading.Lock()
        self.users = 0

    def read(self, split: KafkaSplit) -> Iterator[list[Any]]:
        ahead = self._positioned(split)
        deadline = time.monotonic() + _PATIENCE
        while ahead.at < split.end:
            found = self._taken(ahead, split.end)
            if found:
                deadline = time.monotonic() + _PATIENCE
                yield found
            elif ahead.reached >= split.end:
                ahead.at = split.end
            elif time.monotonic() > deadline:
                raise InputError(f"{split.describe()}: {self._where} has not given them in {_PATIENCE:.0f} s")
            else:
                self._poll(split)

    def _positioned(self, split: KafkaSplit) -> _Ahead:
        one, now = (split.topic, split.partition), time.monotonic()
        idle = [other for other, ahead in self._ahead.items() if other != one and now - ahead.used > _FORGOTTEN]
        ahead = self._ahead.get(one)
        if ahead is None or ahead.at != split.start:
            if ahead is not None:
                idle.append(one)
            ahead = None
        self._forget(idle)
        if ahead is None:
            ahead = self._ahead[one] = _Ahead(split.start)
            self._consumer.incremental_assign([confluent_kafka.TopicPartition(*one, split.start)])
        ahead.used = now
        return ahead

    def _forget(self, partitions: Sequence[tuple[str, int]]) -> None:
        if partitions:
            self._consumer.incremental_unassign([confluent_kafka.TopicPartition(*one) for one in partitions])
            for one in partitions:
                del self._ahead[one]

    @staticmethod
    def _taken(ahead: _Ahead, end: int) -> list[Any]:
        waiting, found = ahead.messages, list[Any]()
        while waiting and len(found) < _ROWS and waiting[0].offset() < end:
            found.append(waiting.popleft())
        if found:
            ahead.at = found[-1].offset() + 1
        return found

    def _poll(self, split: KafkaSplit) -> None:
        first = self._consumer.poll(1.0)
        if first is None:
            return
        mine = (split.topic, split.partition)
        for message in [first, *self._consumer.consume(_ROWS, 0)]:
            error, one = message.error(), (message.topic(), message.partition())
            ahead = self._ahead.get(one)
            if error is None or error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                if ahead is not None and message.offset() >= ahead.reached:
                    ahead.reached = message.offset() + (error is None)
                    if error is None:
                        ahead.messages.append(message)
            elif not error.retriable() and error.name() not in ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT"):
                if one[0] is None or one == mine or (one[0] == split.topic and (one[1] is None or one[1] < 0)):
                    self._refuse(split, error)
                self._forget([one] if ahead is not None else [])
        self._forget([one for one, ahead in self._ahead.items() if one != mine and len(ahead.messages) > _AHEAD])

    def _refuse(self, split: KafkaSplit, error: Any) -> None:
        one = (split.topic, split.partition)
        self._forget([one])
        text = f"{split.describe()} cannot be read: {said(confluent_kafka.KafkaException(error))}"
        if error.name() in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            first, end = self._consumer.get_watermark_offsets(confluent_kafka.TopicPartition(*one), timeout=_PATIENCE)
            text = (
                f"{split.describe()} are not there any longer: the broker has {first} to {end}, and retention has removed what was before. "
                "Nothing of this epoch is committed. Begin with a new checkpoint to go on with what is there"
            )
        raise InputError(text)

    def close(self) -> None:
        self._consumer.close()


_consumers: dict[tuple[int, str], _Consumer] = {}
_making = threading.Lock()


def _name(settings: Mapping[str, Any]) -> tuple[int, str]:
    return os.getpid(), repr(sorted(settings.items(), key=str))


def messages(settings: Mapping[str, Any], split: KafkaSplit) -> Iterator[list[Any]]:
    """The messages of a range, in some lists."""
    if split.start == split.end:
        return
    name = _name(settings)
    with _making:
        consumer = _consumers.get(name) or _consumers.setdefault(name, _Consumer(settings))
        consumer.users += 1
    try:
        with consumer.lock:
            yield from consumer.read(split)
    finally:
        with _making:
            consumer.users -= 1
            is_left = not consumer.users and _consumers.get(name) is not consumer
        if is_left:
            consumer.close()


def close_consumers(settings: Mapping[str, Any]) -> None:
    """Rule 4."""
    with _making:
        consumer = _consumers.pop(_name(settings), None)
        is_free = consumer is not None and not consumer.users
    if consumer is not None and is_free:
        consumer.close()


class KafkaRows:
    """Makes batches of messages. fields: their columns; the last ones are metadata. unreadable: a further column, for values that do not fit."""

    def __init__(
        self,
        schema: pa.Schema,
        unreadable: str | None,
        value: str | Callable[[bytes], Mapping[str, Any]],
        metadata: Sequence[str],
        registry: str | Mapping[str, Any] | None,
    ) -> None:
        self._schema = schema if unreadable is None else schema.append(pa.field(unreadable, pa.string()))
        self._unreadable = unreadable
        own = [schema.field(at) for at in range(len(schema) - len(metadata))]
        self._own, self._metadata = pa.schema(own), [schema.field(name) for name in metadata]
        self._json = JsonRows(self._own, None, Settings("json")) if value == "json" else None
        self._is_text = value == "text"
        self._function = value if callable(value) else _avro(registry) if value == "avro" else None

    def batch(self, some: Sequence[Any]) -> pa.RecordBatch:
        bad: dict[int, str] = {}
        arrays = self._values(some, bad)
        arrays += [self._made(field, some) for field in self._metadata]
        if self._unreadable is not None:
            arrays.append(pa.array([bad.get(at) for at in range(len(some))] if bad else pa.nulls(len(some), pa.string()), pa.string()))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _values(self, some: Sequence[Any], bad: dict[int, str]) -> list[pa.Array]:
        values = [message.value() for message in some]
        if self._json is not None:
            block = (
                b"\n".join([b"{}" if value is None else value.replace(b"\n", b" ") if b"\n" in value else value for value in values])
                + b"\n"
            )
            found = self._json.quick(block)
            return found if found is not None and len(found[0]) == len(values) else self._one_by_one(some, self._json_row, bad)
        if self._function is not None:
            return self._one_by_one(some, self._function_row, bad)
        if not self._is_text:
            return [pa.array(values, pa.binary())]
        try:
            return [pa.array(values, pa.binary()).cast(pa.string())]
        except pa.ArrowInvalid:
            return self._one_by_one(some, lambda value: [value.decode()], bad)

    def _one_by_one(self, some: Sequence[Any], made: Callable[[bytes], Sequence[Any]], bad: dict[int, str]) -> list[pa.Array]:
        nothing = [None] * len(self._own)
        rows: list[Sequence[Any]] = []
        for at, message in enumerate(some):
            value = message.value()
            try:
                row = nothing if value is None else made(value)
                if self._json is None:
                    for one, field in zip(row, self._own, strict=True):
                        pa.scalar(one, field.type)
            except InputError:
                raise
            except Exception as error:
                row = (error.row if isinstance(error, BadLine) else None) or nothing
                text = f"topic {message.topic()!r}, partition {message.partition()}, offset {message.offset()}: {_why(error)}"
                shown = value.decode("utf-8", "replace")
                if self._unreadable is None:
                    raise InputError(
                        "a record of Kafka cannot be read; nothing of this epoch was committed. Send such records to a stream, with "
                        "compute(..., on_error=ms.DEAD_LETTER) for every computation that reads them, and pipeline.emit(pipeline.dead_letters(NAME), SINK) to "
                        f"keep them.\n  {text}: {shown[:300]}"
                    ) from error
                bad[at] = f"{shown}{BETWEEN}{BETWEEN}{text}"
            rows.append(row)
        return [pa.array(list(column), field.type) for column, field in zip(zip(*rows, strict=True), self._own, strict=True)]

    def _json_row(self, value: bytes) -> Sequence[Any]:
        assert self._json is not None
        row = self._json.row(value.replace(b"\n", b" "))
        if row is None:
            raise ValueError("it is empty")
        return row

    def _function_row(self, value: bytes) -> Sequence[Any]:
        assert self._function is not None
        found = self._function(value)
        if not isinstance(found, Mapping):
            raise HookError(f"the function of value= gave {type(found).__name__}, not a dict")
        return [found.get(field.name) for field in self._own]

    @staticmethod
    def _made(field: pa.Field, some: Sequence[Any]) -> pa.Array:
        match field.name.removeprefix("kafka_"):
            case "key":
                keys = [message.key() for message in some]
                try:
                    return pa.array(keys, pa.binary()).cast(pa.string())
                except pa.ArrowInvalid:
                    return pa.array([None if key is None else key.decode("utf-8", "backslashreplace") for key in keys], pa.string())
            case "topic":
                return pa.repeat(pa.scalar(some[0].topic(), field.type), len(some))
            case "partition":
                return pa.repeat(pa.scalar(some[0].partition(), field.type), len(some))
            case "source":
                return pa.repeat(f"{some[0].topic()}-{some[0].partition()}", len(some))
            case "offset":
                return pa.array([message.offset() for message in some], field.type)
            case "timestamp":
                times = pa.array([message.timestamp()[1] for message in some], pa.int64())
                return pc.multiply(pc.if_else(pc.less(times, 0), None, times), 1000).cast(field.type)
            case "headers":
                return pa.array([_headers(message) for message in some], field.type)
        offsets = pa.array([message.offset() for message in some], pa.int64()).cast(pa.string())  # id
        return pc.binary_join_element_wise(f"{some[0].topic()}-{some[0].partition()}", offsets, "-")


def _headers(message: Any) -> list[tuple[str, str | None]]:
    return [
        (name, None if value is None else value.decode("utf-8", "backslashreplace"))
        for name, value in dict(message.headers() or ()).items()
    ]


def _why(error: Exception) -> str:
    return error.what if isinstance(error, BadLine) else f"{type(error).__name__}: {error}"


def _avro(registry: str | Mapping[str, Any] | None) -> Callable[[bytes], Any]:
    with needed("ms.sources.kafka(value='avro')"):
        from confluent_kafka.schema_registry import SchemaRegistryClient
        from confluent_kafka.schema_registry.avro import AvroDeserializer
        from confluent_kafka.schema_registry.error import SchemaRegistryError
    settings = {"url": registry} if isinstance(registry, str) else dict(registry or {})
    deserializer = AvroDeserializer(SchemaRegistryClient.new_client(settings))

    def found(value: bytes) -> Any:
        try:
            return deserializer(value, None)
        except Exception as error:
            if not isinstance(error, SchemaRegistryError) and not type(error).__module__.startswith("httpx"):
                raise
            # the record may be right
            raise InputError(f"the schema registry {settings.get('url')} does not give the schema of a value: {error}") from error

    return found
