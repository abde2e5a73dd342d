"""What views were asked for, sentence by sentence: keyed updates that carry (prev, next), reduce trees, and every crash in between. Where a rule keeps a
sentence true, its twin shows what happens without the rule."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from faultkit import SOURCE, Counted, apart, chain, people, simulated, task_of, told, user
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from effort import some
from millstream.core.guards import Guards
from millstream.core.keys import key_bytes, key_text, shard_of
from millstream.core.keyspace import ROW, Row, decode_row, encode_row
from millstream.errors import DefinitionError
from millstream.faults import POINTS
from millstream.simulation.driver import Simulation
from millstream.simulation.fault import Fault
from millstream.simulation.schedules import SPARK_LOG_KINDS, make_plan, make_schedule, repeated
from millstream.simulation.view_checks import EpochJudge
from millstream.state.memory_storage import MemoryStore
from millstream.views.agg_tree import depth
from millstream.views.operator import ViewOperator

Runner = ms.testing.LocalRunner


def ran(pipeline: ms.Pipeline, *epochs: Sequence[dict[str, Any]], **options: Any) -> Runner:
    """A pipeline after some epochs of posts."""
    runner = Runner(pipeline, **options)
    for rows in epochs:
        runner.push("users", *rows)
        runner.epoch()
    return runner


# --- "cache and batch everything"


def test_a_document_and_a_group_are_visited_once_per_epoch_and_a_group_gets_one_message() -> None:
    counted = Counted(people())
    assert counted.epoch(user("Sue", 1), user("Joe", 2), user("Tod", 3)) == {"users": (1, 1, 1), "names": (1, 1, 0)}
    # ten users, half of them Sue now: three groups hear of it, one of them only that user 7 has gone
    posts = [user("Sue" if id % 2 else "Joe", 5, id) for id in range(10)]
    assert counted.epoch(*posts) == {"users": (10, 10, 3), "names": (3, 3, 0)}
    assert counted.epoch() == {"users": (0, 0, 0), "names": (0, 0, 0)}
    assert counted.runner.view("names") == {"Sue": 5, "Joe": 5}


def test_without_packing_every_change_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    packing = ViewOperator.finish_epoch

    def one_by_one(self: ViewOperator, gathered: Sequence[tuple[Any, Any, int]]) -> None:
        for one in gathered:
            packing(self, [one])

    monkeypatch.setattr(ViewOperator, "finish_epoch", one_by_one)
    counted = Counted(people())
    assert counted.epoch(*[user("Sue" if id % 2 else "Joe", 5, id) for id in range(10)])["users"] == (10, 10, 10)
    assert counted.runner.view("names") == {"Sue": 5, "Joe": 5}


# --- "depth cached; only enough nodes queried; children lazily"


def test_the_depth_of_a_group_is_remembered_grows_to_four_and_shrinks_back() -> None:
    pipeline = ms.Pipeline("people")
    users = pipeline.table("users", SOURCE, key="id", version="ts", deleted="gone", tombstones="1ms")
    users.by("name").reduce(ms.min("ts"), name="names", inline=0)
    counted = Counted(pipeline)
    runner, depths, ts = counted.runner, [], 0
    there: set[int] = set()
    for size in (0, 3, 6, 60, 400, 8_300, 8_400, 500, 40, 6, 3, 0):
        ts += 1
        posts = [user("Sue", ts, id) for id in range(size) if id not in there]
        posts += [user("Sue", ts, id, gone=True) for id in there if id >= size]
        there = set(range(size))
        counted.epoch(*posts)
        row = runner.state("names", "Sue")
        assert (row.count if row else 0) == size
        levels = 0 if row is None or not row.leaves else 1 + depth(row.leaves)
        depths.append(levels)
        if size:
            ts += 1
            gets, writes, _ = counted.epoch(user("Sue", ts, size // 2))["names"]
            assert gets <= 1 + levels and writes <= 1 + levels, "the row, a leaf, and a node per level; nothing is probed"
        runner.check()  # every node is the fold of its children
        runner.advance_clock(runner._engine.now + 10)
    assert depths == [0, 0, 1, 2, 3, 4, 4, 3, 2, 1, 0, 0]


# --- "one read/write per value" with few source documents


@pytest.mark.parametrize("reducer", [ms.count(), ms.min("id")], ids=repr)
@pytest.mark.parametrize("size", [1, 2, 8, 31])
def test_a_small_group_costs_one_read_and_one_write(size: int, reducer: Any) -> None:
    def cost(inline: int) -> tuple[int, int]:
        pipeline = ms.Pipeline("people")
        users = pipeline.table("users", SOURCE, key="id", version="ts")
        users.by("name").reduce(reducer, name="names", inline=inline)
        counted = Counted(pipeline)
        counted.epoch(*[user("Sue", 1, id) for id in range(size)])
        return counted.epoch(user("Sue", 1, size))["names"][:2]

    assert cost(1024) == (1, 1)
    if size == 31:
        assert cost(0) == ((2, 2) if reducer.remove else (3, 2))  # the twin: a leaf beside the row, and a node


# --- "spout routes by key; gateway loads prev, sends (prev, next)"


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


# --- "every k/v node sends prev/next"


def several() -> ms.Pipeline:
    """Every kind of relation, all told."""
    pipeline = ms.Pipeline("people")
    users = pipeline.table("users", SOURCE, key="id", version="ts", deleted="gone")
    names = users.by("name").reduce(ms.count(), name="names", inline=30)
    first = users.by("name").reduce(ms.min("id"), name="first", inline=30, production=ms.STRONG)
    sizes = names.by(lambda row: row.value).reduce(ms.count(), name="sizes")
    pairs = users.by(lambda row: row.value["ts"] % 4).join(users, how="left", name="pairs")
    for relation in (users, names, first, sizes, pairs):
        pipeline.publish(relation, ms.sinks.files("out/"))
    return pipeline


def random_posts(seed: int, count: int = 30) -> list[dict[str, Any]]:
    dice = random.Random(seed)
    return [
        user(
            dice.choice(["Sue", "Joe", "Tod", "Bob", "Sam"]),
            dice.choice([at, at, dice.randrange(at + 1)]),
            dice.randrange(6),
            dice.random() < 0.2,
        )
        for at in range(count)
    ]


@pytest.mark.parametrize("seed", range(some(20)))
def test_next_of_one_change_is_prev_of_the_following_for_every_key_and_stream_under_faults(seed: int) -> None:
    program = several().program()
    plan = make_plan([("users", row) for row in random_posts(seed)], seed)
    schedule = make_schedule(program, plan, seed, SPARK_LOG_KINDS, 2)
    simulation = Simulation(program, repeated(plan, schedule), schedule, seed, judge=EpochJudge())
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


# --- "Joe in the cache so that Tod merges with it"


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


# --- "crash; second send has identical values"

STORY = [[user("Sue", 1), user("Sue", 1, 8)], [user("Joe", 2)], [user("Bob", 3), user("Joe", 2, 8)]]


def test_what_is_sent_twice_counts_once() -> None:
    ms.testing.assert_exactly_once(several(), random_posts(1), seeds=range(some(60)))


def test_what_is_sent_twice_counts_twice_where_contributions_are_added() -> None:
    posts = [[user("Sue", 5)], [user("Sam", 0)], [user("Sam", 0)]]  # a stale post states the current value again
    assert ran(people(), *posts).view("names") == {"Sue": 1}
    assert ran(people(), *posts, guards=Guards.without("origins")).view("names") == {"Sue": 3}


# --- "ack ack ack, then 'commit' to the gateway, oldest committed value to disk"


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


# --- "prev on disk is Sue, Joe not sent again; Bob clears Sue, leaves Joes everywhere"


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


# --- "keep (prev, next); on replay equal → continue, do not save"


def replayed(runner: Runner, rows: Sequence[dict[str, Any]], stream: str = "users") -> int:
    """How many changes a replay of the source publishes."""
    before = len(runner.output("names~changelog")) + len(runner.output("users~changelog"))
    for row in rows:
        runner.push(stream, row)
        runner.epoch()
    return len(runner.output("names~changelog")) + len(runner.output("users~changelog")) - before


def test_a_replay_of_the_whole_source_beyond_the_dedup_horizon_publishes_nothing() -> None:
    pipeline = ms.Pipeline("people")
    source = ms.sources.files("in/", schema="id long, name string, gone boolean, ts long, post string")
    posted = pipeline.inject("posts", source, id="post", dedup="10m")
    users = pipeline.table("users", posted, key="id", version="ts", deleted="gone")
    pipeline.publish(users, ms.sinks.files("out/"))
    pipeline.publish(users.by("name").reduce(ms.count(), name="names"), ms.sinks.files("out/"))
    rows = [{**row, "post": str(at)} for at, row in enumerate(random_posts(2))]
    runner = Runner(pipeline, now=1_000)
    assert replayed(runner, rows, "posts") > 0
    state, names = dict(runner.state("users")), runner.view("names")
    assert replayed(runner, rows, "posts") == 0 and runner.duplicates == len(rows), "within the horizon ids tell"
    runner.advance_clock(3_600_000)
    assert replayed(runner, rows, "posts") == 0 and runner.duplicates == len(rows), "beyond it versions do"
    assert runner.state("users") == state and runner.view("names") == names
    assert runner._engine.tallies["users"]["stale"] > 0
    runner.check()


def test_a_stale_replay_without_versions_brings_old_names_back() -> None:
    posts = [[user("Sue", 1)], [user("Joe", 2)]]
    assert replayed(ran(people(), *posts), [user("Sue", 1)]) == 0
    twin = ran(people(), *posts, guards=Guards.without("versions"))
    assert replayed(twin, [user("Sue", 1)]) > 0 and twin.view("names") == {"Sue": 1}


# --- a source that repeats, without ids and without versions: not solvable, and said


def test_without_ids_and_versions_a_repeat_of_the_newest_is_nothing_and_an_older_one_is_a_new_fact() -> None:
    pipeline = ms.Pipeline("people")
    users = pipeline.table("users", SOURCE, key="id", deleted="gone")
    pipeline.publish(users, ms.sinks.files("out/"))
    pipeline.publish(users.by("name").reduce(ms.count(), name="names"), ms.sinks.files("out/"))
    posts = [user("Sue", 1), user("Joe", 2)]
    runner = ran(pipeline, posts[:1], posts[1:])
    assert replayed(runner, posts[1:]) == 0
    assert replayed(runner, posts[:1]) > 0 and runner.view("names") == {"Sue": 1}
    assert replayed(runner, posts) > 0 and runner.view("names") == {"Joe": 1}, "and forward again with the rest"


# --- "two spouts send user[7]; one crashes with Joe half downstream, the other brings Bob"


def two_spouts() -> ms.Pipeline:
    pipeline = ms.Pipeline("people")
    users = pipeline.table("users", SOURCE, SOURCE, key="id", version="ts", deleted="gone")
    pipeline.publish(users.by("name").reduce(ms.count(), name="names"), ms.sinks.files("out/"))
    return pipeline


def interleavings(**options: Any) -> set[str]:
    """The results of all orders of three posts by two spouts, in all splits into epochs."""
    posts = [("users", user("Sue", 1)), ("users", user("Joe", 2)), ("users.2", user("Bob", 3))]
    found = set()
    for order in itertools.permutations(posts):
        for split in itertools.product([False, True], repeat=2):
            runner = Runner(two_spouts(), **options)
            for (stream, row), ends in zip(order, [*split, True], strict=True):
                runner.push(stream, row)
                if ends:
                    runner.epoch()
            assert chain(runner.output("names~changelog")) == runner.view("names")
            found.add(str(runner.view("names")))
    return found


def test_two_spouts_in_all_interleavings_and_epochs_give_one_result() -> None:
    assert interleavings() == {"{'Bob': 1}"}
    assert interleavings(guards=Guards.without("versions")) == {"{'Bob': 1}", "{'Joe': 1}", "{'Sue': 1}"}


def test_two_spouts_without_versions_are_refused() -> None:
    with pytest.raises(DefinitionError, match=r"table 'users' has 2 sources and no version=.*which of two documents is the newer one"):
        ms.Pipeline("people").table("users", SOURCE, SOURCE, key="id")


def test_two_spouts_under_faults_are_one_table() -> None:
    rows = [(("users", "users.2")[at % 2], row) for at, row in enumerate(random_posts(3, 20))]
    ms.testing.assert_exactly_once(two_spouts(), rows, seeds=range(some(30)))


# --- out-of-order versions, ties

VERSIONS = st.lists(st.tuples(st.sampled_from(["Sue", "Joe", "Bob"]), st.integers(1, 3), st.booleans()), min_size=1, max_size=6)


@settings(max_examples=some(60), deadline=None)
@given(st.data(), VERSIONS)
def test_permutations_of_versions_and_ties_give_one_table(data: Any, versions: list[tuple[str, int, bool]]) -> None:
    results = []
    for order in (versions, data.draw(st.permutations(versions))):
        runner = Runner(people(), shards=1)
        for name, ts, gone in order:
            runner.push("users", user(name, ts, gone=gone))
            if data.draw(st.booleans()):
                runner.epoch()
        runner.epoch()
        runner.check()
        results.append((runner.state("users", 7).essence(), runner.view("names")))
    assert results[0] == results[1]


@pytest.mark.parametrize("split", [False, True])
def test_of_equal_versions_a_deletion_wins_and_then_the_greater_bytes(split: bool) -> None:
    def results(posts: Sequence[dict[str, Any]]) -> set[str]:
        return {
            str(ran(people(), *([[post] for post in order] if split else [order])).view("names")) for order in itertools.permutations(posts)
        }

    assert results([user("Sue", 5), user("Joe", 5), user("Bob", 5)]) == {"{'Sue': 1}"}
    assert results([user("Sue", 5), user("Joe", 5), user("Bob", 5, gone=True)]) == {"{}"}
    assert results([user("Sue", 5), user("Joe", 4), user("Bob", 4, gone=True)]) == {"{'Sue': 1}"}


# --- "map/red commit messages back; crash before/after save; Bob after Joe was sent but not saved"

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


# --- "map, red Sue, pub Sue, red Joe, pub Joe can crash", before and after the save


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


# --- "restate the current value, unstate the posted one"


def entry_of(runner: Runner, view: str, group: Any) -> tuple[MemoryStore, bytes]:
    """Where a group's row is."""
    row_key = key_bytes(group)
    return runner._engine.stores[view, shard_of(row_key, runner._engine.shards)], ROW + row_key


