"""The local engine from end to end: what a user's test sees."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from effort import some
from millstream.errors import CheckpointError, DefinitionError, HookError, InputError, MillstreamError
from millstream.testing import LocalRunner, SimulatedCrash


class Source(ms.sources.Source):
    """A source that only the local engine reads."""

    def load(self, spark: Any, unreadable: str | None = None) -> Any:
        raise AssertionError("no Spark here")


class Count(ms.Computation):
    """Counts per window of ten."""

    def process_record(self, record):
        end = record.timestamp - record.timestamp % 10 + 10
        self.state[str(end)] = self.state.get(str(end), 0) + 1
        self.set_timer("window", end)

    def process_timer(self, timer):
        self.produce({"count": self.state.pop(str(timer.time)), "size": "even" if timer.time % 20 == 0 else "odd"})


class Double(ms.Computation):
    """Fused: on the producer's keys."""

    State = int

    def process_record(self, record):
        self.state += 1
        self.produce([record.value["count"] * 2, self.state])


class Total(ms.Computation):
    """Shuffled: on keys of its own."""

    State = int

    def process_record(self, record):
        self.state += record.value["count"]
        self.produce(self.state)


def windows(**inject: Any) -> ms.Pipeline:
    p = ms.Pipeline("windows")
    events = p.inject("events", Source(), timestamp="at", id="id", **inject)
    counts = p.compute(Count, events, key="word", produces="counts")
    p.compute(Double, counts, produces="doubles")
    p.compute(Total, counts, key="size", produces="totals")
    return p


def event(word: str, at: int, id: str | None = None) -> dict[str, Any]:
    return {"word": word, "at": at, "id": id or f"{word}-{at}"}


def test_records_go_through_fused_and_shuffled_computations():
    runner = LocalRunner(windows())
    runner.push("events", event("tea", 1), event("tea", 2), event("rum", 3))
    runner.run()
    assert runner.output("counts") == []
    runner.push("events", event("tea", 12))
    runner.run()
    assert sorted(runner.output("counts")) == [("rum", {"count": 1, "size": "odd"}, 10), ("tea", {"count": 2, "size": "odd"}, 10)]
    assert sorted(runner.output("doubles")) == [("rum", [2, 1], 10), ("tea", [4, 1], 10)]
    assert runner.state("Total") == {"odd": 3}
    assert [key for key, _, _ in runner.output("totals")] == ["odd", "odd"]
    assert runner.state("Count") == {"tea": {"20": 1}}
    assert runner.timers("Count", "tea") == [ms.Timer(20, "window", ms.LOW_WATERMARK)]


def test_drain_closes_all_windows():
    runner = LocalRunner(windows())
    runner.push("events", *[event("tea", t) for t in (1, 11, 500)])
    runner.drain()
    assert [(v["count"], t) for _, v, t in runner.output("counts")] == [(1, 10), (1, 20), (1, 510)]
    assert runner.state("Count") == {}
    assert runner.timers("Count", "tea") == []
    assert runner.low_watermark("Total") == ms.END


def test_without_drain_the_last_window_stays_open():
    runner = LocalRunner(windows())
    runner.push("events", *[event("tea", t) for t in (1, 11, 500)])
    runner.run()
    assert [t for _, _, t in runner.output("counts")] == [10, 20]


def test_the_watermark_stays_behind_by_its_delay():
    runner = LocalRunner(windows(watermark=ms.watermarks.bounded("50ms")))
    runner.push("events", event("tea", 1), event("tea", 59))
    runner.run()
    assert runner.output("counts") == []
    runner.push("events", event("tea", 60))
    runner.run()
    assert [t for _, _, t in runner.output("counts")] == [10]


def test_late_records_are_counted():
    runner = LocalRunner(windows())
    runner.push("events", event("tea", 100))
    runner.run()
    assert runner.late("Count") == 0
    runner.epoch()
    runner.push("events", event("tea", 99), event("tea", 100, "again"))
    runner.run()
    assert runner.late("Count") == 1


# --- several streams


