"""A sink over TCP that commits with the epoch, in two phases: any program that speaks the connector protocol, such as `millstream sink`.

Rules
1. Each shard of a stream is a worker at the sink. A task connects under its worker's name, rolls back what an earlier attempt has left open there,
   streams its rows, and ends phase one: the sink has voted yes, and holds the rows durably and invisibly. A no, or a sink that is away for longer than
   `patience`, fails the epoch; nothing is lost.
2. Before the manifest the driver takes over the names and looks: every transaction that is about to be committed is open at the sink, and nobody who
   comes later can take it back, because the driver's fence is higher than the tasks'.
3. After the manifest the driver sends phase two, and waits until it is carried out. After a crash the next run does so: what the manifest names is
   committed, anything else that is found open is rolled back.
4. Fences grow with the run, the epoch and the tries of a resident epoch, so neither a zombie task nor a replaced driver gets hold of a name.
5. What a run has prepared is rolled back by the tasks of the next one, which may have planned the epoch with other rows. So an older run must be unable to
   commit by then: `takes_back`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.core.time import Duration, duration
from millstream.errors import SinkError, SinkRefused
from millstream.sinks.base import DriverContext, Part, Sink, SinkRow, TaskContext
from millstream.sinks.files import encode_each, json_bytes
from millstream.state.fencing import run_number

if TYPE_CHECKING:
    from millstream.connector import WorkerClient
    from millstream.network import Tls

_TRIES = 1 << 6  # per epoch; the last one is the driver's
_EPOCHS = 1 << 34  # per run


def _fence(token: str, epoch: int, driver: bool, tries: int = 0) -> int:
    """Rule 4.

    >>> fences = [_fence("2-a", 5, False), _fence("2-a", 5, False, 1), _fence("2-a", 5, True), _fence("2-a", 6, False), _fence("3-b", 5, False)]
    >>> sorted(fences) == fences
    True
    """
    return (run_number(token) * _EPOCHS + epoch) * _TRIES + (_TRIES - 1 if driver else min(tries, _TRIES - 2))


class TwoPhaseStats(msgspec.Struct):
    """What a driver has committed at a sink. A transaction that a crash left open, and that was found and committed later, counts then."""

    epochs: int = 0
    commits: int = 0
    rows: int = 0
    connections: int = 0


@dataclass(eq=False)
class TwoPhaseSink(Sink):
    """A sink over TCP that commits with the epoch: exactly once in whatever stands behind `millstream sink`, or any program that speaks the protocol.

    encode: what a row becomes, by default a JSON line with key, timestamp and value. timeout: for every answer of the sink. patience: how long to try while
    it is away, before the epoch fails. The sink must be reachable from every worker and from the driver. docs/connector.md tells more.

    >>> connector("127.0.0.1:7402", cookie="secret").describe()
    'the sink at 127.0.0.1:7402'
    """

    address: str
    _: KW_ONLY
    cookie: str = ""
    tls: Tls | None = None
    encode: Callable[[SinkRow], bytes] | None = None
    timeout: Duration = "30s"
    patience: Duration = "30s"
    takes_back = True

    def __post_init__(self) -> None:
        duration(self.timeout), duration(self.patience)  # which refuse what has no unit
        self._open: dict[str, WorkerClient] = {}  # driver: names taken over between the phases
        self._stats = TwoPhaseStats()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}, "_stats": TwoPhaseStats()}

    def stats(self) -> TwoPhaseStats:
        return msgspec.structs.replace(self._stats)

    def describe(self) -> str:
        return f"the sink at {self.address}"

    def check(self) -> None:
        from millstream.network import parse_address

        parse_address(self.address)

    def _connect(self, worker: str, token: str, epoch: int, driver: bool, tries: int = 0) -> WorkerClient:
        from millstream.connector import WorkerClient
        from millstream.connector.wire import messages

        try:
            return WorkerClient.connect(
                self.address,
                worker,
                cookie=self.cookie,
                tls=self.tls,
                program=f"millstream-{worker.split('-w-')[0]}",
                fence=_fence(token, epoch, driver, tries),
                timeout=self.timeout,
                patience=self.patience,
            )
        except SinkRefused as error:
            if error.reason != messages.FENCE:
                raise
            raise SinkRefused(
                f"{error}. Worker {worker!r} belongs to a newer run, or to another checkpoint of a pipeline with this name: a sink takes "
                f"one history. Give a new checkpoint a sink of its own (another directory or table), or another name to the pipeline.",
                error.reason,
            ) from error

    def stage(self, context: TaskContext, rows: Sequence[SinkRow]) -> Part:
        worker = f"{context.pipeline}-w-{context.emission}-id-{context.shard}"
        data = b"".join(encode_each(self, context, rows, self.encode or (lambda row: json_bytes(row) + b"\n")))
        with self._connect(worker, context.token, context.epoch, driver=False, tries=context.tries) as client:
            while client.uncommitted:
                client.resolve(client.uncommitted[0], commit=False)
            client.write(data)
            transaction = f"{worker}:c_id={context.epoch}.{context.attempt}"
            if not client.prepare(transaction):
                raise SinkError(
                    f"stream {context.emission!r} into {self.describe()}: the sink voted no on {len(rows)} rows of epoch {context.epoch} (worker {worker!r}). "
                    f"Nothing was committed; see what the sink says, and run again."
                )
        digest = blake2b(data, digest_size=16).hexdigest()
        return Part(rows=len(rows), own={"worker": worker, "transaction": transaction, "digest": digest})

    def prepare(self, context: DriverContext, epoch: int, parts: Sequence[Part]) -> None:
        self._release()
        for part in parts:
            client = self._open[part.own["worker"]] = self._connect(part.own["worker"], context.token, epoch, driver=True)
            if part.own["transaction"] not in client.uncommitted:
                self._release()
                raise SinkError(
                    f"stream {context.emission!r} into {self.describe()}: transaction {part.own['transaction']!r} was prepared by a task and is gone. "
                    f"Epoch {epoch} was not committed; run again."
                )

    def commit(self, context: DriverContext, epoch: int, parts: Sequence[Part]) -> None:
        try:
            for part in parts:
                connect = partial(self._connect, part.own["worker"], context.token, epoch, driver=True)
                client = self._open.pop(part.own["worker"], None) or connect()
                try:
                    self._commit_part(client, context, epoch, part)
                except SinkError as error:
                    if isinstance(error, SinkRefused) or context.instead:
                        raise
                    self._commit_part(
                        connect(), context, epoch, part
                    )  # the sink went away since `prepare`: it may, for as long as `patience`
            self._stats.epochs += 1
        except SinkError as error:
            raise SinkError(
                f"{error} Epoch {epoch} is committed; its rows wait at the sink, and the next run commits them there."
            ) from error
        finally:
            self._release()

    def _commit_part(self, client: WorkerClient, context: DriverContext, epoch: int, part: Part) -> None:
        with client:
            if part.own["transaction"] in client.uncommitted:
                client.resolve(part.own["transaction"], commit=True)
            elif context.instead:
                self._stand_in(client, part, context.instead, epoch)
            elif not context.redo:
                client.settle(part.own["transaction"], commit=True)
            done = client.stats()
            self._stats.connections += done.connections
            self._stats.commits += done.commits
            self._stats.rows += part.rows if done.commits else 0

    def _stand_in(self, client: WorkerClient, part: Part, ours: Sequence[Part], epoch: int) -> None:
        """An outgoing run has committed the epoch after this one's tasks rolled its transaction back: the same rows wait in ours."""
        for mine in (one.own for one in ours):
            is_same = (mine["worker"], mine["digest"]) == (part.own["worker"], part.own["digest"])
            if is_same and mine["transaction"] in client.uncommitted:
                return client.resolve(mine["transaction"], commit=True)
        raise SinkError(
            f"{self.describe()}: epoch {epoch} was committed by a run that was being replaced, whose {part.rows} rows of worker {part.own['worker']!r} are no "
            f"longer at the sink, and this run's are not the same. They have to be written there by hand."
        )

    def _release(self) -> None:
        for client in self._open.values():
            client.close()
        self._open = {}


connector = TwoPhaseSink
