"""Tables, views, views on views and joins under crashes, lost and repeated attempts, zombies, repeated records and compactions: always what an undisturbed run
gives, and after every commit what a recomputation gives. Also while a view is filled beside live changes, and while leaves split."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from faultkit import ORDERS, USERS, Rows, shop, snapshots, trade

import millstream as ms
from effort import first_seed, some
from millstream.core import backfill
from millstream.core.guards import Guards
from millstream.simulation.schedules import make_plan, make_schedule
from millstream.simulation.simulated_run import InputPlan
from millstream.simulation.view_checks import EpochJudge
from millstream.testing import assert_exactly_once
from millstream.views.agg_tree import Tree
from sparklog import SPARK_LOG_KINDS, SparkLogSimulation


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "FIRST_CHUNK", 2)
    monkeypatch.setattr(backfill, "_chunk", lambda chunk, millis: 2)


# --- a thousand seeds


def flood(seed: int) -> Rows:
    """Many orders of few users, and then fewer: groups grow over sixty contributions, and shrink back."""
    dice = random.Random(seed)
    rows: Rows = [("users", {"id": id, "name": "ab"[id], "gone": False, "ts": 0}) for id in range(2)]
    ids = dice.sample(range(70), 70)
    for ts, id in enumerate([*ids, *dice.sample(ids, 55)]):
        rows.append(("orders", {"id": id, "user": id % 7 // 6, "amount": dice.randrange(100), "gone": ts >= len(ids), "ts": ts}))
    return rows


def try_seeds(first: int, count: int, **shapes: Any) -> None:
    """So many seeds, each ten of them on records of their own; others at every commit."""
    then = shapes.pop("then", None)
    first += first_seed() // 20 * 20
    for at in range(first, first + count, 10):
        seeds = range(at, min(at + 10, first + count))
        rows = flood(at) if shapes.get("inline") == 0 and at % 20 == 0 else trade(at)
        assert_exactly_once(shop(**shapes), rows, seeds=seeds, epochs="same", then=None if then is None else shop(**{**shapes, **then}))


@pytest.mark.slow
@pytest.mark.parametrize("production", [ms.WEAK, ms.STRONG])
def test_random_faults_over_weak_and_strong_edges(production: str) -> None:
    try_seeds(0, some(150), production=production)


@pytest.mark.slow
def test_random_faults_while_leaves_split(monkeypatch: pytest.MonkeyPatch) -> None:
    resized = Counter[str]()

    def counting(name: str) -> Any:
        resize = getattr(Tree, name)

        def counted(tree: Tree) -> None:
            resized[name] += 1
            resize(tree)

        return counted

    for name in ("_split", "_merge"):
        monkeypatch.setattr(Tree, name, counting(name))
    try_seeds(1000, some(100), inline=0)
    assert resized["_split"] and resized["_merge"], "otherwise the seeds prove little"


@pytest.mark.slow
@pytest.mark.parametrize("then", [{"more": True}, {"version": 2}, {"version": 2, "more": True}], ids=["new", "changed", "both"])
def test_random_faults_while_a_scan_runs(then: dict[str, Any], small_chunks: None) -> None:
    try_seeds(2000, some(60), then=then)


@pytest.mark.slow
@pytest.mark.parametrize("production", [ms.WEAK, ms.STRONG])
def test_any_epochs(production: str) -> None:
    for seed in range(some(20) // 5):
        ms.testing.assert_same_in_any_epochs(shop(production, inline=seed % 2 * 30), trade(seed))


@pytest.mark.soak
@pytest.mark.parametrize("origins", [True, False])
@pytest.mark.parametrize("inline", [1024, 30, 0])
@pytest.mark.parametrize("production", [ms.WEAK, ms.STRONG])
@pytest.mark.parametrize("then", [None, {"version": 2, "more": True}], ids=["as it is", "while a scan runs"])
def test_many_more_random_faults(then: Any, production: str, inline: int, origins: bool, small_chunks: None) -> None:
    try_seeds(10_000, 420, production=production, inline=inline, origins=origins, then=then)


class Watched(SparkLogSimulation):
    """Notes the epochs after which a view is still being filled."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.filling: set[int] = set()

    def _look(self, compiled: Any, manifest: Any) -> None:
        if any(build.is_filling for build in manifest.builds.values()):
            self.filling.add(manifest.epoch)
        super()._look(compiled, manifest)