def dangling(pipeline: ms.Pipeline, **options: Any) -> Runner:
    """User 7 is Sue. By hand, all of Sue's row is written into Sam's, too: a contribution that nobody stands for."""
    runner = ran(pipeline, [user("Sue", 5)], **options)
    store, sue = entry_of(runner, "names", "Sue")
    other, sam = entry_of(runner, "names", "Sam")
    other.apply({sam: store.entries[sue]})
    assert runner.view("names") == {"Sam": 1, "Sue": 1}
    with pytest.raises(AssertionError, match="group 'Sam': the contribution of 7 is"):
        runner.check()
    return runner


def test_a_dangling_contribution_is_healed_by_one_stale_post() -> None:
    runner = dangling(people())
    runner.push("users", user("Sam", 0))
    runner.epoch()
    assert runner.view("names") == {"Sue": 1}
    runner.check()


def test_a_stale_post_that_is_only_dropped_heals_nothing() -> None:
    runner = dangling(people(), guards=Guards.without("restate"))
    runner.push("users", user("Sam", 0))
    runner.epoch()
    assert runner.view("names") == {"Sam": 1, "Sue": 1}


# --- "repair by posting ts: 0"


def test_posting_ts_0_three_times_is_posting_it_once() -> None:
    results = []
    for times in (1, 3):
        for singly in (False, True):
            runner = dangling(people())
            for _ in range(times):
                runner.push("users", user("Sam", 0))
                if singly:
                    runner.epoch()
            runner.run()
            runner.check()
            results.append({place: dict(store.entries) for place, store in runner._engine.stores.items()})
            assert runner.view("names") == {"Sue": 1} and runner._engine.tallies["users"]["stale"] == times
    assert all(result == results[0] for result in results)