class Join(ms.Computation):
    def process_record(self, record):
        self.state.setdefault(record.stream, []).append(record.value["v"])
        if record.stream == "left":
            self.produce(record.value["v"], stream="lefts")
        else:
            self.produce(record.value["v"], stream="rights")
            self.produce(record.value["v"] * 10, stream="lefts", key=("other", 1))


def joined() -> ms.Pipeline:
    p = ms.Pipeline("joined")
    left = p.inject("left", Source(), timestamp="at", id="id")
    right = p.inject("right", Source(), timestamp="at", id="id")
    p.compute(Join, left, right, key={"left": "k", "right": ["k", "j"]}, produces=["lefts", "rights"])
    return p


def test_a_record_knows_its_stream_and_each_stream_has_its_own_key():
    runner = LocalRunner(joined())
    runner.push("left", {"k": 1, "at": 1, "id": "a", "v": 5})
    runner.push("right", {"k": 1, "j": "x", "at": 2, "id": "b", "v": 7})
    runner.run()
    assert runner.state("Join") == {1: {"left": [5]}, (1, "x"): {"right": [7]}}
    assert Counter(runner.output("lefts")) == Counter([(1, 5, 1), (("other", 1), 70, 2)])
    assert runner.output("rights") == [((1, "x"), 7, 2)]


def test_the_low_watermark_is_that_of_the_slowest_stream():
    runner = LocalRunner(joined())
    runner.push("left", {"k": 1, "at": 100, "id": "a", "v": 5})
    runner.run()
    runner.epoch()
    assert runner.low_watermark("Join") == ms.BEGINNING
    runner.push("right", {"k": 1, "j": "x", "at": 2, "id": "b", "v": 7})
    runner.run()
    runner.epoch()
    assert runner.low_watermark("Join") == 2


def test_an_injected_stream_can_be_emitted_as_it_is():
    p = ms.Pipeline("p")
    p.emit(p.inject("in", Source(), timestamp="at", value="v"), ms.sinks.memory())
    runner = LocalRunner(p)
    runner.push("in", {"at": 1, "v": "a"}, {"at": 2, "v": "b"})
    runner.run()
    assert sorted(runner.output("emit~in"), key=str) == [(None, "a", 1), (None, "b", 2)]


# --- keys


class Same(ms.Computation):
    State = int

    def process_record(self, record):
        self.state += 1
        self.produce([type(self.key).__name__, self.state])


@pytest.mark.parametrize("key", ["tea", 7, True, b"\xff", ("a", 1, ("b",)), "", "\0i7", -1], ids=repr)
def test_keys_keep_their_type_through_both_kinds_of_edges(key):
    class Shuffled(Same):
        pass

    class Fused(Same):
        pass

    p = ms.Pipeline("keys")
    first = p.compute(Same, p.inject("in", Source(), timestamp="at"), key="k")
    p.compute(Shuffled, first, key=lambda record: record.key)
    p.compute(Fused, first)
    runner = LocalRunner(p, shards=3)
    runner.push("in", {"k": key, "at": 1}, {"k": key, "at": 2})
    runner.run()
    for name in ("Same", "Shuffled", "Fused"):
        assert runner.output(name) == [(key, [type(key).__name__, 1], 1), (key, [type(key).__name__, 2], 2)]
        assert runner.state(name, key) == 2


def test_a_field_a_list_of_fields_and_a_callable_are_keys_of_internal_streams():
    class Make(ms.Computation):
        def process_record(self, record):
            self.produce({"a": record.value["v"], "b": 1})

    p = ms.Pipeline("keys")
    made = p.compute(Make, p.inject("in", Source(), timestamp="at"), key="k")
    for name, key in (("Field", "a"), ("Fields", ["a", "b"]), ("Callable", lambda record: record.value["a"] + "!")):
        p.compute(Same, made, key=key, name=name)
    runner = LocalRunner(p)
    runner.push("in", {"k": 1, "at": 1, "v": "x"})
    runner.run()
    assert (runner.state("Field"), runner.state("Fields"), runner.state("Callable")) == ({"x": 1}, {("x", 1): 1}, {"x!": 1})


class Rename(ms.Computation):
    def process_record(self, record):
        self.produce(1, key="somebody else")