@pytest.mark.slow
def test_the_scan_is_under_way_when_faults_strike(small_chunks: None) -> None:
    """Otherwise the seeds above would prove little."""
    struck = 0
    for seed in range(2000, 2020):
        plan = make_plan(trade(2000), seed)
        then = (random.Random(f"then {seed}").randrange(1, len(plan.epochs)), shop(more=True).program())
        schedule = make_schedule(shop().program(), plan, seed, SPARK_LOG_KINDS, 2)
        simulation = Watched(shop().program(), plan, schedule, seed, then=then)
        simulation.run()
        struck += any(fault.epoch - 1 in simulation.filling for fault in schedule)
    assert struck >= 3


def test_a_drain_goes_on_until_a_new_view_is_filled(small_chunks: None) -> None:
    """Also one that begins when event time has ended long ago."""
    plan = make_plan(trade(5), 5)
    for then in ((len(plan.epochs) - 1, shop(more=True).program()), None):
        simulation = SparkLogSimulation(shop().program(), plan, [], 1, then=then)
        manifest = simulation.run()
        if then is None:
            assert manifest.drained and "busy" not in manifest.builds
            manifest = SparkLogSimulation(
                shop(more=True).program(), InputPlan([], plan.clock[-1:]), [], 2, storage=simulation.storage
            ).run()
        assert manifest.drained and manifest.computations["busy"].tallies["groups"] > 0
        assert not any(build.is_filling for build in manifest.builds.values())


# --- twins: a rule is off, and it shows


def failing(pipeline: ms.Pipeline, rows: Rows, guard: str, **options: Any) -> list[str]:
    """The report without a rule; with it, all is right."""
    options = {"seeds": range(60), "epochs": "same", **options}
    assert_exactly_once(pipeline, rows, **{**options, "seeds": range(10)})
    with pytest.raises(AssertionError) as caught:
        assert_exactly_once(pipeline, rows, guards=Guards.without(guard), **options)
    return str(caught.value).splitlines()


def in_order(rows: Rows) -> Rows:
    """The same without stale records."""
    return [(stream, {**row, "ts": at}) for at, (stream, row) in enumerate(rows)]


@pytest.mark.slow
def test_without_the_journal_a_strong_edge_loses_changes() -> None:
    said = failing(shop(ms.STRONG), trade(1), "journal")
    assert any(said[1].startswith(f"  1. {fault}") for fault in ("retry", "recompute", "zombie")) and len(said) == 3, said


@pytest.mark.slow
def test_without_the_journal_a_weak_edge_loses_nothing() -> None:
    assert_exactly_once(shop(), trade(1), seeds=range(20), epochs="same", guards=Guards.without("journal"))


@pytest.mark.slow
def test_without_origins_a_restatement_counts_twice() -> None:
    said = failing(shop(), in_order(trade(2)), "origins")
    assert said[1].startswith("  1. repeat") and said[2].startswith("after epoch") and "contribution of" in said[2], said


def test_without_versions_a_repeated_record_brings_the_past_back() -> None:
    pipeline = ms.Pipeline("people")
    users = pipeline.table("users", USERS, key="id", version="ts", timestamp="ts")
    pipeline.publish(users.by("name").reduce(ms.count(), name="names"), ms.sinks.files("out/"))
    rows = [("users", {"id": at % 2, "name": "abc"[at % 3], "gone": False, "ts": at}) for at in range(8)]
    said = failing(pipeline, rows, "versions")
    assert said[1].startswith("  1. repeat") and len(said) == 3, said