def test_a_missing_contribution_is_stated_again() -> None:
    runner = ran(people(), [user("Sue", 5)])
    store, sue = entry_of(runner, "names", "Sue")
    store.apply({sue: None})
    assert runner.view("names") == {}
    runner.push("users", user("Sam", 0))
    runner.epoch()
    assert runner.view("names") == {"Sue": 1}
    runner.check()


def sized() -> ms.Pipeline:
    """How many names are that of so many."""
    pipeline = people()
    names = next(relation for relation in pipeline._relations if relation.name == "names")
    sizes = names.by(lambda row: row.value).reduce(ms.count(), name="sizes")
    pipeline.publish(sizes, ms.sinks.files("out/"))
    return pipeline


def test_a_repair_travels_through_a_view_on_a_view() -> None:
    runner = dangling(sized())
    store, one = entry_of(runner, "sizes", 1)
    assert decode_row(store.entries[one]).state
    store.apply({one: None})  # and the view behind it has lost everything
    assert runner.view("sizes") == {}
    for _ in range(3):
        runner.push("users", user("Sam", 0))
        runner.epoch()
        assert runner.view("names") == {"Sue": 1} and runner.view("sizes") == {1: 1}, (
            "names has not changed for Sue, and is stated again all the same"
        )
        runner.check()


