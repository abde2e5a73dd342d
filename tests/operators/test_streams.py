"""What users write on streams: steps without state, keys, merging, dead letters, and what is said of what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.errors import DefinitionError, HookError

SCHEMA = "user string, price long, quantity long, at long, id string"


def shop() -> tuple[ms.Pipeline, ms.Stream]:
    p = ms.Pipeline("shop")
    sales = p.inject("sales", ms.sources.files("sales/", schema=SCHEMA), timestamp="at", id="id", watermark=ms.watermarks.bounded("1s"))
    return p, sales


def sale(user: Any, price: Any, quantity: int = 1, at: int = 1_000, id: str = "") -> dict[str, Any]:
    return {"user": user, "price": price, "quantity": quantity, "at": at, "id": id or f"{user}-{price}-{at}"}


def out(pipeline: ms.Pipeline, stream: ms.Stream, *rows: dict[str, Any]) -> list[tuple[Any, Any]]:
    """What a stream says of some rows, in order of key and value."""
    pipeline.emit(stream, ms.sinks.memory())
    runner = ms.testing.LocalRunner(pipeline)
    runner.push("sales", *rows)
    runner.drain()
    return sorted(((key, value) for key, value, _ in runner.output(stream.name)), key=repr)


ROWS = [sale("sue", 3, 2), sale("tod", 5), sale("sue", 4, at=1_500), sale("tod", None)]


@pytest.mark.parametrize(
    ("condition", "total"),
    [
        ("price > 3", "price * quantity"),
        (ms.col("price") > 3, ms.col("price") * ms.col("quantity")),
        (lambda r: (r.value["price"] or 0) > 3, None),
    ],
    ids=["text", "col", "function"],
)
@pytest.mark.parametrize("keyed_first", [True, False])
def test_steps_mean_the_same_as_text_as_col_and_as_function_before_the_key_and_behind_it(
    condition: Any, total: Any, keyed_first: bool
) -> None:
    p, sales = shop()
    made: Any = (
        {"user": "user", "total": total}
        if total is not None
        else lambda r: {"user": r.value["user"], "total": r.value["price"] * r.value["quantity"]}
    )
    steps: Any = sales.by("user").filter(condition).map(made) if keyed_first else sales.filter(condition).map(made).by("user")
    found = out(p, steps.window(ms.windows.tumbling("1s")).reduce(total=ms.sum("total"), name="totals"), *ROWS)
    assert found == [(user, {"user": user, "start": 1000, "end": 2000, "total": total}) for user, total in (("sue", 4), ("tod", 5))]


def test_flat_map_gives_several_values_or_none() -> None:
    p, sales = shop()
    each = sales.by("user").flat_map(lambda r: [{"piece": n} for n in range(r.value["quantity"])] if r.value["price"] else [])
    found = out(p, each.window(ms.windows.tumbling("1s")).reduce(n=ms.count(), name="pieces"), *ROWS)
    assert [(key, value["n"]) for key, value in found] == [("sue", 3), ("tod", 1)]


def test_branch_parts_and_merge_joins_again() -> None:
    p, sales = shop()
    dear, cheap = sales.branch(lambda r: (r.value["price"] or 0) > 3)
    both = dear.merge(cheap).by("user").window(ms.windows.tumbling("1s")).reduce(n=ms.count(), name="both")
    alone = dear.by("user").window(ms.windows.tumbling("1s")).reduce(n=ms.count(), name="alone")
    p.emit(alone, ms.sinks.memory())
    assert [(key, value["n"]) for key, value in out(p, both, *ROWS)] == [("sue", 2), ("tod", 2)]


def test_a_stream_with_steps_can_be_emitted_and_computed_on() -> None:
    class Sum(ms.Computation):
        State = int

        def process_record(self, record: ms.Record) -> None:
            self.state += record.value
            self.produce(self.state)

    p, sales = shop()
    priced = sales.filter("price is not null")
    assert out(p, priced.map("price"), *ROWS) == [(None, 3), (None, 4), (None, 5)]
    p, sales = shop()
    sums = p.compute(Sum, sales.filter("price is not null").map("price").by(), name="Sum", produces="sums")
    assert max(out(p, sums, *ROWS)) == ("", 12)


def test_an_output_can_be_named_so_that_the_order_of_definitions_does_not_matter() -> None:
    def names(swapped: bool) -> dict[str, str]:
        p, sales = shop()
        dear, cheap = sales.branch("price > 3")
        for stream, name in [(cheap, "cheap"), (dear, "dear")] if swapped else [(dear, "dear"), (cheap, "cheap")]:
            p.emit(stream, ms.sinks.files(f"{name}/"), name=name)
        return {one.name: one.sink.path.rsplit("/", 1)[1] for one in p.topology().emissions}

    assert names(True) == names(False) == {"dear": "dear", "cheap": "cheap"}


def test_of_reads_one_of_the_merged_streams_only() -> None:
    p, sales = shop()
    returns = p.inject("returns", ms.sources.files("returns/", schema="who string, at long, id string"), timestamp="at", id="id")
    both = sales.by("user").merge(returns.by("who"))
    counts = both.window(ms.windows.tumbling("1s")).reduce(sold=ms.count(of=sales), returned=ms.count(of=returns), name="counts")
    p.emit(counts, ms.sinks.memory())
    runner = ms.testing.LocalRunner(p)
    runner.push("sales", *ROWS)
    runner.push("returns", {"who": "sue", "at": 1_800, "id": "r1"})
    runner.drain()
    assert {key: (value["sold"], value["returned"]) for key, value, _ in runner.output("counts")} == {"sue": (2, 1), "tod": (2, 0)}


@pytest.mark.parametrize("kind", [ms.windows.tumbling("1s"), ms.windows.session("1s")], ids=["tumbling", "session"])
@pytest.mark.parametrize("where", ["map", "reducer"])
def test_a_function_that_raises_ends_the_epoch_with_the_record_or_becomes_a_dead_letter(kind: Any, where: str) -> None:
    def define(on_error: str) -> tuple[ms.Pipeline, ms.Stream]:
        p, sales = shop()
        keyed = sales.by("user")
        if where == "map":
            stream = (
                keyed.map(lambda r: 100 // (r.value["price"] - 5)).window(kind).reduce(total=ms.sum(), name="totals", on_error=on_error)
            )
        else:
            stream = keyed.window(kind).reduce(total=ms.sum(lambda v: 100 // (v["price"] - 5)), name="totals", on_error=on_error)
        return p, stream

    rows = [sale("sue", 6), sale("sue", 5), sale("sue", 7, at=1_100)]
    p, stream = define(ms.FAIL)
    with pytest.raises(HookError, match=r"'totals'.*ZeroDivisionError(.|\n)*'price': 5"):
        out(p, stream, *rows)
    p, stream = define(ms.DEAD_LETTER)
    p.emit(p.dead_letters("totals"), ms.sinks.memory())
    runner = ms.testing.LocalRunner(p)
    runner.push("sales", *rows)
    runner.drain()
    assert [value["total"] for _, value, _ in runner.output("totals")] == [150]
    assert [value["value"]["price"] for _, value, _ in runner.output("totals.dead-letters")] == [5]
    ms.testing.assert_exactly_once(p, rows, seeds=range(10))


def test_a_reducer_that_cannot_combine_two_values_makes_the_second_a_dead_letter() -> None:
    p = ms.Pipeline("mixed")
    rows = p.inject("rows", ms.sources.files("rows/", schema="value long, at long"), timestamp="at")
    made = rows.by().map(lambda r: r.value["value"] if r.value["value"] != 2 else "two")
    least = made.window(ms.windows.tumbling("1h")).reduce(ms.min(), name="least", on_error=ms.DEAD_LETTER)
    p.emit(least, ms.sinks.memory())
    p.emit(p.dead_letters("least"), ms.sinks.memory())
    runner = ms.testing.LocalRunner(p)
    runner.push("rows", *[{"at": 1000 + n, "value": n} for n in range(4)])
    runner.drain()
    assert [value["min"] for _, value, _ in runner.output("least")] == [0]
    assert ["cannot be compared" in value["error"] for _, value, _ in runner.output("least.dead-letters")] == [True]


@pytest.mark.parametrize("call", ["deduplicate", "in_order", "reduce"])
def test_a_record_without_a_key_becomes_a_dead_letter_of_every_operator(call: str) -> None:
    p, sales = shop()
    keyed = sales.by("user")
    if call == "reduce":
        stream = keyed.window(ms.windows.tumbling("1s")).reduce(ms.count(), name="op", on_error=ms.DEAD_LETTER)
    else:
        options = {"within": "1s"} if call == "deduplicate" else {}
        stream = getattr(keyed, call)(name="op", on_error=ms.DEAD_LETTER, **options)
    assert len(out(p, stream, sale("sue", 1), sale(None, 2))) == 1
    p.emit(p.dead_letters("op"), ms.sinks.memory())
    runner = ms.testing.LocalRunner(p)
    runner.push("sales", sale(None, 2))
    runner.drain()
    assert [value["value"]["price"] for _, value, _ in runner.output("op.dead-letters")] == [2]


def test_ties_keep_all_that_equal_the_last_one() -> None:
    p, sales = shop()
    best = sales.by().window(ms.windows.tumbling("1s")).reduce(best=ms.top(1, "user", by="price", ties=True), name="best")
    assert out(p, best, sale("sue", 5), sale("tod", 5), sale("ann", 4))[0][1]["best"] == ["sue", "tod"]


@pytest.mark.parametrize(
    ("define", "told"),
    [
        (lambda s: s.by("usr"), "there is no column 'usr'; the source has: user"),
        (lambda s: s.by(3), "give names of fields"),
        (lambda s: s.filter(7), "give a function of the record"),
        (lambda s: s.by("user").window("1m"), "use one of ms.windows"),
        (lambda s: s.by("user").window(ms.windows.tumbling("1m")).reduce(start=ms.count(), name="x"), "cannot be called 'start'"),
        (lambda s: s.by("user").join(s.by("user"), name="x"), "after="),
        (lambda s: s.by("user").join(s, after="1m", name="x"), "give a stream with its key"),
        (lambda s: ms.windows.hopping("1m", every="2m"), "records between two windows would be lost"),
        (lambda s: ms.windows.hopping("1h", every="7ms"), "panes, and 1,000 is the most"),
        (lambda s: ms.windows.calendar("day", zone="Europe/Berln"), "no such time zone"),
        (lambda s: s.filter("price >"), "price >"),
    ],
)
def test_what_cannot_be_is_said_when_it_is_defined(define: Any, told: str) -> None:
    p, sales = shop()
    with pytest.raises(DefinitionError, match=told):
        made = define(sales)
        if isinstance(made, ms.Stream):
            p.emit(made, ms.sinks.memory())
        else:
            made.window(ms.windows.tumbling("1m")).reduce(n=ms.count(), name="n")
        p.topology()


def test_the_plan_says_what_works_on_columns_and_why_another_does_not() -> None:
    p, sales = shop()
    windowed = sales.by("user").filter("price > 3").window(ms.windows.tumbling("1m"))
    p.emit(windowed.reduce(n=ms.count(), far=ms.max(lambda v: v["price"]), name="counts"), ms.sinks.memory())
    told = p.explain()
    assert "filter price > 3: on columns" in told and "n = count(): on columns" in told
    assert "far = max(<lambda>): record by record: it has a Python function" in told
    assert "ids are checked behind the exchange" in told


def test_the_plan_knows_that_sums_of_floats_are_made_value_by_value() -> None:
    """As they are: `_whole_numbers` in vectors.py refuses them, and then rows travel one by one."""
    p = ms.Pipeline("weights")
    source = ms.sources.files("weights/", schema="user string, weight double, n int, day date, at long")
    weights = p.inject("weights", source, timestamp="at")
    window = ms.windows.tumbling("1m")
    weights.by("user").window(window).reduce(w=ms.sum("weight"), n=ms.mean("n"), most=ms.max("weight"), name="floats")
    weights.by("user").window(window).reduce(d=ms.max("day"), u=ms.any_value("user"), f=ms.any_value("weight"), name="others")
    weights.by("user").window(window).reduce(n=ms.sum("n"), most=ms.max("weight"), name="ahead")
    weights.by("user").map({"weight": "n"}).window(window).reduce(w=ms.sum("weight"), name="mapped")
    told = p.explain()
    for line in (
        "w = sum('weight'): record by record: a sum of double is exact, and so is made value by value",
        "n = mean('n'): on columns",
        "most = max('weight'): on columns",
        "d = max('day'): record by record: Python compares values of type date",
        "u = any_value('user'): on columns",
        "f = any_value('weight'): record by record: floats have an order of their own there",
        "w = sum('weight'): on columns",
        "to floats by 'user'; rows travel one by one: not all of the operator can be done before the exchange",
        "to ahead by 'user'; partial results are made before the exchange in resident runs",
    ):
        assert line in told, f"{line}\n{told}"
