"""A resident run, put together: planner, coordinator, compaction, the runner of its tasks, and the epochs. With Spark or without."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from millstream.core.guards import ALL_GUARDS, Guards
from millstream.engine.columns.keying import Keying
from millstream.engine.compaction_orders import TaskCompaction
from millstream.engine.epochs import Epochs
from millstream.engine.metrics import Metrics
from millstream.engine.program import Program
from millstream.engine.resident import wire
from millstream.engine.resident.coordinator import Coordinator
from millstream.engine.resident.partitioning import ArrowRows
from millstream.engine.resident.runner import RemoteTasks, ResidentRunner
from millstream.engine.resident.worker import Setup
from millstream.engine.source_planner import SourcePlanner
from millstream.engine.upkeep import BackgroundUpkeep
from millstream.engine.worker_process import RunPlace
from millstream.faults import CrashPoints
from millstream.sources.splits import PlannedReader, SplitPlan
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog


class ResidentParts(NamedTuple):
    """The parts of a run. Tasks come when it is started."""

    epochs: Epochs[Mapping[str, SplitPlan]]
    planner: SourcePlanner
    coordinator: Coordinator
    compaction: TaskCompaction
    setup: Setup

    def start(self, begin: Callable[[int, Sequence[int]], None]) -> None:
        """Has tasks come. begin: runs a job (its number) whose tasks have the setup and fill the slots given, until it ends."""
        self.coordinator.start(begin, self.compaction)


def assemble(
    program: Program,
    *,
    log: ManifestLog,
    latest: Manifest | None,
    token: str,
    place: RunPlace,
    slots: int,
    readers: Mapping[str, PlannedReader],
    keyings: Mapping[str, Keying],
    host: str,
    remote: bool,
    bounded: bool,
    pickled: Callable[[Any], bytes],
    ended: Callable[[bool], None] = lambda joined: None,
    session: Callable[[], Any] = lambda: None,
    points: CrashPoints | None = None,
    guards_off: str = "",
    say: Callable[[str], None] = lambda text: None,
) -> ResidentParts:
    """host: where the driver listens; remote: tasks may be on other hosts, so connections are encrypted. pickled: how programs, readers and splits travel."""
    guards = Guards.without(guards_off) if guards_off else ALL_GUARDS
    metrics, stopping = Metrics(), threading.Event()
    planner = SourcePlanner(readers, log.storage, token, latest, bounded, guards)
    certificate, key = wire.make_certificate() if remote else (b"", b"")
    cookie = secrets.token_bytes(32)
    coordinator = Coordinator(slots, place.shards, host, cookie, tls=wire.tls_contexts(certificate, key)[0], say=say)
    compaction = TaskCompaction(token, coordinator.send_compaction)
    blob = pickled(program)
    setup = Setup(
        address=coordinator.address,
        cookie=cookie,
        slots=slots,
        digest=hashlib.blake2b(blob, digest_size=16).hexdigest(),
        program=blob,
        place=place,
        sources=[(pickled(reader), pickled(keyings[name])) for name, reader in readers.items()],
        certificate=certificate,
        private_key=key,
        guards_off=guards_off,
    )
    rows = ArrowRows(program.topology, place.shards, slots)
    tasks = RemoteTasks(coordinator, rows, slots, readers, keyings, metrics, pickled, ended)
    epochs: Epochs[Mapping[str, SplitPlan]] = Epochs(
        program,
        place.shards,
        log,
        latest,
        token,
        runner=ResidentRunner(tasks, guards, stopping.is_set),
        planner=planner,
        compaction=compaction,
        upkeep=BackgroundUpkeep(),
        guards=guards,
        points=points or CrashPoints(),
        session=session,
        metrics=metrics,
        stopping=stopping,
    )
    return ResidentParts(epochs, planner, coordinator, compaction, setup)