def befriended() -> ms.Pipeline:
    """Every user has a friend: the one whose id is their ts modulo ten."""
    pipeline = ms.Pipeline("people")
    users = pipeline.table("users", SOURCE, key="id", version="ts", deleted="gone")
    pairs = users.by(lambda row: row.value["ts"] % 10).join(users, name="pairs")
    pairs.by(lambda row: row.value["right"]["name"]).reduce(ms.count(), name="friends")
    return pipeline


@pytest.mark.parametrize("stale", [user("Sam", 1, 7), user("Sam", 1, 1)], ids=["of the left side", "of the right side"])
def test_a_repair_travels_through_a_join(stale: dict[str, Any]) -> None:
    """User 7's friend is user 1, Joe. The view behind the join has lost it; a stale post of either of the two brings it back."""
    runner = ran(befriended(), [user("Sue", 11, 7), user("Joe", 13, 1)])
    assert runner.view("friends") == {"Joe": 1}
    store, joe = entry_of(runner, "friends", "Joe")
    store.apply({joe: None})
    assert runner.view("friends") == {}
    for _ in range(2):
        runner.push("users", stale)
        runner.epoch()
        assert runner.view("friends") == {"Joe": 1}
        runner.check()


def test_a_left_document_that_dangles_in_a_join_is_taken_out() -> None:
    """User 7 is also in the row of user 2, Bob, by hand. A post of a time when Bob was the friend takes it out, and what the join has made of it."""
    runner = ran(befriended(), [user("Sue", 11, 7), user("Joe", 13, 1), user("Bob", 14, 2)])
    kind = runner._engine.compiled.make("pairs")[1]
    (store, joe), (other, bob) = entry_of(runner, "pairs", 1), entry_of(runner, "pairs", 2)
    row, wrong = (decode_row(of.entries[at]) for of, at in ((store, joe), (other, bob)))
    left, right = kind.decode(row.state), kind.decode(wrong.state)
    right.inline, right.count = left.inline, left.count
    other.apply({bob: encode_row(Row(kind.encode(right), wrong.low, wrong.wall, wrong.holds))})
    friends, joes = entry_of(runner, "friends", "Joe")
    made = runner._engine.compiled.make("friends")[1].decode(decode_row(friends.entries[joes]).state)
    assert list(made.inline) == [key_text((1, 7))]
    made.inline = {key_text((2, 7)): made.inline[key_text((1, 7))]}
    others, bobs = entry_of(runner, "friends", "Bob")
    others.apply({bobs: encode_row(Row(runner._engine.compiled.make("friends")[1].encode(made)))})
    assert runner.view("friends") == {"Joe": 1, "Bob": 1}
    runner.push("users", user("Sam", 2, 7))
    runner.epoch()
    assert runner.view("friends") == {"Joe": 1}
    runner.check()


# --- "save ALL pending values in doc"


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


# --- not in the notes: the map has changed, the state was kept


def test_a_changed_map_is_filled_anew_and_with_the_old_state_it_is_wrong() -> None:
    def version(by: Any, **options: Any) -> ms.Pipeline:
        pipeline = ms.Pipeline("people")
        users = pipeline.table("users", SOURCE, key="id", version="ts")
        users.by(by).reduce(ms.count(), name="names", **options)
        return pipeline

    def changed(**options: Any) -> Runner:
        kept = {name: value for name, value in options.items() if name == "origins"}
        runner = ran(version("name", **kept), [user("Sue", 1, id) for id in range(3)])
        runner.become(version(lambda row: row.value["name"].lower(), **options))
        runner.push("users", *[user("Joe", 2, id) for id in range(3)])
        runner.run()
        return runner

    right = changed(version="2")
    assert right.view("names") == {"joe": 3}
    right.check()
    wrong = changed(keep=True)
    assert wrong.view("names") == {"Sue": 3, "joe": 3}
    with pytest.raises(AssertionError, match="group 'Sue'"):
        wrong.check()
    plain = changed(keep=True, origins=False)
    assert plain.view("names") == {"Sue": 3, "joe": 3} and plain.state("names", "sue").count == -3
