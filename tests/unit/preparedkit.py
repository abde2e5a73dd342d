"""The sink that prepares before the manifest (`sinks/two_phase.py`, the real one) under resident faults, against a model of what stands behind it.

The model keeps the connector's contract: a worker has one name, one connection and at most one open transaction; to connect cuts off who was there; a lower
fence is refused; what was not prepared is gone with its connection.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.connector.wire import messages
from millstream.errors import SinkError, SinkRefused
from millstream.simulation.fakes import PublishedRows
from millstream.simulation.simulated_run import Simulation
from millstream.sinks.base import DriverContext, Part, SinkRow, TaskContext
from millstream.sinks.two_phase import TwoPhaseSink, _fence


class Stats(msgspec.Struct):
    connections: int = 1
    commits: int = 0


class Line:
    """What the sink knows of one worker."""

    def __init__(self) -> None:
        self.fence = 0
        self.open: tuple[str, bytes] | None = None
        self.committed: list[bytes] = []
        self.client: Client | None = None


class Client:
    """One connection."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.done = Stats()
        self.written = b""
        line.client = self
        self.uncommitted: tuple[str, ...] = () if line.open is None else (line.open[0],)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        pass

    def live(self) -> Line:
        if self.line.client is not self:
            raise SinkError("another connection has this worker's name now")
        return self.line

    def stats(self) -> Stats:
        return self.done

    def write(self, data: bytes) -> None:
        assert not self.uncommitted, "what is open is to be resolved first"
        self.live()
        self.written += data

    def prepare(self, txn: str) -> bool:
        self.live().open = (txn, self.written)
        return True

    def resolve(self, txn: str, commit: bool) -> None:
        line = self.live()
        assert line.open is not None and line.open[0] == txn
        if commit:
            line.committed.append(line.open[1])
            self.done.commits += 1
        line.open, self.uncommitted = None, ()

    def settle(self, txn: str, commit: bool) -> bool:
        self.line.client = self
        self.uncommitted = () if self.line.open is None else (self.line.open[0],)
        if not self.uncommitted:
            return False
        if txn not in self.uncommitted:
            raise SinkError(f"transaction {self.uncommitted[0]!r} is open at the sink, not {txn!r}")
        self.resolve(txn, commit)
        return True


def encode(row: Any) -> bytes:
    return pickle.dumps((row.key, row.timestamp, row.value, row.id))


class ModelledSink(TwoPhaseSink):
    """The real one, connected to the model."""

    def __init__(self, lines: dict[str, Line]) -> None:
        super().__init__("127.0.0.1:1", encode=encode, timeout="1s", patience="1s")
        self.lines = lines

    def _connect(self, worker: str, token: str, epoch: int, driver: bool, tries: int = 0) -> Any:
        line, fence = self.lines.setdefault(worker, Line()), _fence(token, epoch, driver, tries)
        if fence < line.fence:
            raise SinkRefused(f"fence {fence} is lower than {line.fence}", messages.FENCE)
        line.fence = fence
        return Client(line)


class PreparedRows(PublishedRows):
    """What stands behind the sink of one stream. Every run has its own end of it, as processes do."""

    takes_back = True

    def __init__(self, storage: Any) -> None:
        super().__init__(storage)
        self.lines: dict[str, Line] = {}
        self.ends: dict[str, ModelledSink] = {}

    def end(self, token: str) -> ModelledSink:
        return self.ends.setdefault(token, ModelledSink(self.lines))

    def stage(self, context: TaskContext, rows: Sequence[SinkRow]) -> Part:
        return self.end(context.token).stage(context, rows)

    def prepare(self, context: DriverContext, epoch: int, parts: Sequence[Part]) -> None:
        self.end(context.token).prepare(context, epoch, parts)

    def commit(self, context: DriverContext, epoch: int, parts: Sequence[Part]) -> None:
        self.end(context.token).commit(context, epoch, parts)

    def rows(self, emission: str) -> list[tuple[Any, int, Any, str]]:
        found = []
        for line in self.lines.values():
            for data in line.committed:
                stream = io.BytesIO(data)
                while stream.tell() < len(data):
                    found.append(pickle.load(stream))
        return found

    @property
    def left_open(self) -> list[str]:
        """Transactions that nobody has decided."""
        return [line.open[0] for line in self.lines.values() if line.open is not None]


class PreparedSimulation(Simulation):
    """A resident run all of whose streams go to such sinks."""

    def _ledger(self) -> PublishedRows:
        return PreparedRows(self.storage)
