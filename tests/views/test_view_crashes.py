"""Views when tasks and drivers die at any point: what is sent twice counts once, and nothing that was sent is lost. Each rule has its twin."""

from __future__ import annotations

from typing import Any

import pytest
from faultkit import STORY, apart, people, ran, random_posts, several, simulated, task_of, told, user

import millstream as ms
from effort import some
from millstream.core.guards import Guards
from millstream.faults import POINTS
from millstream.simulation.fault import Fault


@pytest.mark.slow
def test_what_is_sent_twice_counts_once() -> None:
    ms.testing.assert_exactly_once(several(), random_posts(1), seeds=range(some(60)))


def test_what_is_sent_twice_counts_twice_where_contributions_are_added() -> None:
    posts = [[user("Sue", 5)], [user("Sam", 0)], [user("Sam", 0)]]  # a stale post states the current value again
    assert ran(people(), *posts).view("names") == {"Sue": 1}
    assert ran(people(), *posts, guards=Guards.without("origins")).view("names") == {"Sue": 3}


@pytest.mark.parametrize("production", [ms.WEAK, ms.STRONG])
@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_every_point_of_an_epoch_changes_nothing(point: str, epoch: int, production: str) -> None:
    simulation, difference = simulated(people(production=production), STORY, Fault("crash", epoch, point))
    assert difference is None
    assert told(simulation) == {"Bob": 1, "Joe": 1}


def lost(epoch: int, production: str = ms.STRONG, **options: Any) -> dict[Any, Any]:
    """The names, if the first attempt at the reducer of an epoch is lost after it was handed its changes."""
    pipeline = people(production=production)
    faults = [Fault("retry", epoch, task=task_of(pipeline, "names", name)) for name in ("Sue", "Bob")]
    simulation, _ = simulated(pipeline, [[user("Sue", 1)], [user("Joe", 2)], [user("Bob", 3)]], *faults, **options)
    return {key: value["next"] for key, _, value, _ in simulation.ledgers["names~changelog"].rows("names~changelog") if value["next"]}


def test_a_change_that_is_handed_over_and_not_kept_until_the_commit_is_lost() -> None:
    """The twin: over a strong edge, without the journal. Sue is never taken out, Joe is not put in."""
    assert lost(2) == {"Sue": 1, "Joe": 1, "Bob": 1}  # all that was ever told, one after the other
    assert lost(2, guards=Guards.without("journal")) == {"Sue": 1, "Bob": 1}


@pytest.mark.parametrize("point", ["epoch.5-checked", "epoch.6-committed"])
def test_a_driver_killed_between_joe_and_bob_leaves_no_joe_anywhere(point: str) -> None:
    simulation, difference = simulated(people(), [[user("Sue", 1)], [user("Joe", 2)], [user("Bob", 3)]], Fault("crash", 1, point))
    assert difference is None and told(simulation) == {"Bob": 1}


def test_a_gateway_that_commits_before_its_changes_are_safe_leaves_joes_everywhere() -> None:
    """The twin: the table's state is an epoch ahead of the view's, and nothing keeps the changes in between."""

    def names(**options: Any) -> dict[Any, Any]:
        pipeline = people(production=ms.STRONG)
        faults = [Fault("retry", 3, task=task_of(pipeline, "names", name)) for name in ("Joe", "Bob")]
        return told(simulated(pipeline, [[user("Sue", 1)], [user("Joe", 2)], [user("Bob", 3)]], *faults, **options)[0])

    assert names() == {"Bob": 1}
    assert names(guards=Guards.without("journal")) == {"Joe": 1}


SHARDS = 3  # in which Sue, Joe and user 7 lie apart


def crashed(computation: str, key: Any, point: str) -> tuple[dict[Any, Any], str | None]:
    """The names, if the driver dies in a task of the epoch that brings Joe; Bob comes next."""
    pipeline = people()
    fault = Fault("crash", 1, point, task=task_of(pipeline, computation, key, SHARDS))
    simulation, difference = simulated(pipeline, [[user("Sue", 1)], [user("Joe", 2)], [user("Bob", 3)]], fault, shards=SHARDS)
    return told(simulation), difference


def test_the_names_lie_in_different_shards() -> None:
    assert apart("Sue", "Joe", shards=SHARDS)


def test_crash_in_the_gateways_task() -> None:
    assert crashed("users", 7, "task.4-staging") == ({"Bob": 1}, None)


def test_crash_between_the_levels() -> None:
    """The map has saved, the reducers have not."""
    assert crashed("users", 7, "task.4-staged") == ({"Bob": 1}, None)
    assert crashed("names", "Sue", "task.3-shuffled") == ({"Bob": 1}, None)


def test_crash_before_the_manifest() -> None:
    """Joe was sent and reduced, and nothing is saved."""
    simulation, difference = simulated(
        people(), [[user("Sue", 1)], [user("Joe", 2)], [user("Bob", 3)]], Fault("crash", 1, "epoch.5-checked")
    )
    assert (told(simulation), difference) == ({"Bob": 1}, None)


@pytest.mark.parametrize("point", ["task.3-shuffled", "task.4-staging", "task.4-staged"])
@pytest.mark.parametrize(("computation", "key"), [("users", 7), ("names", "Sue"), ("names", "Joe")], ids=["map", "red Sue", "red Joe"])
def test_crash_of_the_map_or_of_a_reducer(computation: str, key: Any, point: str) -> None:
    assert crashed(computation, key, point) == ({"Bob": 1}, None)


@pytest.mark.parametrize(
    "point",
    ["epoch.6-committed", "epoch.7-publishing", "epoch.7-published"],
    ids=["pub Sue", "pub Joe, Sue is told", "both told, not noted"],
)
def test_crash_of_a_publication(point: str) -> None:
    """The table's changes go to one sink, those of the names to another; the driver dies before, between and behind them."""
    simulation, difference = simulated(
        people(), [[user("Sue", 1)], [user("Joe", 2)], [user("Bob", 3)]], Fault("crash", 1, point), shards=SHARDS
    )
    assert (told(simulation), difference) == ({"Bob": 1}, None)
    assert {key: value["name"] for key, value in told(simulation, "users~changelog").items()} == {7: "Bob"}


@pytest.mark.parametrize("point", [None, "task.3-shuffled", "task.4-staged"])
def test_what_is_pending_over_a_strong_edge_survives_the_death_of_its_consumer(point: str | None) -> None:
    pipeline = people(production=ms.STRONG)
    task = task_of(pipeline, "names", "Sue")
    fault = Fault("retry", 2, task=task) if point is None else Fault("crash", 2, point, task=task)
    simulation, difference = simulated(pipeline, STORY, fault)
    assert difference is None and told(simulation) == {"Bob": 1, "Joe": 1}
    if point is None:
        _, twin = simulated(pipeline, STORY, fault, guards=Guards.without("journal"))
        assert twin is not None and "names" in twin
