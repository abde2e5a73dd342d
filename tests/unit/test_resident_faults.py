"""Resident runs under simulated faults: exact, whatever is lost, comes late, joins again or is planned anew; and not with a guard off."""

from __future__ import annotations

from typing import Any

import pytest
from residentkit import ROWS, one_level, rolling, simulate, three_levels, two_levels

import millstream as ms
from effort import some
from millstream.core.guards import Guards
from millstream.core.keyspace import ROW, decode_row
from millstream.simulation.comparison import compare, undisturbed
from millstream.simulation.fault import Fault
from millstream.simulation.schedules import make_plan
from millstream.simulation.simulated_run import Simulation
from millstream.state.segment import merge

LOSSES = ("lose", "stale", "rejoin")


def exact(pipeline: ms.Pipeline, seeds: range, **options: Any) -> None:
    ms.testing.assert_exactly_once(pipeline, ROWS, seeds=seeds, epochs="same", resident=True, **options)


# --- every kind does something


def differs(simulation: Simulation, end: Any) -> str | None:
    return compare(simulation, end, undisturbed(simulation.program, simulation.committed_plan(), simulation.shards), exact=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOSSES)
def test_a_task_is_lost_at_every_step_it_takes(kind: str) -> None:
    undisturbed_runs = {seed: simulate(three_levels(), [], seed, shards=2)[0].attempts for seed in range(2)}
    for step in range(16):
        for seed, attempts in undisturbed_runs.items():
            fault = Fault(kind, 1, task=1, later=step)
            simulation, end = simulate(three_levels(), [fault], seed, shards=2)
            assert differs(simulation, end) is None
            assert simulation.attempts == attempts + 1 and simulation.generations == 2, "the epoch was run again"


@pytest.mark.slow
def test_an_epoch_that_is_planned_anew_has_other_rows() -> None:
    sizes = []
    for later in (0, 1):
        for seed in range(8):
            simulation, end = simulate(two_levels(), [Fault("replan", 1, "epoch.5-checked", later=later)], seed)
            assert differs(simulation, end) is None
            sizes.append((later, len(simulation.committed_plan().epochs[1]) - len(simulation.plan.epochs[1])))
    assert any(more > 0 for later, more in sizes if not later) and any(fewer < 0 for later, fewer in sizes if later)
    assert all(more >= 0 for later, more in sizes if not later) and all(fewer <= 0 for later, fewer in sizes if later)


@pytest.mark.slow
def test_a_replaced_driver_may_still_commit_what_it_was_about_to() -> None:
    """It looked at the claims, stood still, and was replaced: if its manifest is there first, the successor goes on from it."""
    outgoing = 0
    for seed in range(10):
        for later in range(4):
            simulation, end = simulate(two_levels(), [Fault("pause", 1, "epoch.6-committing", later=later)], seed)
            assert differs(simulation, end) is None
            outgoing += simulation.committed[1].token.startswith(simulation.committed[0].token.split("-")[0])
    assert outgoing > 10


# --- with a guard off, some seed fails


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guard", "fault", "first"),
    [
        ("rerun", "lose", 0),
        ("attempts", "stale", 50),
        ("offsets", "replan", 0),
        ("acknowledgement", "replan", 0),
        ("tokens", "pause", 0),
        ("dedup", "repeat", 0),
    ],
)
def test_negative_twin(guard: str, fault: str, first: int) -> None:
    """first: a seed behind which one is not far that fails. Of old frames, few do harm to a program that repeats itself."""
    with pytest.raises(AssertionError, match="is not exactly once") as caught:
        exact(two_levels(), range(first, first + 100), faults=[fault], guards=Guards.without(guard), shards=4)
    assert f"The shortest schedule that shows it:\n  1. {fault} in epoch" in str(caught.value)


def numbers(simulation: Simulation, end: Any, computation: str) -> list[int]:
    _, kind = simulation.compiled.make(computation)
    return sorted(
        number
        for shard in end.computations[computation].shards
        for entry, raw in merge(simulation.storage, shard.segments, drop_deleted=True)
        if entry.startswith(ROW) and raw is not None
        for number in kind.decode(decode_row(raw).state)
    )


def agree(seed: int, guards: str = "") -> bool:
    """Whether consumers heard what producers remember having said, although nothing is ever said twice."""
    faults = [Fault("stale", epoch, task=seed % 3, later=(seed + epoch) % 10) for epoch in range(4)]
    simulation, end = simulate(rolling(), faults, seed, guards)
    said, heard = numbers(simulation, end, "Roll"), numbers(simulation, end, "Heard")
    return len(said) == len(ROWS) and said == heard


def test_code_that_does_not_repeat_itself_hears_nothing_of_an_older_attempt() -> None:
    assert all(agree(seed) for seed in range(some(60)))


def test_attempts_keep_them_apart_without_receipts() -> None:
    assert all(agree(seed, "receipts") for seed in range(some(30)))


@pytest.mark.parametrize("guards", ["attempts,receipts", "attempts"])
def test_negative_twin_without_attempts_two_of_them_are_mixed(guards: str) -> None:
    """Receipts alone do not help: an old frame with nothing in it takes the place of a new one, and nobody consumes what was never delivered."""
    assert not all(agree(seed, guards) for seed in range(60))


def test_a_kind_that_needs_a_resident_run_says_so() -> None:
    with pytest.raises(ms.errors.DefinitionError, match=r"faults=\['lose'\]: there are .*; the others are for resident=True"):
        ms.testing.assert_exactly_once(one_level(), ROWS, faults=["lose"])
    with pytest.raises(ms.errors.DefinitionError, match=r"faults=\['retry'\]: there are crash, pause, .*replan$"):
        ms.testing.assert_exactly_once(one_level(), ROWS, faults=["retry"], resident=True)


class Witness(Simulation):
    """Notes at the points of step 4 whether the unit of a slot is there."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given, resident=True)
        self.durable: dict[str, set[bool]] = {}

    def at_task(self, epoch: int, name: str, task: int) -> None:
        if name.startswith("task.4-") and epoch >= 0:
            units = [unit for unit in self.storage.list("units") if int(unit.split("/")[1].split("-")[0]) == epoch and "-t" in unit]
            self.durable.setdefault(name, set()).add(bool(units))
        super().at_task(epoch, name, task)


def witnessed() -> dict[str, set[bool]]:
    simulation = Witness(one_level().program(), make_plan([("in", row) for row in ROWS], 1), [], 1, 1)
    simulation.run()
    return simulation.durable


def test_a_task_that_crashes_when_it_has_staged_leaves_a_durable_unit_and_one_that_is_about_to_stage_leaves_none() -> None:
    assert witnessed() == {"task.4-staging": {False}, "task.4-staged": {True}}


def test_twin_a_unit_that_is_not_written_between_the_two_points_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.engine.staging.Unit.write", lambda unit: None)
    with pytest.raises((AssertionError, ms.errors.DamageError, ms.errors.StorageError)):
        assert witnessed()["task.4-staged"] == {True}