def test_another_key_on_a_same_key_stream_is_an_error_and_through_a_shuffle_it_is_none():
    p = ms.Pipeline("p")
    p.compute(Same, p.compute(Rename, p.inject("in", Source(), timestamp="at"), key="k"))
    runner = LocalRunner(p)
    runner.push("in", {"k": 1, "at": 1})
    with pytest.raises(HookError, match=r"computation 'Rename', key 1.*somebody else"):
        runner.run()
    p = ms.Pipeline("p")
    p.compute(Same, p.compute(Rename, p.inject("in", Source(), timestamp="at"), key="k"), key=lambda record: record.key)
    runner = LocalRunner(p)
    runner.push("in", {"k": 1, "at": 1})
    runner.run()
    assert runner.state("Same") == {"somebody else": 1}


@pytest.mark.parametrize("key", [None, 1.5, [1], "\ud800"], ids=repr)
def test_a_bad_key_of_an_injected_record_is_an_input_error_that_names_stream_and_computation(key):
    runner = LocalRunner(windows())
    runner.push("events", {"word": key, "at": 1, "id": "x"})
    with pytest.raises(InputError, match=r"'events'.*'Count'"):
        runner.run()


@pytest.mark.parametrize("key", [None, 1.5, "\ud800"], ids=repr)
def test_a_bad_key_of_a_production_is_a_hook_error_that_names_stream_and_computation(key):
    p = ms.Pipeline("p")
    first = p.compute(Same, p.inject("in", Source(), timestamp="at"), key="k")
    p.compute(Same, first, key=lambda record: key, name="Second")
    runner = LocalRunner(p)
    runner.push("in", {"k": 1, "at": 1})
    with pytest.raises(HookError, match=r"'Same'.*'Second'"):
        runner.run()


def test_a_key_function_that_raises_is_a_hook_error():
    p = ms.Pipeline("p")
    first = p.compute(Same, p.inject("in", Source(), timestamp="at"), key="k")
    p.compute(Same, first, key=lambda record: record.value["nothing"], name="Second")
    runner = LocalRunner(p)
    runner.push("in", {"k": 1, "at": 1})
    with pytest.raises(HookError, match=r"'Same'.*'Second'.*TypeError"):
        runner.run()


@pytest.mark.parametrize(
    "row",
    [{"at": 1, "id": "x"}, {"word": "tea", "id": "x"}, {"word": "tea", "at": "1", "id": "x"}, {"word": "tea", "at": None, "id": "x"}],
    ids=repr,
)
def test_a_row_that_does_not_fit_is_an_input_error(row):
    runner = LocalRunner(windows())
    runner.push("events", row)
    with pytest.raises(InputError, match="'events'"):
        runner.run()
    assert runner.state("Count") == {}


def test_names_that_do_not_exist_are_definition_errors():
    runner = LocalRunner(windows())
    for call in (
        lambda: runner.push("typo", {}),
        lambda: runner.output("typo"),
        lambda: runner.state("typo"),
        lambda: runner.timers("typo", 1),
        lambda: runner.advance_watermark("typo", 1),
    ):
        with pytest.raises(DefinitionError, match="typo"):
            call()


# --- crash and retry


def world(runner: LocalRunner) -> Any:
    engine = runner._engine
    stores = {at: dict(store.entries) for at, store in engine.stores.items()}
    outputs = {stream: list(some) for stream, some in engine.outputs.items()}
    return engine.epoch, stores, outputs, dict(engine.low_watermarks), dict(engine.injected), dict(engine.late)


def test_a_crash_leaves_nothing_behind_and_the_retry_gives_the_same():
    crashed, smooth = LocalRunner(windows()), LocalRunner(windows())
    for rows in ([event("tea", 1), event("rum", 5)], [event("tea", 25)], [event("rum", 26), event("tea", 3)], [], [event("gin", 90)]):
        for runner in (crashed, smooth):
            runner.push("events", *rows)
        before = world(crashed)
        for _ in range(2):
            with pytest.raises(SimulatedCrash):
                crashed.epoch(crash=True)
            assert world(crashed) == before
        crashed.epoch()
        smooth.epoch()
        assert world(crashed) == world(smooth)
    crashed.drain()
    smooth.drain()
    assert world(crashed) == world(smooth)
    assert len(smooth.output("totals")) == 5


