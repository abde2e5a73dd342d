"""MillWheel §6.1: delivery guarantees. Each test names the statement it checks; each has a negative twin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from paperkit import Gather, Sum, dice, echoes, fails_without, holds, inject, key, rows, simulate, states, sums

import millstream as ms
from millstream.engine import publishing
from millstream.errors import DamageError
from millstream.faults import POINTS
from millstream.simulation.fault import Fault
from millstream.simulation.schedules import make_plan
from millstream.simulation.simulated_run import InputPlan
from millstream.state import gc
from millstream.state.gc import named_by
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog, manifest_name
from millstream.state.memory_storage import MemoryStorage
from sparklog import Acknowledgement, SparkLogSimulation

# §6.1.1: the steps of an exactly-once delivery, and their order: duplicates are discarded; user code runs; pending changes are committed;
# senders are acknowledged; productions are sent.


def test_6_1_1_a_repeated_record_is_discarded() -> None:
    holds(sums(), ["repeat"])


def test_6_1_1_twin_without_deduplication_a_repeated_record_counts_twice() -> None:
    fails_without("dedup", sums(), ["repeat"])
    fails_without("", sums(dedup=None), ["repeat"])


@pytest.mark.parametrize("production", [ms.WEAK, ms.STRONG, ms.ADAPTIVE])
def test_6_1_1_a_crash_between_any_two_steps_leaves_no_trace(production: str) -> None:
    holds(sums(production), ["crash"])


@pytest.mark.parametrize("point", POINTS)
def test_6_1_1_what_is_committed_is_acknowledged_afterwards_and_what_is_not_is_not(point: str) -> None:
    """The source hears of an epoch only when its manifest is there, and then forgets its rows. A crash before the manifest leaves nothing that a reader
    could see; one before the source was told has the next run tell it."""
    plan = make_plan([("in", row) for row in rows()], 1)
    whole, end = simulate(sums(), [], plan=plan)
    assert whole.told == [Acknowledgement(end.token, batch, committed=True) for batch in range(len(plan.epochs))]
    crashed, after = simulate(sums(), [Fault("crash", 1, point)], plan=plan)
    (_, first), (_, second) = after.runs
    told_by_the_first = [0, 1] if point == "epoch.7-done" else [0]
    assert crashed.told == [
        *(Acknowledgement(first, batch, committed=True) for batch in told_by_the_first),
        *(Acknowledgement(second, batch, committed=True) for batch in range(1, len(plan.epochs))),
    ]
    assert [crashed.ledgers[s].rows(s) for s in crashed.ledgers] == [whole.ledgers[s].rows(s) for s in whole.ledgers]
    assert after.epoch == end.epoch
    assert after.runs[0][0] == 0 and len(after.runs) == 2, "a second run went on from where the manifests end"


@pytest.mark.parametrize("point", POINTS)
def test_6_1_1_twin_a_source_that_is_told_before_the_commit_hears_of_what_is_not_there(point: str) -> None:
    plan = make_plan([("in", row) for row in rows()], 1)
    simulation, _ = simulate(sums(), [Fault("crash", 1, point)], plan=plan, guards="acknowledgement")
    assert not all(told.committed for told in simulation.told)


@pytest.mark.slow
def test_6_1_1_twin_a_source_that_is_told_before_the_commit_has_forgotten_what_a_crash_takes_back() -> None:
    fails_without("acknowledgement", sums(), ["crash"])


def test_6_1_1_twin_a_manifest_that_is_not_exclusive_lets_an_epoch_be_committed_twice() -> None:
    fails_without("exclusive,tokens", sums(), ["pause"])


# §6.1.2: strong productions are checkpointed before delivery, in the same atomic write as the state; a restart replays them.


def test_6_1_2_strong_productions_are_stored_with_the_producers_state_and_replayed_until_consumed() -> None:
    holds(sums(ms.STRONG), ["crash", "retry", "recompute", "zombie", "pause"], seeds=60)


def test_6_1_2_twin_without_the_journal_a_retried_consumer_finds_nothing() -> None:
    fails_without("journal", sums(ms.STRONG), ["retry", "recompute"])


class Watched(MemoryStorage):
    """Remembers every manifest that was ever there. After whatever is removed, all that is left of them can be read whole."""

    def __init__(self) -> None:
        super().__init__()
        self.manifests: list[Manifest] = []
        self.removed: set[str] = set()

    def create(self, name: str, data: bytes) -> bool:
        created = super().create(name, data)
        if created and name.startswith("manifests/"):
            self.manifests.append(ManifestLog(self).read(int(name.split("/")[1].split(".")[0])))
        return created

    def delete(self, names: Iterable[str]) -> None:
        names = list(names)
        super().delete(names)
        self.removed.update(names)
        for manifest in self.manifests:
            if self.exists(manifest_name(manifest.epoch)):
                assert all(map(self.exists, named_by(manifest))), f"manifest {manifest.epoch} names what is gone"

    def stored(self) -> dict[str, list[int]]:
        """The objects that hold stored productions, each with the epochs whose manifests name it."""
        names = {stored_ref.name for manifest in self.manifests for stored_ref in manifest.pending}
        return {name: [manifest.epoch for manifest in self.manifests if name in named_by(manifest)] for name in sorted(names)}


def slow_plan(step: int, tail: Sequence[int] = ()) -> InputPlan:
    """Three records in each of ten epochs, some milliseconds apart; behind them epochs without any."""
    given = [("in", row) for row in rows()]
    clock = [1_700_000_000_000 + step * epoch for epoch in range(10)]
    return InputPlan([given[at : at + 3] for at in range(0, 30, 3)] + [[] for _ in tail], [*clock, *(clock[-1] + wait for wait in tail)])


@pytest.fixture
def collecting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collection after every epoch, which keeps two manifests, and for readers the first of each second of a minute."""
    monkeypatch.setattr(publishing, "COLLECT_EVERY", 1)
    monkeypatch.setattr(gc, "KEEP", 2)


