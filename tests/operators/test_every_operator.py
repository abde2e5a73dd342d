"""Every operator, several at a time in one pipeline, against plain Python: random parameters, cuts of epochs and shards. Then under faults, in micro-batches
and in tasks that stay, where every attempt takes columns or single records by lot, and must come to the same bytes."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from opkit import id_of, left_over, small

import millstream as ms
from effort import first_seed, some
from millstream.errors import HookError
from millstream.operators import changing_panes, panes, session, spans, vectors, waiting
from millstream.operators import spread as spreading
from millstream.operators.asof import AsOfJoin
from millstream.operators.first import Deduplicate
from millstream.operators.in_order import InOrder
from millstream.operators.interval_join import HOWS
from millstream.views.running import RunningTotal
from operators import test_sessions as sessions
from operators.test_oracle import as_of, interval_join
from operators.windowkit import REDUCERS, SCHEMA, fixed, local_day, reduced, told
from views.test_stream_views import led_to

DELAY = 1_000
MIDNIGHT = 1_679_785_200_000  # in Berlin
Row = dict[str, Any]
Given = list[tuple[str, Row]]
Check = Callable[[ms.testing.LocalRunner, Given], None]
Operator = Callable[[Any], Check]


class Shop(NamedTuple):
    """What operators are tried on: two streams, a table, and what draws their parameters."""

    p: ms.Pipeline
    left: ms.Stream
    right: ms.Stream
    people: Any
    dice: random.Random

    def span(self, most: int = 1_500) -> int:
        return self.dice.choice([0, self.dice.randint(0, most)])


def shop(dice: random.Random) -> Shop:
    p = ms.Pipeline("shop")
    source = ms.sources.files("in/", schema=f"{SCHEMA}, k string")
    watermark = ms.watermarks.bounded(f"{DELAY}ms")
    left, right = (p.inject(name, source, timestamp="at", id="id", watermark=watermark) for name in ("left", "right"))
    people = p.table("people", ms.sources.files("people/", schema="user string, name string, v long"), key="user", version="v")
    return Shop(p, left, right, people, dice)


def rows(dice: random.Random, disorder: int = DELAY) -> Given:
    """Rows in the order of arrival, none of which is late; and then one of another key, behind which time has passed for all of them. disorder: with more
    than the watermark waits for, some are late."""
    found: list[tuple[int, str, Row]] = []
    at = MIDNIGHT - dice.randint(0, 6_000)
    for number in range(dice.randint(1, 40)):
        at += dice.choice([0, 1, 50, 300, 700, 2_500])
        stream = dice.choice(["left", "left", "right"])
        user = dice.choice(["ann", "bob", "\0odd"])
        price = dice.choice([None, dice.randint(-9, 9), dice.choice([2**62, -(2**62), 2**53 + 1])])
        row = {"user": user, "k": user, "at": at, "id": f"{stream[0]}{number:02d}", "price": price}
        found.append(
            (at + dice.randint(0, disorder), stream, {**row, "weight": dice.choice([None, 0.5, -0.0, 0.0]), "page": dice.choice("xyz")})
        )
    people = [("people", {"user": user, "name": f"{user}-{dice.random()}", "v": 1}) for user in ("ann", "bob") if dice.random() < 0.8]
    end = {"user": "end", "k": "end", "at": at + 3_600_000, "price": 1, "weight": None, "page": "end"}
    ends = [(stream, {**end, "id": f"{stream[0]}-end"}) for stream in ("left", "right")]
    return [*people, *((stream, row) for _, stream, row in sorted(found, key=lambda one: one[0])), *ends]


def millis(time: int) -> str:
    return f"{time}ms"


def of(given: Given, stream: str) -> list[Row]:
    return [row for name, row in given if name == stream]


# --- windows


def kind(dice: random.Random) -> tuple[Any, Any]:
    """A kind of window, and the windows of a time."""
    size, offset = dice.randint(1, 3), dice.choice([0, 300])
    return dice.choice(
        [
            (ms.windows.tumbling(f"{size}s", offset=millis(offset)), fixed(size * 1_000, size * 1_000, offset)),
            (ms.windows.hopping("3s", every=f"{size}s", offset=millis(offset)), fixed(3_000, size * 1_000, offset)),
            (ms.windows.calendar("day", zone="Europe/Berlin"), local_day("Europe/Berlin")),
        ]
    )


def windows(s: Shop, name: str = "windows", **options: Any) -> Check:
    of_time, plain = kind(s.dice)
    s.left.by("user").window(of_time).reduce(REDUCERS, name=name, **options)

    def check(runner: ms.testing.LocalRunner, given: Given) -> None:
        assert told(runner.output(name)) == reduced(of(given, "left"), plain)

    return check


def spread(s: Shop) -> Check:
    return windows(s, "spread", spread=s.dice.randint(2, 5))


def same(s: Shop) -> Check:
    of_time, plain = kind(s.dice)
    counts = s.left.by("user", "page").window(of_time).reduce(n=ms.count(), name="counts")
    counts.by("user").window(ms.windows.same()).reduce(most=ms.max("n"), pages=ms.collect("page"), name="same")

    def check(runner: ms.testing.LocalRunner, given: Given) -> None:
        groups: dict[Any, Counter[str]] = defaultdict(Counter)
        for row in of(given, "left"):
            for window in plain(row["at"]):
                groups[(row["user"], *window)][row["page"]] += 1
        assert told(runner.output("same")) == {key: {"most": max(n.values()), "pages": sorted(n)} for key, n in groups.items()}

    return check


def in_sessions(s: Shop) -> Check:
    reducers = {"n": ms.count(), "total": ms.sum("price"), "landing": ms.first("page"), "pages": ms.collect("page")}
    s.left.by("user").window(ms.windows.session("2s")).reduce(reducers, name="sessions")

    def check(runner: ms.testing.LocalRunner, given: Given) -> None:
        assert sessions.told(runner.output("sessions")) == sessions.plain(of(given, "left"))

    return check


def that_change(s: Shop) -> Check:
    of_time, plain = s.dice.choice([kind(s.dice), (ms.windows.session("2s"), None)])
    early, lateness = s.dice.choice([(None, "2s"), ("1s", "0s"), ("1s", "3s")])
    made = s.left.by("user").window(of_time, early=early, lateness=lateness).reduce(n=ms.count(), total=ms.sum("price"), name="changing")
    s.p.publish(made, ms.sinks.memory())

    def check(runner: ms.testing.LocalRunner, given: Given) -> None:
        found = [
            ((value["user"], value["start"], value["end"]), (value["n"], value["total"]))
            for value in led_to(runner.output("changing")).values()
        ]
        wanted = sessions.plain(of(given, "left")) if plain is None else reduced(of(given, "left"), plain)
        assert sorted(found) == sorted((key, (value["n"], value["total"])) for key, value in wanted.items())

    return check


# --- joins


def joined(s: Shop) -> Check:
    after, before, how, lateness = s.span(), s.span(), s.dice.choice(HOWS), s.dice.choice([0, 400])
    s.left.by("k").join(s.right.by("k"), after=millis(after), before=millis(before), how=how, lateness=millis(lateness), name="joined")
    return partial(pairs, "joined", lambda given: interval_join(given, after, before, how, lateness))


def looked_back(s: Shop) -> Check:
    back, how = s.dice.choice([None, s.span()]), s.dice.choice(["left", "inner"])
    s.left.by("k").asof(s.right.by("k"), back=None if back is None else millis(back), how=how, name="asof")
    return partial(pairs, "asof", lambda given: as_of(given, back, how))


def pairs(name: str, plain: Callable[[Given], list[Any]], runner: ms.testing.LocalRunner, given: Given) -> None:
    found = [(id_of(value["left"]), id_of(value["right"]), at) for _, value, at in runner.output(name)]
    assert sorted(found, key=repr) == plain(given)


def looked_up(s: Shop) -> Check:
    how = s.dice.choice(["left", "inner"])
    s.left.by("user").join(s.people, how=how, name="looked")

    def check(runner: ms.testing.LocalRunner, given: Given) -> None:
        names = {row["user"]: row["name"] for row in of(given, "people")}
        wanted = [(row["id"], names.get(row["user"])) for row in of(given, "left") if how == "left" or row["user"] in names]
        found = [(value["left"]["id"], value["right"] and value["right"]["name"]) for _, value, _ in runner.output("looked")]
        assert sorted(found) == sorted(wanted)

    return check


# --- record by record


def deduplicated(s: Shop) -> Check:
    within = s.dice.randint(1, 2_000)
    s.left.by("user").deduplicate(within=millis(within), name="first")

    def check(runner: ms.testing.LocalRunner, given: Given) -> None:
        times = defaultdict(list)
        for key, _, at in runner.output("first"):
            times[key].append(at)
        assert all(b - a >= within for mine in times.values() for a, b in itertools.pairwise(sorted(mine)))
        assert all(any(abs(row["at"] - at) < within for at in times[row["user"]]) for row in of(given, "left"))

    return check


def in_order(s: Shop) -> Check:
    s.left.by("user").in_order(name="ordered")

    def check(runner: ms.testing.LocalRunner, given: Given) -> None:
        for user in {row["user"] for row in of(given, "left")}:
            mine = sorted((row["at"], row["id"]) for row in of(given, "left") if row["user"] == user)
            assert [(one.timestamp, one.value["id"]) for one in runner.records("ordered") if one.key == user] == mine

    return check


class Visits(ms.Computation):
    """How many records of a key there were since it expired."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce([record.value["id"], self.state])


