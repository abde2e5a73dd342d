"""A sink into a table of the state service: one value for each key, exactly once.

Rules
1. A task stages its rows under a transaction of its own: durable at the nodes, and not visible. Of several rows with one key the last counts.
2. Before the manifest the driver asks every partition whether what the tasks staged is there, in its own fence: a replaced run stages and decides nothing
   from then on.
3. After the manifest it decides: in each partition all rows of an epoch become visible at one position. To decide again is harmless, so after a crash
   the next run does so.
4. What attempts that failed have left is swept now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from millstream.core.keys import key_bytes
from millstream.core.time import duration
from millstream.errors import DamageError, DefinitionError, Fenced, FencedRun, ServiceError, SinkError
from millstream.service.messages import Decision
from millstream.sinks.base import DriverContext, Part, Sink, SinkRow, TaskContext
from millstream.sinks.files import encode_each, json_bytes
from millstream.state.fencing import run_number

if TYPE_CHECKING:
    from millstream.network import Tls
    from millstream.service.blocking import Client

_SWEEP_EVERY = 64  # epochs
_ROW = 1 << 19  # bytes of a key and its value

_ONE_HISTORY = (
    " A newer run, or another checkpoint of a pipeline with this name, writes there: a table takes one history of a stream. Give a new checkpoint a table of "
    "its own, or another name to the pipeline."
)


class ServiceSinkStats(msgspec.Struct):
    """What a driver has made visible since the start of the run."""

    epochs: int = 0
    rows: int = 0


class ServiceSink(Sink):
    """A sink into a table of the state service (`millstream serve`): the last value of each key, exactly once.

    encode: what a row becomes, a key and a value as bytes (None removes the key); by default `entry_of`. timeout: how long to try while nodes are away,
    before the epoch fails. The nodes must be reachable from every worker and from the driver. docs/service.md tells more.

    >>> service("127.0.0.1:7400", "counts").describe()
    "table 'counts' at 127.0.0.1:7400"
    """

    def __init__(
        self,
        address: str | Sequence[str],
        table: str,
        *,
        cookie: str = "",
        tls: Tls | None = None,
        encode: Callable[[SinkRow], tuple[bytes, bytes | None]] | None = None,
        timeout: str | int = "30s",
    ) -> None:
        self.addresses = [address] if isinstance(address, str) else list(address)
        if not self.addresses:
            raise DefinitionError("give the address of a node, such as 127.0.0.1:7400")
        duration(timeout)
        self.table, self.cookie, self.tls, self.encode, self.timeout = table, cookie, tls, encode, timeout
        self._swept = -_SWEEP_EVERY
        self._stats = ServiceSinkStats()
        #: One, once it is needed, for all tasks of a process. It is pickled as its settings.
        self._connected: dict[str, Client] = {}

    def stats(self) -> ServiceSinkStats:
        return msgspec.structs.replace(self._stats)

    def describe(self) -> str:
        return f"table {self.table!r} at {', '.join(self.addresses)}"

    def check(self) -> None:
        try:
            if not self._client().partitions():
                raise SinkError(f"{self.describe()} has no partitions: add one (millstream partitions add)")
        except ServiceError as error:
            raise SinkError(f"{self.describe()} cannot be reached: {error}") from error

    def _client(self) -> Client:
        from millstream.service.blocking import Client

        if not self._connected:
            client = Client(self.addresses, self.table, cookie=self.cookie, tls=self.tls, timeout=self.timeout)
            self._connected.setdefault(self.table, client)
        return self._connected[self.table]

    def close(self) -> None:
        for client in self._connected.values():
            client.close()

    def stage(self, context: TaskContext, rows: Sequence[SinkRow]) -> Part:
        label = f"{context.pipeline}/{context.emission}/{context.shard}"  # whose transactions these are, at the table
        txn = f"{label}|{run_number(context.token)}|{context.epoch}|{context.attempt}"
        entries = dict(encode_each(self, context, rows, self._entry))
        try:
            counts = self._client().stage(entries.items(), txn)
        except (ServiceError, DamageError) as error:
            raise self._failed(context.emission, error) from error
        return Part(rows=len(rows), staged=txn, own={"txn": txn, "partitions": {str(id): count for id, count in counts.items()}})

    def _entry(self, row: SinkRow) -> tuple[bytes, bytes | None]:
        key, value = (self.encode or entry_of)(row)
        if len(key) + len(value or b"") > _ROW:
            raise ValueError(f"it comes to {len(key) + len(value or b''):,} bytes, and {_ROW:,} are allowed")
        return key, value

    def prepare(self, context: DriverContext, epoch: int, parts: Sequence[Part]) -> None:
        for partition, counts in _by_partition(parts).items():
            found = self._decide(context, partition, list(counts), Decision.CHECK)
            for (txn, count), there in zip(counts.items(), found, strict=True):
                if there != count:
                    raise SinkError(
                        f"stream {context.emission!r} into {self.describe()}: {count} rows were staged in partition {partition} as {txn!r}, "
                        f"and {there} are there. Epoch {epoch} was not committed; run again."
                    )

    def commit(self, context: DriverContext, epoch: int, parts: Sequence[Part]) -> None:
        for partition, counts in _by_partition(parts).items():
            try:
                done = self._decide(context, partition, list(counts), Decision.COMMIT)
            except SinkError as error:
                raise SinkError(
                    f"{error} Epoch {epoch} is committed; its rows wait at the sink, and the next run decides them there."
                ) from error
            self._stats.rows += sum(done)
        self._stats.epochs += 1

    def sweep(self, context: DriverContext, before_epoch: int, keep: Sequence[str]) -> None:
        if before_epoch < 0 or before_epoch - self._swept < _SWEEP_EVERY:
            return
        self._swept = before_epoch
        below = f"{context.pipeline}/{context.emission}/|{run_number(context.token)}|{before_epoch}|"
        endangered = [txn for txn in keep if int(txn.split("|")[-2]) < before_epoch]
        for partition in self._client().partitions():
            self._decide(context, partition, [below], Decision.SWEEP, endangered)

    def _decide(self, context: DriverContext, partition: int, txns: Sequence[str], how: Decision, keep: Sequence[str] = ()) -> list[int]:
        try:
            return self._client().decide(partition, txns, how, run_number(context.token), keep)
        except (ServiceError, DamageError) as error:
            raise self._failed(context.emission, error) from error

    def _failed(self, stream: str, error: Exception) -> SinkError:
        found = SinkError(f"stream {stream!r} into {self.describe()}: {error}.{_ONE_HISTORY if isinstance(error, FencedRun) else ''}")
        if isinstance(error, FencedRun):
            found.exit_code = Fenced.exit_code
        return found


def _by_partition(parts: Sequence[Part]) -> dict[int, dict[str, int]]:
    """The transactions of an epoch in each partition, and how many rows each has there."""
    found: dict[int, dict[str, int]] = {}
    for part in parts:
        for partition, count in part.own["partitions"].items():
            found.setdefault(int(partition), {})[part.own["txn"]] = count
    return found


def entry_of(row: SinkRow) -> tuple[bytes, bytes | None]:
    """What a row becomes unless told otherwise: the key's text, and the value as JSON; a value of None removes the key.

    >>> entry_of(SinkRow("tea", 0, {"count": 3})), entry_of(SinkRow("tea", 0, None))
    ((b'tea', b'{"count":3}'), (b'tea', None))
    """
    return key_bytes(row.key), None if row.value is None else json_bytes(row.value)


service = ServiceSink
