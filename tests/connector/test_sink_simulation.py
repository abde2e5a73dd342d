"""Two-phase commit against a real sink, with faults drawn by lot: what is committed is what the model says, after every run.

The model is an honest coordinator: it writes its decision down before it tells anybody, commits only if all voted yes, and tells everybody until it
is heard. Sinks are processes that are killed with SIGKILL, at any moment and inside any call of their output; connections break at any
step, votes get lost, bytes go missing, others abort, zombies come back, the sink stands still and wakes up with a backlog. Some workers do not wait
for phase two, and send what their next transaction begins with.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from sinkkit import Nursery, SinkProcess
from sinkproc import CALLS

from effort import seeds
from millstream.connector import WorkerClient
from millstream.connector.sink.outputs import files
from millstream.connector.wire import messages as m
from millstream.errors import ProtocolError, SinkError

SEEDS = 100
GROUPS = 10


class Mismatch(AssertionError):
    """The sink's committed bytes are not the model's."""


class Worker:
    """One participant and what the model knows of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.committed = b""
        self.client: WorkerClient | None = None
        self.zombie: WorkerClient | None = None
        self.early: tuple[WorkerClient | None, bytes] = (None, b"")  # sent between the phases, on this connection

    def drop(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None


class Simulation:
    """One run, from one seed."""

    def __init__(self, sink: SinkProcess, seed: int, epochs: int = 4, gaps: float = 0.03) -> None:
        self.sink, self.epochs, self.gaps = sink, epochs, gaps
        self.random = random.Random(seed)
        self.workers = [Worker(f"app-w-{number}/{seed}") for number in range(self.random.choice([1, 1, 2, 3]))]
        self.faults = 0
        self.decided = ("", False)  # the last transaction, and whether it commits: written down before anybody is told

    # ---- the coordinator

    def run(self) -> None:
        self.start()
        epoch = 0
        for _ in range(self.epochs * 4):
            if epoch == self.epochs:
                break
            txn = f"c_id={epoch}"
            written = {worker.name: worker.early[1] + self.bytes() for worker in self.workers}
            self.decided = (txn, False)
            commit = all([self.prepared(worker, txn, written[worker.name]) for worker in self.workers])
            if self.chance(0.15):  # another participant's abort
                commit = False
            self.decided = (txn, commit)
            if commit:  # from here on it is decided
                for worker in self.workers:
                    worker.committed += written[worker.name]
            for worker in self.workers:
                self.told(worker, txn, commit)
            self.check()
            epoch += commit
        for worker in self.workers:
            worker.drop()

    def prepared(self, worker: Worker, txn: str, data: bytes) -> bool:
        """Whether a worker wrote its bytes and got a yes. Whatever goes wrong here is a no."""
        try:
            client = self.connected(worker)
            at = len(worker.early[1]) if worker.early[0] is client else 0
            worker.early = (None, b"")
            while at < len(data):
                self.maybe_fault(worker)
                size = self.random.randint(1, len(data))
                if self.chance(self.gaps):  # produced, and never sent
                    self.faults += 1
                    client._session.write(len(data[at : at + size]))
                else:
                    client.write(data[at : at + size])
                    if self.chance(0.5):
                        client.flush()
                at += size
            self.maybe_fault(worker)
            if self.chance(0.04):  # the vote gets lost
                self.faults += 1
                client.flush()
                client._send(client._session.prepare(txn))
                worker.drop()
                return False
            vote = client.prepare(txn)
            self.maybe_fault(worker)
            return vote
        except (SinkError, ProtocolError):
            worker.drop()
            return False

    def told(self, worker: Worker, txn: str, commit: bool) -> None:
        """Phase two, until it is heard."""
        for _ in range(20):
            try:
                self.maybe_fault(worker)
                if worker.client is not None and worker.client.state == "Voted":
                    early = self.goes_ahead(worker.client)
                    worker.client.finish(txn, commit)
                    if commit:
                        worker.early = (worker.client, early)
                        worker.client._session.offset += len(early)
                    if self.chance(0.5):
                        self.maybe_fault(worker)
                        worker.client.confirm()
                        return
                worker.drop()
                self.connected(worker)
                return
            except SinkError:
                worker.drop()
        raise AssertionError("phase two was never heard")

    def goes_ahead(self, client: WorkerClient) -> bytes:
        """What a worker sends between the phases."""
        data = self.bytes() if self.chance(0.3) else b""
        if data:
            client._send([m.Message(m.DATA_STREAM, client._session.offset, data)])
        return data

    def connected(self, worker: Worker) -> WorkerClient:
        """A connection with nothing open. What is open from before is of this transaction, or one that nobody decided to commit."""
        if worker.client is not None and worker.client.state == "Ready":
            return worker.client
        worker.drop()
        self.revived()
        worker.client = WorkerClient.connect(self.sink.address, worker.name, timeout="5s", patience="0.5s")
        for txn in worker.client.uncommitted:
            worker.client.resolve(txn, (txn, True) == self.decided)
        if worker.client.offset != len(worker.committed):
            raise Mismatch(f"{worker.name}: the sink is at {worker.client.offset}, the model at {len(worker.committed)}")
        return worker.client

    # ---- the nemesis

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def bytes(self) -> bytes:
        size = self.random.choice([0, 3, 40, 400, 400, 300_000])
        return bytes(self.random.choices(b"abcdefg\n", k=min(size, 400))) * max(1, size // 400)

    def start(self) -> None:
        options = {}
        if self.chance(0.3):
            options["kill"] = [
                self.random.choice([*CALLS, "begin_next"]),
                self.random.choice(["before", "after"]),
                self.random.randint(1, 6),
            ]
        self.sink.start(**options)

    def revived(self) -> None:
        if not self.sink.is_alive:
            self.faults += 1
            self.start()

    def maybe_fault(self, worker: Worker) -> None:
        if not self.chance(0.06):
            return
        self.faults += 1
        fault = self.random.choice(["kill", "kill", "close", "zombie", "stall"])
        if fault == "kill":
            self.sink.kill()
        elif fault == "close":
            worker.drop()
            raise SinkError("the test dropped the connection")
        elif fault == "zombie":  # an earlier attempt: it is fenced when the worker connects again, and its bytes must not count
            worker.zombie, worker.client = worker.client, None
            if worker.zombie is not None:
                self.connected(worker)
                try:
                    worker.zombie.write(b"ZOMBIE" * 50_000)
                    worker.zombie.prepare("zombie")
                except (SinkError, ProtocolError):
                    pass
                worker.zombie.close()
            raise SinkError("the test let another connection take over")
        elif self.sink.is_alive:
            self.sink.signal(signal.SIGSTOP)
            try:
                if worker.client is not None and worker.client.state == "Ready":
                    worker.client._socket.setblocking(False)  # type: ignore[union-attr]
                    for _ in range(20):  # a backlog, until its buffers are full
                        worker.client.write(b"BACKLOG\n" * 40_000)
            except SinkError:
                pass
            finally:
                self.sink.signal(signal.SIGCONT)
            worker.drop()
            raise SinkError("the test left a backlog behind")

    # ---- the checker

    def check(self) -> None:
        """Readers see what the model says, whether the sink lives or not."""
        for worker in self.workers:
            found = b"".join(files.read(self.sink.folder, worker.name)) if worker.name in files.workers(self.sink.folder) else b""
            if found != worker.committed:
                raise Mismatch(f"{worker.name}: {len(found)} bytes are committed, the model has {len(worker.committed)}")


def simulated(nursery: Nursery, folder: Path, seed: int, gaps: float = 0.03, **options: object) -> int:
    sink = SinkProcess(nursery, folder / str(seed), **options)
    try:
        simulation = Simulation(sink, seed, gaps=gaps)
        simulation.run()
        return simulation.faults
    finally:
        sink.kill()


@pytest.mark.crash
@pytest.mark.parametrize("group", range(GROUPS))
def test_model_and_sink_agree_after_every_run(nursery: Nursery, tmp_path: Path, group: int) -> None:
    tried = seeds(SEEDS)[group::GROUPS]
    assert sum(simulated(nursery, tmp_path, seed) for seed in tried) or len(tried) < 3, "no fault was drawn"


@pytest.mark.crash
@pytest.mark.parametrize(
    "guard", ["forgets promises", "keeps what is rolled back", "commits at phase one", "commits what came between the phases"]
)
def test_negative_twin_with_the_guard_off_the_model_disagrees(nursery: Nursery, tmp_path: Path, guard: str) -> None:
    for seed in range(10):
        try:
            simulated(nursery, tmp_path, seed, broken=guard)
        except (AssertionError, ProtocolError, SinkError):
            return
    pytest.fail("nobody noticed")
