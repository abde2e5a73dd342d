"""Schedules of faults that once mattered, read back from their printed text; and the text itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
import scenariokit
from millstream.faults import POINTS
from millstream.simulation.fault import Fault, read_fault, read_schedule
from millstream.simulation.schedules import Counterexample, make_plan, make_schedule
from millstream.simulation.simulated_run import MICRO_BATCH_KINDS, RESIDENT_KINDS

FILES = sorted(scenariokit.FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_scenario_ends_as_the_undisturbed_run_does(path: Path) -> None:
    assert scenariokit.run(scenariokit.read(path)) is None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_twin_with_its_guard_off_it_does_not(path: Path) -> None:
    scenario = scenariokit.read(path)
    assert scenariokit.run(scenario, scenario.guard) is not None


def test_every_mode_has_scenarios() -> None:
    assert {scenariokit.read(path).mode for path in FILES} == {"micro-batch", "resident", "spark log"}


@given(st.integers(0, 10_000), st.sampled_from([MICRO_BATCH_KINDS, RESIDENT_KINDS]))
def test_a_schedule_is_read_back_from_its_text(seed: int, kinds: tuple[str, ...]) -> None:
    program = scenariokit.PIPELINES["two levels"]().program()
    schedule = make_schedule(program, make_plan(scenariokit.ROWS, seed), seed, kinds, 2)
    if schedule:
        assert read_schedule(str(Counterexample(seed, schedule, "something differs"))) == schedule


@pytest.mark.parametrize("point", POINTS)
def test_every_point_can_be_written_and_read(point: str) -> None:
    fault = Fault("crash", 3, point, task=0 if point.startswith("epoch.") else 2)
    assert read_fault(str(fault)) == fault


@pytest.mark.parametrize("text", ["crash", "crash in epoch two", "flood in epoch 1", "retry in epoch 1: task x", "compact in epoch 1: now"])
def test_a_line_that_is_no_fault_is_refused_by_name(text: str) -> None:
    with pytest.raises(ms.errors.DefinitionError, match="is no fault"):
        read_fault(text)


def test_a_text_without_a_schedule_is_refused() -> None:
    with pytest.raises(ms.errors.DefinitionError, match="no numbered lines"):
        read_schedule("nothing happened")


def test_assert_exactly_once_tries_the_schedule_that_it_is_given() -> None:
    """By hand: a record that comes again, without deduplication."""
    pipeline = scenariokit.PIPELINES["two levels"]()
    text = "  1. repeat in epoch 1: record 0"
    ms.testing.assert_exactly_once(pipeline, [row for _, row in scenariokit.ROWS], seeds=[1], schedule=text)
    from millstream.core.guards import Guards

    with pytest.raises(AssertionError, match="repeat in epoch 1: record 0"):
        ms.testing.assert_exactly_once(
            pipeline, [row for _, row in scenariokit.ROWS], seeds=[1], schedule=text, guards=Guards.without("dedup"), epochs="same"
        )
