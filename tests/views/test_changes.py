"""Changes as (prev, next): each follows from the one before it, on every stream and under faults; versions that one epoch brings are merged first."""

from __future__ import annotations

from typing import Any

import pytest
from faultkit import Runner, chain, people, ran, random_posts, several, told, user

from effort import some
from millstream.simulation.schedules import make_plan, make_schedule
from millstream.simulation.view_checks import EpochJudge
from sparklog import SPARK_LOG_KINDS, SparkLogSimulation


def test_sue_becomes_joe_and_that_is_exactly_two_changes() -> None:
    """The notes' own numbers: (33, 32) and (null, 1)."""
    runner = ran(people(), [user("Sue", 1, id) for id in range(33)])
    before = len(runner.output("names~changelog"))
    runner.push("users", user("Joe", 2))
    runner.epoch()
    changes = [(key, value["prev"], value["next"]) for key, value, _ in runner.output("names~changelog")[before:]]
    assert sorted(changes) == [("Joe", None, 1), ("Sue", 33, 32)]
    assert [(key, value["prev"]["name"], value["next"]["name"]) for key, value, _ in runner.output("users~changelog")[33:]] == [
        (7, "Sue", "Joe")
    ]


@pytest.mark.parametrize("seed", range(some(20)))
def test_next_of_one_change_is_prev_of_the_following_for_every_key_and_stream_under_faults(seed: int) -> None:
    program = several().program()
    plan = make_plan([("users", row) for row in random_posts(seed)], seed)
    schedule = make_schedule(program, plan, seed, SPARK_LOG_KINDS, 2)
    simulation = SparkLogSimulation(program, plan, schedule, seed, judge=EpochJudge())
    simulation.run()
    streams = [stream for stream in simulation.ledgers if stream.endswith("~changelog")]
    assert len(streams) == 5
    for stream in streams:
        told(simulation, stream)
    changes = chain([(key, value) for key, _, value, _ in simulation.ledgers["names~changelog"].rows("names~changelog")])
    sizes = told(simulation, "sizes~changelog")
    assert sizes == {n: list(changes.values()).count(n) for n in set(changes.values())}


def test_an_empty_group_is_null_and_its_row_is_gone() -> None:
    runner = ran(people(), [user("Sue", 1)], [user("Sue", 2, gone=True)])
    assert [value for _, value, _ in runner.output("names~changelog")] == [{"prev": None, "next": 1}, {"prev": 1, "next": None}]
    assert runner.state("names") == {} and runner.view("names") == {}


def named(runner: Runner) -> set[Any]:
    """All groups that anybody has heard of."""
    return {key for stream in ("names~", "names~changelog") for key, _, _ in runner.output(stream)}


def test_joe_and_tod_in_one_epoch_nobody_ever_hears_of_joe() -> None:
    runner = ran(people(), [user("Sue", 1)], [user("Joe", 2), user("Tod", 3)])
    assert named(runner) == {"Sue", "Tod"} and runner.view("names") == {"Tod": 1}
    assert "Joe" not in str(runner.output("users~changelog"))


def test_joe_and_tod_in_two_epochs_both_are_told() -> None:
    runner = ran(people(), [user("Sue", 1)], [user("Joe", 2)], [user("Tod", 3)])
    assert named(runner) == {"Sue", "Joe", "Tod"} and runner.view("names") == {"Tod": 1}
    assert chain(runner.output("names~changelog")) == {"Tod": 1}
