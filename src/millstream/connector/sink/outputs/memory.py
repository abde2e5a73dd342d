"""Outputs in memory: the contract of `base` in its shortest form."""

from __future__ import annotations

import threading

import msgspec

from millstream.connector.sink.outputs.base import Output
from millstream.connector.sink.protocol.ledger import Open, Recovered


class MemoryOutputs:
    """Outputs in memory, for tests and for trying things out: survives connections, not the process.

    >>> outputs = MemoryOutputs()
    >>> worker = outputs("w1")
    >>> worker.begin(0); worker.append(b"abc"); worker.prepare("t1", 0, 3); worker.commit("t1", 3)
    >>> outputs.committed("w1")
    b'abc'
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: dict[str, MemoryOutput] = {}
        self.archived: list[tuple[str, bytes]] = []

    def __call__(self, worker: str) -> MemoryOutput:
        with self._lock:
            return self._workers.setdefault(worker, MemoryOutput(self, worker))

    def committed(self, worker: str) -> bytes:
        output = self(worker)
        return bytes(output.data[: output.recovered.committed])


class MemoryOutput(Output):
    def __init__(self, owner: MemoryOutputs, worker: str) -> None:
        self._owner, self._worker = owner, worker
        self.data = bytearray()
        self.recovered = Recovered()

    def recover(self) -> Recovered:
        del self.data[self.recovered.held :]
        return self.recovered

    def begin(self, offset: int) -> None:
        assert offset == len(self.data) == self.recovered.committed

    def begin_next(self, offset: int) -> bool:
        assert self.recovered.open is not None and offset == len(self.data) == self.recovered.open.end
        return True

    def append(self, data: bytes) -> None:
        self.data += data

    def prepare(self, txn: str, start: int, end: int) -> None:
        assert end == len(self.data)
        self.recovered = msgspec.structs.replace(self.recovered, open=Open(txn, end))

    def veto(self, txn: str, why: str) -> None:
        self.recovered = msgspec.structs.replace(self.recovered, open=Open(txn, self.recovered.committed, why))

    def commit(self, txn: str, end: int) -> None:
        self.recovered = msgspec.structs.replace(self.recovered, committed=end, open=None, last=txn)

    def rollback(self, txn: str, committed: int) -> None:
        del self.data[committed:]
        self.recovered = msgspec.structs.replace(self.recovered, open=None)

    def seal(self, fence: int) -> None:
        self.recovered = msgspec.structs.replace(self.recovered, fence=fence)

    def same(self, offset: int, data: bytes) -> bool:
        return self.data[offset : offset + len(data)] == data

    def archive(self) -> None:
        self._owner.archived.append((self._worker, bytes(self.data[: self.recovered.committed])))
        self.data, self.recovered = bytearray(), Recovered()