def test_6_1_2_a_stored_production_is_named_by_one_manifest_and_then_collected(collecting: None) -> None:
    storage = Watched()
    faults = [Fault("crash", 3, "epoch.6-committed"), Fault("retry", 4, task=0), Fault("crash", 6, "task.4-staged")]
    _, end = simulate(echoes(), faults, plan=slow_plan(400, tail=[100_000, 200_000, 300_000]), storage=storage)
    stored = storage.stored()
    assert len(stored) >= 10 and end.pending == []
    assert all(len(by) == 1 for by in stored.values()), "consumed in the epoch behind, and named no longer"
    assert storage.removed >= stored.keys(), "gone with the last manifest that named it"


def test_6_1_2_twin_without_collection_what_was_stored_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Watched()
    simulate(echoes(), [], plan=slow_plan(400, tail=[100_000, 200_000, 300_000]), storage=storage)
    assert storage.stored() and all(map(storage.exists, storage.stored()))


def replayed(storage: MemoryStorage, epoch: int, plan: InputPlan) -> SparkLogSimulation:
    """A run from a copy of a checkpoint, restored to the moment after an epoch."""
    copy = MemoryStorage()
    copy.objects = {
        name: data for name, data in storage.objects.items() if not name.startswith("manifests/") or name <= manifest_name(epoch)
    }
    simulation = SparkLogSimulation(echoes().program(), plan, [], 1, storage=copy)
    simulation.done = epoch
    simulation.run()
    return simulation


def test_6_1_2_a_manifest_that_is_kept_has_its_stored_productions_and_a_run_can_go_on_from_it(collecting: None) -> None:
    storage, plan = Watched(), slow_plan(400)
    whole, _ = simulate(echoes(), [], plan=plan, storage=storage)
    kept = [epoch for epoch in ManifestLog(storage).epochs() if ManifestLog(storage).read(epoch).pending]
    assert len(kept) > 2 and len(kept) < 10 and storage.removed & storage.stored().keys(), "some are kept, others collected"
    for epoch in kept:
        assert replayed(storage, epoch, plan).ledgers["windows"].rows("windows") == whole.ledgers["windows"].rows("windows")


def test_6_1_2_twin_a_collection_that_overlooks_what_is_pending_leaves_manifests_that_no_run_can_go_on_from(
    collecting: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "named_by", lambda manifest: named_by(msgspec.structs.replace(manifest, pending=[])))
    storage, plan = MemoryStorage(), slow_plan(400)
    simulate(echoes(), [], plan=plan, storage=storage)
    oldest = next(epoch for epoch in ManifestLog(storage).epochs() if ManifestLog(storage).read(epoch).pending)
    with pytest.raises(DamageError, match="is missing"):
        replayed(storage, oldest, plan)