def test_a_failed_epoch_leaves_nothing_behind():
    class Fragile(Same):
        broken = True

        def process_record(self, record):
            super().process_record(record)
            if record.value["k"] == "z" and Fragile.broken:
                raise ValueError("broken")

    p = ms.Pipeline("p")
    p.compute(Fragile, p.inject("in", Source(), timestamp="at"), key="k")
    runner = LocalRunner(p)
    before = world(runner)
    runner.push("in", {"k": "a", "at": 1}, {"k": "z", "at": 2})
    with pytest.raises(HookError, match="broken"):
        runner.run()
    assert world(runner) == before
    Fragile.broken = False
    runner.run()
    assert runner.state("Fragile") == {"a": 1, "z": 1}


def test_a_hook_that_changes_its_record_does_not_change_the_retry_or_other_computations():
    class Greedy(ms.Computation):
        State = list

        def process_record(self, record):
            self.state.append(record.value.pop("v", "already taken"))
            self.produce(record.id)

    p = ms.Pipeline("p")
    stream = p.inject("in", Source(), timestamp="at")
    p.compute(Greedy, stream, key="k")
    p.compute(Greedy, stream, key="k", name="Other")
    runner = LocalRunner(p)
    runner.push("in", {"k": "a", "at": 1, "v": 5})
    with pytest.raises(SimulatedCrash):
        runner.epoch(crash=True)
    runner.run()
    assert runner.state("Greedy") == {"a": [5]}
    assert runner.state("Other") == {"a": [5]}


# --- the number of shards


def per_key(rows: list[tuple[Any, Any, int]]) -> dict[Any, list[Any]]:
    found = defaultdict(list)
    for key, value, timestamp in rows:
        found[key].append((str(value), timestamp))
    return dict(found)


epochs = st.lists(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 60)), max_size=6), max_size=6)


@settings(max_examples=some(100))
@given(epochs, st.booleans())
def test_the_number_of_shards_changes_nothing_per_key(history, crash):
    runners = [LocalRunner(windows(), shards=shards) for shards in (1, 5)]
    for at, rows in enumerate(history):
        for runner in runners:
            runner.push("events", *[event(word, time, f"{at}-{i}") for i, (word, time) in enumerate(rows)])
            if crash:
                with pytest.raises(SimulatedCrash):
                    runner.epoch(crash=True)
            runner.epoch()
    for runner in runners:
        runner.drain()
    one, five = runners
    for stream in ("counts", "doubles", "totals"):
        assert per_key(one.output(stream)) == per_key(five.output(stream))
        assert Counter(r.id for r in one.records(stream)) == Counter(r.id for r in five.records(stream))
    for name in ("Count", "Double", "Total"):
        assert one.state(name) == five.state(name)
        assert one.late(name) == five.late(name)
    assert one.late("Double") == one.late("Total") == 0  # what was on time at first stays so


@settings(max_examples=some(60))
@given(epochs, st.data())
def test_counts_are_what_a_dumb_count_says_whatever_the_order_and_the_epochs(history, data):
    """With a delay larger than the disorder nothing is late, so epochs and order do not matter."""
    runner = LocalRunner(windows(watermark=ms.watermarks.bounded("1000ms")))
    rows = [event(word, time, f"{at}-{i}") for at, some in enumerate(history) for i, (word, time) in enumerate(some)]
    expected = Counter((row["word"], row["at"] - row["at"] % 10 + 10) for row in rows)
    for row in data.draw(st.permutations(rows)):
        runner.push("events", row)
        if data.draw(st.booleans()):
            runner.epoch()
    runner.drain()
    assert {(key, time): value["count"] for key, value, time in runner.output("counts")} == expected
    assert len(runner.output("counts")) == len(expected)


# --- the clock


class Reminder(ms.Computation):
    State = int

    def process_record(self, record):
        self.set_timer("soon", self.now + 100, kind=ms.WALL_CLOCK)

    def process_timer(self, timer):
        self.state += 1
        self.produce([timer.time, self.now])
        if self.state < 3:
            self.set_timer("soon", self.now + 100, kind=ms.WALL_CLOCK)


