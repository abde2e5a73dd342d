"""Sinks that prepare before the manifest, under resident faults: what is published is what manifests name, also if an epoch was prepared, not committed, and
planned anew with other rows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from preparedkit import PreparedRows, PreparedSimulation
from residentkit import ROWS, two_levels

from effort import some
from millstream.errors import MillstreamError
from millstream.simulation.comparison import compare, undisturbed
from millstream.simulation.fakes import Violation
from millstream.simulation.fault import Fault
from millstream.simulation.schedules import make_plan, make_schedule
from millstream.simulation.simulated_run import RESIDENT_KINDS
from millstream.sinks.two_phase import TwoPhaseSink

PROGRAM = two_levels().program()


def differs(seed: int, faults: Sequence[Fault], shards: int = 2) -> str | None:
    """The first difference between what was published and the undisturbed run of the epochs that were committed."""
    simulation = PreparedSimulation(PROGRAM, make_plan([("in", row) for row in ROWS], seed), faults, seed, shards, resident=True)
    try:
        end = simulation.run()
        return compare(simulation, end, undisturbed(PROGRAM, simulation.committed_plan(), shards))
    except (MillstreamError, Violation) as error:
        return str(error)


def drawn(seed: int) -> list[Fault]:
    return make_schedule(PROGRAM, make_plan([("in", row) for row in ROWS], seed), seed, RESIDENT_KINDS, 2)


def test_what_is_published_is_what_manifests_name() -> None:
    assert {seed: found for seed in range(some(100)) if (found := differs(seed, drawn(seed)))} == {}


@pytest.mark.soak
def test_the_same_with_many_more_seeds() -> None:
    assert {seed: found for seed in range(1_000, 6_000) if (found := differs(seed, drawn(seed)))} == {}


@pytest.mark.slow
def test_an_epoch_that_was_prepared_is_planned_anew_with_other_rows() -> None:
    """The driver dies when everything is prepared and the manifest is not there: at the sink, transactions are open of which nobody will ever hear."""
    for seed in range(some(20)):
        for more_or_fewer in (0, 1):
            assert differs(seed, [Fault("replan", 1, "epoch.6-committing", later=more_or_fewer)], shards=3) is None


def overtaken(seed: int, wakes: int) -> str | None:
    """A driver looks at the claims, stands still, is replaced by one that plans the epoch anew, and commits when the other is somewhere."""
    return differs(seed, [Fault("pause", 1, "epoch.6-committing", later=wakes)])


@pytest.mark.slow
def test_a_driver_that_is_about_to_commit_is_shut_out_before_anything_is_taken_back() -> None:
    assert [found for seed in range(some(15)) for wakes in range(4) if (found := overtaken(seed, wakes))] == []


@pytest.mark.slow
def test_negative_twin_if_it_is_not_shut_out_rows_are_taken_back_that_it_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PreparedRows, "takes_back", False)
    found = [found for seed in range(30) if (found := overtaken(seed, 3))]
    assert any("was committed by a run that was being replaced" in one for one in found)


def joined_again(seed: int) -> str | None:
    return differs(seed, [Fault("rejoin", epoch, task=seed % 3, later=1 + epoch % 3) for epoch in range(4)])


def test_a_task_that_was_sent_away_takes_nothing_back() -> None:
    assert [found for seed in range(some(25)) if (found := joined_again(seed))] == []


def test_negative_twin_if_fences_do_not_grow_with_tries_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = TwoPhaseSink.stage

    def staged(self: TwoPhaseSink, context: object, rows: object) -> object:
        context.tries = 0  # type: ignore[attr-defined]
        return stage(self, context, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(TwoPhaseSink, "stage", staged)
    assert any("was prepared by a task and is gone" in found for seed in range(40) if (found := joined_again(seed)))