def test_6_1_2_code_that_is_not_deterministic_is_safe_before_a_strong_edge() -> None:
    """Whatever fails and is repeated: what the consumer got is what the producer remembers having said."""
    for seed in range(25):
        faults = [
            Fault("recompute", 1, task=seed % 4),
            Fault("retry", 2, task=(seed + 1) % 4),
            Fault("crash", 3, POINTS[seed % len(POINTS)]),
        ]
        simulation, end = simulate(dice(ms.STRONG), faults, seed)
        said, heard = states(simulation, end, "Dice"), states(simulation, end, "Gather")
        assert {k: sorted(v) for k, v in said.items()} == {k: sorted(v) for k, v in heard.items()}


# §6.1.3: weak productions are sent before anything is durable; computations must then be idempotent, or they are repeated together.


def test_6_1_3_a_weak_chain_is_repeated_together_when_attempts_do_not_fit() -> None:
    """The caveat: code that rolls dice before a weak edge. A recomputed producer disagrees with what was consumed; the epoch is abandoned and run
    again as a whole, so producer and consumer agree in the end."""
    for seed in range(10):
        simulation, end = simulate(dice(ms.WEAK), [Fault("recompute", 1, task=seed % 2)], seed)
        said, heard = states(simulation, end, "Dice"), states(simulation, end, "Gather")
        assert {k: sorted(v) for k, v in said.items()} == {k: sorted(v) for k, v in heard.items()}


def test_6_1_3_twin_without_receipts_producer_and_consumer_disagree() -> None:
    def disagree(seed: int) -> bool:
        simulation, end = simulate(dice(ms.WEAK), [Fault("recompute", 1, task=seed % 2)], seed, guards="receipts")
        said, heard = states(simulation, end, "Dice"), states(simulation, end, "Gather")
        return {k: sorted(v) for k, v in said.items()} != {k: sorted(v) for k, v in heard.items()}

    assert any(disagree(seed) for seed in range(10))


def test_6_1_3_deterministic_code_repeats_itself_over_weak_edges() -> None:
    holds(sums(ms.WEAK), ["retry", "recompute", "zombie", "forget"], seeds=60)


def test_6_1_3_twin_without_canonical_order_a_retried_task_does_not_repeat_itself() -> None:
    fails_without("order", sums(ms.WEAK), ["recompute"])


def test_6_1_3_a_straggler_has_its_productions_checkpointed_and_its_producer_goes_on() -> None:
    runner = ms.testing.LocalRunner(sums(ms.ADAPTIVE))
    given = rows(20)
    runner.push("in", *given[:10])
    runner.epoch()
    runner.store("sums", "Windows")
    runner.push("in", *given[10:])
    runner.epoch()
    waiting = len(runner._engine.stored)
    assert waiting == 10, "stored, not delivered"
    assert len(runner.output("sums")) == 20, "the producer is done"
    runner.store("sums", "Windows", False)
    runner.drain()
    plain = ms.testing.LocalRunner(sums(ms.WEAK))
    for part in (given[:10], given[10:]):
        plain.push("in", *part)
        plain.epoch()
    plain.drain()
    assert sorted(runner.output("windows")) == sorted(plain.output("windows"))


# Ids: every record has one; a production's follows from its cause, so that a retry makes the same.


def test_6_1_1_a_productions_id_follows_from_its_cause() -> None:
    plan = make_plan([("in", row) for row in rows()], 2)
    ids = []
    for faults in ([], [Fault("crash", 1, "task.4-staged"), Fault("retry", 2, task=0), Fault("recompute", 3, task=1)]):
        simulation, _ = simulate(sums(), faults, plan=plan)
        ids.append(sorted(id for stream in simulation.ledgers for *_, id in simulation.ledgers[stream].rows(stream)))
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == len(ids[0])


@pytest.mark.slow
def test_cycles_over_strong_edges_survive_what_everything_else_survives() -> None:
    class Down(ms.Computation):
        State = int

        def process_record(self, record: ms.Record) -> None:
            number: Any = record.value["n"] if isinstance(record.value, dict) else record.value
            self.state += 1
            self.produce(number - 1, stream="again" if number > 0 else "done")

    p = ms.Pipeline("down")
    p.compute(Down, inject(p), "again", key={"in": "k", "again": key}, produces=["again", "done"], production={"again": ms.STRONG})
    p.compute(Gather, "done", key=lambda record: "all")
    p.compute(Sum, "again", key=key, name="Circling", produces="circling", late=ms.DROP)
    holds(p, ["crash", "retry", "zombie", "pause", "repeat", "compact"], seeds=40)