def reminders() -> LocalRunner:
    p = ms.Pipeline("p")
    p.compute(Reminder, p.inject("in", Source(), timestamp="at"), key="k")
    return LocalRunner(p, now=1_000)


def test_the_clock_fires_wall_timers_while_nothing_arrives():
    runner = reminders()
    runner.push("in", {"k": "a", "at": 5})
    runner.run()
    runner.advance_clock(1_099)
    assert runner.output("Reminder") == []
    runner.advance_clock(1_100)
    runner.advance_clock(1_250)
    runner.advance_clock(2_000)
    runner.advance_clock(9_000)
    assert [value for _, value, _ in runner.output("Reminder")] == [[1_100, 1_100], [1_200, 1_250], [1_350, 2_000]]


def test_the_watermark_alone_fires_no_wall_timer():
    runner = reminders()
    runner.push("in", {"k": "a", "at": 5})
    runner.run()
    runner.drain()
    assert runner.output("Reminder") == []
    assert len(runner.timers("Reminder", "a")) == 1


def test_the_clock_does_not_go_back():
    runner = reminders()
    with pytest.raises(ValueError, match="does not go back"):
        runner.advance_clock(999)


def test_a_watermark_moved_by_hand_closes_windows_and_never_goes_back():
    runner = LocalRunner(windows())
    runner.push("events", event("tea", 1))
    runner.run()
    runner.advance_watermark("events", 10)
    assert [t for _, _, t in runner.output("counts")] == [10]
    runner.advance_watermark("events", 5)
    assert runner.low_watermark("Count") == 10


def test_records_without_a_timestamp_get_the_clock():
    p = ms.Pipeline("p")
    p.compute(Same, p.inject("in", Source()), key="k")
    runner = LocalRunner(p, now=77)
    runner.push("in", {"k": "a"})
    runner.run()
    assert runner.output("Same") == [("a", ["str", 1], 77)]


# --- odds and ends


def test_ids_of_productions_are_unique_in_their_stream_over_a_long_run():
    runner = LocalRunner(windows())
    for at in range(50):
        runner.push("events", event("tea", at * 3), event("rum", at * 5))
        runner.epoch()
    runner.drain()
    for stream in ("counts", "doubles", "totals"):
        ids = [record.id for record in runner.records(stream)]
        assert len(ids) > 10 and len(set(ids)) == len(ids)


def test_a_factory_with_arguments_makes_the_computation():
    class Times(ms.Computation):
        State = int

        def __init__(self, factor):
            self.factor = factor

        def process_record(self, record):
            self.produce(record.value["v"] * self.factor)

    p = ms.Pipeline("p")
    p.compute(functools.partial(Times, 3), p.inject("in", Source(), timestamp="at"), key="k", name="Triple")
    runner = LocalRunner(p)
    runner.push("in", {"k": 1, "at": 1, "v": 5})
    runner.run()
    assert runner.output("Triple") == [(1, 15, 1)]


class Odd:
    """Something that only pickle keeps."""

    def __init__(self) -> None:
        self.seen = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd) and self.seen == other.seen

    __hash__ = None


class Pickled(ms.Computation):
    State = Odd
    codec = ms.codecs.pickle

    def __init__(self, step: int = 1) -> None:
        self.step = step

    def process_record(self, record):
        self.state.seen += self.step


@pytest.mark.parametrize("how", ["class", "partial", "argument"])
def test_the_codec_of_a_computation_is_used_however_it_is_made(how):
    class Plain(Pickled):
        codec = None

    factory = {"class": Pickled, "partial": functools.partial(Pickled, 1), "argument": Plain}[how]
    p = ms.Pipeline("p")
    codec = ms.codecs.pickle if how == "argument" else None
    p.compute(factory, p.inject("in", Source(), timestamp="at"), key="k", name="Pickled", codec=codec)
    runner = LocalRunner(p)
    runner.push("in", {"k": 1, "at": 1}, {"k": 1, "at": 2})
    runner.run()
    assert runner.state("Pickled", 1).seen == 2