def expired(s: Shop) -> Check:
    after = s.dice.randint(1_000, 4_000)
    ordered = s.left.by("user").in_order(name="queue")
    s.p.compute(Visits, ordered, produces="visits", expire=millis(after))

    def check(runner: ms.testing.LocalRunner, given: Given) -> None:
        wanted, part = [], after // 8
        for user in {row["user"] for row in of(given, "left")}:
            count, newest = 0, None
            for at, id in sorted((row["at"], row["id"]) for row in of(given, "left") if row["user"] == user):
                count = 1 if newest is not None and at >= newest + after else count + 1
                newest = -(-at // part) * part  # kept a little longer than said (`core/expiry.py`)
                wanted.append([id, count])
        assert sorted(value for _, value, _ in runner.output("visits")) == sorted(wanted)

    return check


# --- totals and steps


def totals(s: Shop) -> Check:
    expire = s.dice.choice([None, millis(s.dice.randint(1_000, 4_000))])
    made = s.left.by("user").reduce(n=ms.count(), total=ms.sum("price"), name="totals", expire=expire)
    s.p.publish(made, ms.sinks.memory())

    def check(runner: ms.testing.LocalRunner, given: Given) -> None:
        found = led_to(runner.output("totals"))
        if expire is not None:
            assert set(found) <= {"end"}
            return
        wanted = {}
        for user in {row["user"] for row in of(given, "left")}:
            prices = [row["price"] for row in of(given, "left") if row["user"] == user]
            wanted[user] = {"n": len(prices), "total": sum(p for p in prices if p is not None) if set(prices) - {None} else None}
        assert found == wanted

    return check


def parted(s: Shop) -> Check:
    """branch, map, filter and flat_map, and merge with another stream."""
    dear, cheap = s.left.branch("price > 0")
    twice = cheap.flat_map(lambda r: [r.value, r.value])
    both = dear.by("user").merge(twice.by("user"), s.right.filter(lambda r: r.value["page"] != "x").by("page"))
    size = s.dice.randint(1, 3)
    both.map({"page": "page"}).window(ms.windows.tumbling(f"{size}s")).reduce(
        n=ms.count(), pages=ms.count_distinct("page"), most=ms.max("page"), name="both"
    )

    def check(runner: ms.testing.LocalRunner, given: Given) -> None:
        mine = [(row["user"], row) for row in of(given, "left") for _ in range(1 if (row["price"] or 0) > 0 else 2)]
        mine += [(row["page"], row) for row in of(given, "right") if row["page"] != "x"]
        groups: dict[Any, list[str]] = defaultdict(list)
        for key, row in mine:
            start = row["at"] // (size * 1_000) * size * 1_000
            groups[key, start, start + size * 1_000].append(row["page"])
        wanted = {key: {"n": len(pages), "pages": len(set(pages)), "most": max(pages)} for key, pages in groups.items()}
        assert told(runner.output("both")) == wanted

    return check


OPERATORS: list[Operator] = [
    *(windows, spread, same, in_sessions, that_change),
    *(joined, looked_back, looked_up),
    *(deduplicated, in_order, expired, totals, parted),
]
KEEP = {"asof", "totals", "people", "looked", "Visits"}  # something stays behind the end


def pipeline(seed: int, some_of: Sequence[Operator] | None = None, disorder: int = DELAY) -> tuple[ms.Pipeline, list[Check], Given]:
    """A pipeline of some operators, three by lot, what they have to give, and rows."""
    dice = random.Random(seed)
    s = shop(dice)
    chosen = dice.sample(OPERATORS, 3) if some_of is None else some_of
    checks = [operator(s) for operator in chosen]
    return s.p, checks, [(stream, row) for stream, row in rows(dice, disorder) if stream in s.p.topology().injectors]


@contextlib.contextmanager
def sizes(seed: int) -> Iterator[None]:
    """For half of the seeds, entries are merged and records leave the row as soon as there are two."""
    if seed % 2:
        yield
        return
    with small(60), pytest.MonkeyPatch.context() as patch:
        patch.setattr(panes, "MERGED", 2)
        patch.setattr(session, "MERGED", 2)
        yield


def try_locally(seed: int, some_of: Sequence[Operator] | None = None) -> None:
    with sizes(seed):
        run_locally(seed, some_of)


def run_locally(seed: int, some_of: Sequence[Operator] | None) -> None:
    p, checks, given = pipeline(seed, some_of)
    dice = random.Random(f"cuts {seed}")
    runner = ms.testing.LocalRunner(p, shards=dice.randint(1, 3))
    runner.push("people", *of(given, "people"))
    runner.epoch()
    for stream, row in given:
        if stream != "people":
            runner.push(stream, row)
            if dice.random() < 0.3:
                runner.epoch()
                if dice.random() < 0.2:
                    runner.advance_clock(f"{dice.randint(1, 3)}s")
    runner.run()
    runner.drain()
    for check in checks:
        check(runner, given)
    for name in p.topology().by_name:
        assert runner.late(name) == 0 and (name in KEEP or left_over(runner, name) == []), name


def try_faults(seed: int, some_of: Sequence[Operator] | None = None) -> None:
    p, _, given = pipeline(seed, some_of, DELAY if seed % 3 else 4 * DELAY)
    with sizes(seed):
        ms.testing.assert_exactly_once(p, given, seeds=[seed], epochs="same", resident=seed % 4 < 2)


def seeds(count: int) -> range:
    return range(first_seed(), first_seed() + count)


def test_every_operator_gives_what_plain_python_does() -> None:
    for seed in seeds(some(400, 20)):
        try_locally(seed)


def test_every_operator_is_exactly_once_on_both_paths() -> None:
    for seed in seeds(some(400, 10)):
        try_faults(seed)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
def test_a_thousand_seeds(part: int) -> None:
    for seed in seeds(1_000)[part * 100 : (part + 1) * 100]:
        try_locally(seed)
        try_faults(seed)


@pytest.mark.parametrize(
    ("operator", "where", "name", "wrong"),
    [
        (windows, panes.PaneStep, "_keep", lambda self, end, table: None),
        (in_sessions, session, "longest_due", lambda ending, others, after: np.full(len(ending), spans.NOTHING_DUE)),
        (that_change, changing_panes, "epoch_of", lambda name: 10**9),
        (spread, spreading.OfParts, "combine", lambda self, a, b: a),
        (joined, waiting.Side, "mark", lambda self, name, places: None),
        (looked_back, AsOfJoin, "next_look", lambda self: None),
        (in_order, InOrder, "next_look", lambda self: None),
        (deduplicated, Deduplicate, "process_record", lambda self, record: self.produce(record.value)),
        (totals, RunningTotal, "process_expiry", lambda self: setattr(self, "expired", self.state.shown)),
    ],
)
def test_twin_an_operator_that_is_wrong_is_noticed(
    monkeypatch: pytest.MonkeyPatch, operator: Operator, where: Any, name: str, wrong: Any
) -> None:
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises((AssertionError, HookError)):
        for seed in range(200):
            try_locally(seed, [operator])


def test_twin_paths_that_differ_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors.Count, "lifted", lambda self, rows, labels: [pa.array(labels.count + 1)])
    with pytest.raises(AssertionError):
        for seed in range(20):
            try_faults(seed, [windows])