@pytest.mark.slow
def test_without_the_cursor_a_scan_counts_live_changes_twice(small_chunks: None) -> None:
    """Where contributions are added. Where they are set, it would do no harm."""
    said = failing(shop(origins=False), in_order(trade(3, 60)), "cursor", then=shop(origins=False, more=True))
    assert said[1].startswith("after epoch ") and "view 'busy'" in said[1], said


def moved(seed: int, **options: Any) -> bool:
    """Whether a view behind a join is right after orders have moved from user to user for some epochs."""
    pipeline = ms.Pipeline("shop")
    users = pipeline.table("users", USERS, key="id", version="ts")
    orders = pipeline.table("orders", ORDERS, key="id", version="ts")
    orders.by("user").join(users, name="paid").by(lambda row: row.value["right"]["name"]).reduce(ms.count(), name="per_name")
    dice = random.Random(seed)
    runner = ms.testing.LocalRunner(pipeline, shards=2, **options)
    names = {id: dice.choice("ab") for id in range(5)}
    runner.push("users", *[{"id": id, "name": name, "gone": False, "ts": 0} for id, name in names.items()])
    at: dict[int, int] = {}
    for ts in range(1, 6):
        for id in range(3):
            at[id] = dice.randrange(5)
            runner.push("orders", {"id": id, "user": at[id], "amount": 1, "gone": False, "ts": ts})
        runner.epoch()
    return bool(runner.view("per_name") == Counter(names[user] for user in at.values()))


def test_an_order_that_moves_is_taken_out_by_one_row_and_put_in_by_another_in_any_order() -> None:
    assert all(moved(seed) for seed in range(some(60)))
    assert not all(moved(seed, guards=Guards.without("sender")) for seed in range(some(60)))


# --- every published epoch is one cut


def bank(production: str = ms.WEAK) -> ms.Pipeline:
    """Who has given and who has got: what is given by all is what all have got. production: of one of the two."""
    pipeline = ms.Pipeline("bank")
    source = ms.sources.files("in/", schema="id long, giver string, taker string, amount long, gone boolean, ts long")
    moves = pipeline.table("moves", source, key="id", version="ts", deleted="gone")
    debits = moves.by("giver").reduce(name="debits", n=ms.count(), sum=ms.sum("amount"))
    credits = moves.by("taker").reduce(name="credits", n=ms.count(), sum=ms.sum("amount"), production=production)
    for relation in (moves, debits, credits):
        pipeline.publish(relation, ms.sinks.files("out/"))
    return pipeline


def cuts(seed: int, production: str = ms.WEAK) -> list[bool]:
    """Whether the views agree with each other and with the table, in every published epoch of a run under faults."""
    dice = random.Random(seed)
    rows = [
        {"id": dice.randrange(8), "giver": dice.choice("abc"), "taker": dice.choice("xyz"), "amount": dice.randrange(9), "gone": dice.random() < 0.2, "ts": ts}
        for ts in range(25)
    ]  # fmt: skip
    program = bank(production).program()
    plan = make_plan([("moves", row) for row in rows], seed)
    schedule = make_schedule(program, plan, seed, SPARK_LOG_KINDS, 2)
    simulation = SparkLogSimulation(program, plan, schedule, seed, judge=EpochJudge())
    simulation.run()
    documents, debits, credits = (snapshots(simulation, f"{name}~changelog") for name in ("moves", "debits", "credits"))
    found = []
    for there, given, got in zip(documents, debits, credits, strict=True):
        counts = {len(there), sum(one["n"] for one in given.values()), sum(one["n"] for one in got.values())}
        sums = sum(one["sum"] for one in given.values()) - sum(one["sum"] for one in got.values())
        found.append(len(counts) == 1 and sums == 0)
    assert len(found) > 2 and documents[-1]
    return found


def test_two_views_of_one_table_agree_in_every_published_epoch() -> None:
    assert all(all(cuts(seed)) for seed in range(some(40)))


def test_behind_a_strong_edge_a_view_follows_an_epoch_later_and_they_do_not() -> None:
    """The twin."""
    assert not any(all(cuts(seed, ms.STRONG)) for seed in range(10))