def test_a_state_that_the_codec_cannot_keep_is_named_with_its_computation():
    class Wrong(ms.Computation):
        State = Odd

        def process_record(self, record):
            pass

    p = ms.Pipeline("p")
    p.compute(Wrong, p.inject("in", Source(), timestamp="at"), key="k")
    with pytest.raises(MillstreamError, match=r"Wrong.*Odd"):
        runner = LocalRunner(p)
        runner.push("in", {"k": 1, "at": 1})
        runner.run()


def test_a_factory_that_makes_something_else_is_a_definition_error():
    p = ms.Pipeline("p")
    p.compute(lambda: {}, p.inject("in", Source(), timestamp="at"), key="k", name="Wrong")
    with pytest.raises(DefinitionError, match=r"'Wrong'.*dict"):
        LocalRunner(p)


def test_a_map_state_is_read_through_the_runner():
    class Pages(ms.Computation):
        State = ms.MapState

        def process_record(self, record):
            self.state[record.value["page"]] = record.timestamp

    p = ms.Pipeline("p")
    p.compute(Pages, p.inject("in", Source(), timestamp="at"), key="k")
    runner = LocalRunner(p)
    for at, page in enumerate("bca"):
        runner.push("in", {"k": 1, "at": at, "page": page})
        runner.epoch()
    assert list(runner.state("Pages", 1).items()) == [("a", 2), ("b", 0), ("c", 1)]


def test_run_gives_up_after_its_limit():
    runner = LocalRunner(windows())
    runner.push("events", event("tea", 1), event("tea", 50))
    with pytest.raises(DefinitionError, match="after 1 epochs"):
        runner.run(limit=1)
    runner.run(limit=2)
    assert [t for _, _, t in runner.output("counts")] == [10]


def test_pushing_copies_the_row():
    runner = LocalRunner(windows())
    row = event("tea", 1)
    runner.push("events", row)
    row["word"] = "rum"
    runner.run()
    assert list(runner.state("Count")) == ["tea"]


# --- another version of the pipeline


def windowed(size: str = "1m", name: str = "windows", renamed_from: str | None = None, **reducers: ms.Reducer) -> ms.Pipeline:
    p = ms.Pipeline("changed")
    source = ms.sources.files("nowhere", schema="k string, at long, n long")
    rows = p.inject("rows", source, timestamp="at", watermark=ms.watermarks.bounded("1s"))
    window = rows.by("k").window(ms.windows.tumbling(size))
    p.emit(window.reduce(reducers or {"n": ms.sum("n")}, name=name, renamed_from=renamed_from), ms.sinks.memory())
    return p


def with_open_window() -> ms.testing.LocalRunner:
    runner = ms.testing.LocalRunner(windowed())
    runner.push("rows", {"k": "a", "at": 1_000, "n": 3})
    runner.epoch()
    return runner


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (windowed("5m"), r"made as tumbling\('1m'\) of sum, and the pipeline says tumbling\('5m'\)"),
        (windowed(n=ms.max("n")), "of sum.*of max"),
        (windowed(name="minutes"), "has state of 'windows', which the pipeline no longer has, and the pipeline has 'minutes'"),
    ],
)
def test_what_a_checkpoint_would_refuse_is_refused_and_the_run_goes_on_as_it_was(changed: ms.Pipeline, told: str) -> None:
    runner = with_open_window()
    with pytest.raises(CheckpointError, match=told):
        runner.become(changed)
    runner.become(windowed(total=ms.sum("n")))
    runner.drain()
    assert [value["total"] for _, value, _ in runner.output("windows")] == [3]


def test_state_goes_where_it_may_go_and_with_its_operator_where_that_has_another_name() -> None:
    runner = with_open_window()
    runner.become(windowed(name="minutes"), drop=["windows"])
    runner.drain()
    assert runner.output("minutes") == []
    runner = with_open_window()
    runner.become(windowed(name="minutes", renamed_from="windows"))
    runner.drain()
    assert [value["n"] for _, value, _ in runner.output("minutes")] == [3]


def test_windows_that_have_ended_may_become_others() -> None:
    runner = with_open_window()
    runner.drain()
    runner.become(windowed("5m"))
