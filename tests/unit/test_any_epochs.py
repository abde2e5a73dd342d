"""`assert_same_in_any_epochs`: what is wrong is found and called by its name, what is right passes."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import epochskit as kit
import pytest
from epochskit import MIXED, ROWS, SOURCE, Running, Sessions, Windows, key, pipeline
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from effort import some
from millstream.simulation.epoch_cuts import Cut, Trials
from millstream.simulation.instance_sharing import SHARINGS
from millstream.testing import LocalRunner, assert_exactly_once, assert_same_in_any_epochs

EPOCHS = "the result depends on how input falls into epochs"
DICE = "not deterministic: no fault was needed to see it"


def report(p: ms.Pipeline, rows: Any = ROWS, **options: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_same_in_any_epochs(p, rows, **options)
    said = str(caught.value)
    assert len(said) < 1_500 and len(said.splitlines()) <= 12, "it can be read"
    return said


# --- what is wrong


@pytest.mark.parametrize(
    ("computation", "names"),
    [(kit.OnSelf, "`self.seen`"), (kit.PerKeyOnSelf, "`self.counts`"), (kit.LeftForTheTimer, "`self.last`"), (kit.InASlot, "`self.tally`")],
)
def test_state_on_self_is_named(computation: Any, names: str) -> None:
    said = report(pipeline(computation))
    assert said.startswith(f"pipeline 'kit': not in the state: {names}, of computation 'Program'\n"), said
    assert "with a new instance for each shard and epoch, instead of one instance for all keys and epochs" in said


@pytest.mark.parametrize(
    ("computation", "names"),
    [(kit.OnTheClass, "`OnTheClass.seen`"), (kit.InTheModule, "`COUNTER`"), (functools.partial(kit.Given, []), "`self.log`")],
)
def test_state_that_outlives_a_run_is_named(computation: Any, names: str) -> None:
    said = report(pipeline(computation))
    assert said.startswith(f"pipeline 'kit': not in the state: {names}; {DICE}\nstream 'out', key 'a': "), said


def test_state_in_a_variable_around_the_class_is_named() -> None:
    numbers = itertools.count()

    class Numbered(ms.Computation):
        State = int

        def process_record(self, record: ms.Record) -> None:
            self.produce(next(numbers))

    assert "not in the state: `numbers`" in report(pipeline(Numbered))


_NUMBERS = itertools.count()


def test_state_that_only_a_property_or_a_function_within_a_hook_speaks_of_is_named() -> None:
    numbers = itertools.count()

    class Numbered(ms.Computation):
        State = int

        @property
        def number(self) -> int:
            return next(numbers)

        def process_record(self, record: ms.Record) -> None:
            self.produce(self.number)

    class Within(ms.Computation):
        State = int

        def process_record(self, record: ms.Record) -> None:
            self.produce((lambda: next(_NUMBERS))())

    class Unassigned(ms.Computation):
        State = int

        def process_record(self, record: ms.Record) -> None:
            self.produce(next(numbers) if record else later)

    assert "not in the state: `numbers`" in report(pipeline(Numbered))
    assert "not in the state: `_NUMBERS`" in report(pipeline(Within))
    assert "not in the state: `numbers`" in report(pipeline(Unassigned))
    later = 0


@pytest.mark.parametrize("computation", [kit.Dice, kit.Clock, kit.OwnDice])
def test_dice_are_called_dice(computation: Any) -> None:
    assert report(pipeline(computation)).startswith(f"pipeline 'kit': {DICE}\nstream 'out', key 'a': ")


def test_a_program_that_asks_which_instance_it_is_is_found() -> None:
    said = report(pipeline(kit.WhoAmI))
    assert DICE in said or "such as id(self)" in said, "whether an address comes again is up to Python"


def test_dice_that_fall_rarely_are_still_called_dice() -> None:
    calls = itertools.count()

    class Rarely(ms.Computation):
        State = int

        def process_record(self, record: ms.Record) -> None:
            self.produce(next(calls) == 2_000)

    assert DICE in report(pipeline(Rarely), seeds=range(200))


def test_shards_are_told_from_the_rest() -> None:
    said = report(pipeline(kit.Neighbour))
    assert said.startswith("pipeline 'kit': the result depends on the number of shards\nstream 'out', key ")
    assert "shards, instead of 2\n" in said


@pytest.mark.slow
@pytest.mark.parametrize("computation", [kit.NewWindow, kit.PastTheEnd, kit.AllOfIt, kit.HowFar])
@pytest.mark.parametrize("rows", [ROWS, MIXED])
def test_a_window_that_believes_its_timer_has_fired_is_found(computation: Any, rows: Any) -> None:
    said = report(pipeline(computation), rows)
    assert said.startswith(f"pipeline 'kit': {EPOCHS}\n")
    assert "with all records in one epoch, instead of one record per epoch" in said
    if rows is ROWS:
        assert "because a later record is there" in said


@pytest.mark.slow
def test_a_watermark_that_hardly_moves_hides_nothing() -> None:
    """The pipeline's own watermark would fire no timer before the end in any cut."""
    p = ms.Pipeline("kit")
    p.compute(
        kit.NewWindow, p.inject("in", SOURCE, timestamp="at", id="id", watermark=ms.watermarks.bounded("1h")), key="k", produces="out"
    )
    assert EPOCHS in report(p)
    assert_same_in_any_epochs(p, ROWS, watermarks="own")


def test_a_hook_that_raises_in_one_cut_only_is_a_difference() -> None:
    said = report(pipeline(kit.Gone))
    assert said.startswith(
        f"pipeline 'kit': {EPOCHS}\nthe run ended without error instead of with HookError: computation 'Program', key 'a': KeyError: 'open'"
    )


def test_a_hook_that_always_raises_is_its_own_error() -> None:
    class Raises(ms.Computation):
        def process_record(self, record: ms.Record) -> None:
            raise ValueError("never")

    with pytest.raises(ms.errors.HookError, match="ValueError: never"):
        assert_same_in_any_epochs(pipeline(Raises), ROWS)


def test_records_out_of_order_are_the_reason_where_they_are() -> None:
    assert_same_in_any_epochs(pipeline(Running), ROWS)
    said = report(pipeline(Running), MIXED)
    assert said.startswith(f"pipeline 'kit': {EPOCHS}\n")
    assert "The records arrive out of order in event time" in said and "compare=" in said
    assert said.count("  in: {") == 2, "two records are enough"


@pytest.mark.slow
def test_two_records_with_one_id_are_the_reason_where_they_are() -> None:
    rows = [*ROWS, {**ROWS[5], "at": ROWS[5]["at"] + 900}]
    assert "Two records of stream 'in' have the id '5' and differ." in report(pipeline(Windows), [rows[-1], *rows[:-1]])
    assert_same_in_any_epochs(pipeline(Windows), [*ROWS, ROWS[5]])  # a true repeat


@pytest.mark.slow
def test_ids_of_what_timers_produce_are_the_reason_where_they_are() -> None:
    class Ids(ms.Computation):
        State = list

        def process_record(self, record: ms.Record) -> None:
            self.state = sorted([*self.state, record.id])

    p = pipeline(Windows)
    p.compute(Ids, "out", key=key)
    assert "The id of what a timer produced names its epoch" in report(p)
    assert_same_in_any_epochs(p, ROWS, ignore=["Ids"])


def test_long_values_are_cut_short() -> None:
    class Long(kit.OnSelf):
        def process_record(self, record: ms.Record) -> None:
            self.seen += 1
            self.produce([self.seen] * 10_000)

    assert "…" in report(pipeline(Long), [{**row, "note": "x" * 5_000} for row in ROWS])


def test_exactly_once_asks_for_it_first_unless_told_not_to() -> None:
    p = pipeline(kit.NewWindow)
    with pytest.raises(AssertionError, match=f"^pipeline 'kit' is not exactly once: {EPOCHS}\n"):
        assert_exactly_once(p, ROWS, seeds=range(3))
    assert_exactly_once(p, ROWS, seeds=range(3), epochs="same")


# --- what is right


def two_streams(computation: Any, **options: Any) -> ms.Pipeline:
    p = ms.Pipeline("two")
    one = p.inject("one", SOURCE, timestamp="at", id="id", watermark=ms.watermarks.bounded("10ms"))
    two = p.inject("two", SOURCE, timestamp="at", id="id", watermark=ms.watermarks.bounded("500ms", idle="1s"))
    p.compute(computation, one, two, key="k", produces="out", **options)
    return p


class Join(ms.Computation):
    """Per window: how many came on each stream."""

    State = ms.MapState

    def process_record(self, record: ms.Record) -> None:
        window = record.timestamp - record.timestamp % 300
        self.state[window, record.stream] = self.state.get((window, record.stream), 0) + 1
        self.set_timer("end", window + 300)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce({stream: self.state.pop((timer.time - 300, stream), 0) for stream in ("one", "two")})


@pytest.mark.parametrize("rows", [ROWS, MIXED, MIXED[::-1], []])
@pytest.mark.parametrize("computation", [Windows, Sessions])
def test_windows_and_sessions_pass(computation: Any, rows: Any) -> None:
    assert_same_in_any_epochs(pipeline(computation), rows)


@pytest.mark.parametrize(
    "rows", [{"one": MIXED[:15], "two": MIXED[15:]}, [("one" if at % 3 else "two", row) for at, row in enumerate(MIXED)]]
)
def test_joins_pass(rows: Any) -> None:
    assert_same_in_any_epochs(two_streams(Join), rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ms.WEAK, ms.STRONG, ms.ADAPTIVE])
def test_windows_over_windows_pass_over_every_kind_of_edge(kind: str) -> None:
    p = pipeline(Windows, production=kind)
    p.compute(Windows, "out", key=key, name="Again", produces="again", production=kind)
    p.compute(Sessions, "again", key=lambda record: "all", produces="all")
    assert_same_in_any_epochs(p, MIXED)


def test_cycles_pass() -> None:
    class Down(ms.Computation):
        State = int

        def process_record(self, record: ms.Record) -> None:
            number: Any = record.value["n"] if isinstance(record.value, dict) else record.value
            self.state += 1
            self.produce(number - 1, stream="again" if number > 0 else "done")

    p = ms.Pipeline("down")
    stream = p.inject("in", SOURCE, timestamp="at", id="id")
    p.compute(Down, stream, "again", key={"in": "k", "again": key}, produces=["again", "done"], production={"again": ms.STRONG})
    assert_same_in_any_epochs(p, MIXED)


@pytest.mark.slow
def test_dead_letters_pass_and_their_readers() -> None:
    class Fragile(Windows):
        def process_record(self, record: ms.Record) -> None:
            super().process_record(record)
            if record.value["n"] == 3:
                raise ValueError("three")

        def process_timer(self, timer: ms.Timer) -> None:
            if timer.time % 900 == 0:
                raise KeyError("nine")
            super().process_timer(timer)

    class Letters(ms.Computation):
        State = list

        def process_record(self, record: ms.Record) -> None:
            self.state = sorted([*self.state, record.value["error"] + record.value["traceback"]])

    p = pipeline(Fragile, on_error=ms.DEAD_LETTER)
    p.compute(Letters, "Program.dead-letters", key=key)
    assert_same_in_any_epochs(p, MIXED)
    assert LocalRunner(p).dead("Program") == 0


def test_wall_clock_timers_pass_and_fire() -> None:
    class Reminded(Windows):
        def process_record(self, record: ms.Record) -> None:
            super().process_record(record)
            self.set_timer("reminder", self.now + 60_000, kind=ms.WALL_CLOCK)

        def process_timer(self, timer: ms.Timer) -> None:
            if timer.kind == ms.WALL_CLOCK:
                self.produce(["reminder", self.now - timer.time])
            else:
                super().process_timer(timer)

    fired = []
    p = pipeline(Reminded)
    assert_same_in_any_epochs(p, MIXED)
    assert_same_in_any_epochs(
        p, MIXED, compare=lambda runner: fired.append([value for _, value, _ in runner.output("out") if isinstance(value, list)])
    )
    assert all(one == [["reminder", 0]] * 3 for one in fired) and fired


def test_holds_pass() -> None:
    class First(ms.Computation):
        """Per window the count, with the timestamp of the first record."""

        State = dict

        def process_record(self, record: ms.Record) -> None:
            window = str(record.timestamp // 300)
            first, count = self.state.get(window, (record.timestamp, 0))
            self.state[window] = (min(first, record.timestamp), count + 1)
            self.set_timer("end", (record.timestamp // 300 + 1) * 300, hold=min(first, record.timestamp))

        def process_timer(self, timer: ms.Timer) -> None:
            first, count = self.state.pop(str(timer.time // 300 - 1))
            self.produce(count, timestamp=max(first, timer.hold or 0))

    p = pipeline(First)
    p.compute(Windows, "out", key=key, name="After", produces="after")
    assert_same_in_any_epochs(p, MIXED)


def test_what_changes_no_result_passes() -> None:
    class Cached(Windows):
        tables: dict[int, int] = {}

        def process_record(self, record: ms.Record) -> None:
            if not hasattr(self, "model"):
                self.model = {"calls": 0}
            self.model["calls"] += 1
            Cached.tables[record.timestamp] = 1
            super().process_record(record)

    assert_same_in_any_epochs(pipeline(Cached), MIXED)


def test_rows_may_come_in_another_order_dicts_too_and_sums_of_floats_in_another_last_digit() -> None:
    @dataclass
    class Kept:
        names: dict[str, float] = field(default_factory=dict)
        seen: ms.MapState = field(default_factory=ms.MapState)

    class Told(ms.Computation):
        State = Kept

        def process_record(self, record: ms.Record) -> None:
            self.state.names[f"n{record.value['n']}"] = 1.0
            self.state.names["sum"] = self.state.names.get("sum", 0.0) + record.value["n"] / 7
            self.state.seen[record.timestamp] = {"n": record.value["n"], "x": float("nan")}
            self.produce({"n": record.value["n"]})

    assert_same_in_any_epochs(pipeline(Told), MIXED)


def test_streams_without_timestamps_and_sinks_of_injected_streams_pass() -> None:
    p = ms.Pipeline("bare")
    stream = p.inject("in", SOURCE)
    p.compute(Windows, stream, key="k", produces="out")
    p.emit(stream, ms.sinks.memory())
    assert_same_in_any_epochs(p, ROWS)


def test_a_factory_that_always_gives_the_same_instance_passes_if_that_changes_nothing() -> None:
    instance = Windows()
    assert_same_in_any_epochs(pipeline(lambda: instance), MIXED)


class Strict(ms.Computation):
    State = type(None)

    def process_record(self, record: ms.Record) -> None:
        self.produce(record.value["id"], stream="punctual")

    def process_late_record(self, record: ms.Record) -> None:
        self.produce(record.value["id"], stream="late")


def strict() -> ms.Pipeline:
    p = ms.Pipeline("strict")
    stream = p.inject("in", SOURCE, timestamp="at", id="id", watermark=ms.watermarks.bounded("10ms"))
    p.compute(Strict, stream, key="k", produces=["punctual", "late"])
    p.compute(Windows, stream, key="k", produces="windows", late="too-late")
    return p


@pytest.mark.slow
def test_nothing_is_late_unless_the_pipelines_own_watermarks_are_asked_for() -> None:
    late = []
    assert_same_in_any_epochs(strict(), MIXED, compare=lambda runner: late.append(runner.late("Strict")))
    assert set(late) == {0}
    said = report(strict(), MIXED, watermarks="own")
    assert "records are late in one" in said

    def told(runner: LocalRunner) -> Any:
        return Counter(value for stream in ("punctual", "late") for _, value, _ in runner.output(stream))

    assert_same_in_any_epochs(strict(), MIXED, watermarks="own", compare=told)
    assert_same_in_any_epochs(strict(), MIXED, compare=lambda runner: late.append(runner.late("Strict")), watermarks="own")
    assert max(late) > 0


@pytest.mark.slow
def test_compare_says_what_is_equal_and_a_report_says_where_it_is_not() -> None:
    p = pipeline(Running)
    assert_same_in_any_epochs(p, MIXED, compare=lambda runner: runner.state("Program"))
    assert "what compare= gives: at " in report(p, MIXED, compare=lambda runner: sorted(runner.output("out")))
    assert "what compare= gives: under 'b', " in report(
        p, MIXED, compare=lambda r: {k: [v for key, v, _ in r.output("out") if key == k] for k in "abc"}
    )
    assert_same_in_any_epochs(p, MIXED, ignore=["out"])


# --- random programs that are right


@st.composite
def programs(draw: Any) -> tuple[ms.Pipeline, list[tuple[str, dict[str, Any]]]]:
    slide = draw(st.sampled_from([50, 130]))
    size = slide * draw(st.integers(1, 2))

    class Sliding(ms.Computation):
        State = dict

        def process_record(self, record: ms.Record) -> None:
            start = record.timestamp - record.timestamp % slide
            while start + size > record.timestamp:
                self.state[start] = self.state.get(start, 0.0) + (record.value["n"] / 7 if isinstance(record.value, dict) else record.value)
                self.set_timer("end", start + size, hold=record.timestamp if draw_hold else None)
                start -= slide

        def process_timer(self, timer: ms.Timer) -> None:
            self.produce(self.state.pop(timer.time - size))

    draw_hold = draw(st.booleans())
    kinds = st.sampled_from([ms.WEAK, ms.STRONG, ms.ADAPTIVE])
    p = ms.Pipeline("random")
    policy = draw(st.sampled_from([ms.watermarks.bounded(0), ms.watermarks.bounded("1h"), ms.watermarks.percentile(0.9)]))
    one = p.inject("one", SOURCE, timestamp="at", id=draw(st.sampled_from(["id", None])), watermark=policy)
    two = p.inject("two", SOURCE, timestamp="at", id="id", watermark=policy)
    p.compute(Sliding, one, key=draw(st.sampled_from(["k", ["k", "n"]])), produces="first", production=draw(kinds), name="First")
    p.compute(
        draw(st.sampled_from([Sliding, Sessions, Windows])),
        "first",
        key=draw(st.sampled_from([None, lambda r: "all"])),
        produces="second",
        name="Second",
    )
    p.compute(Join, one, two, key="k", produces="joined", name="Join")
    times = draw(
        st.lists(st.tuples(st.sampled_from(["one", "two"]), st.sampled_from("ab"), st.integers(0, 900), st.integers(0, 4)), max_size=14)
    )
    return p, [(stream, {"k": k, "n": n, "at": at, "id": str(number)}) for number, (stream, k, at, n) in enumerate(times)]


@pytest.mark.slow
@settings(max_examples=some(60))
@given(programs(), st.integers(1, 3))
def test_random_programs_that_are_right_pass(program: Any, shards: int) -> None:
    p, rows = program
    assert_same_in_any_epochs(p, rows, seeds=range(6), shards=shards)


# --- what is asked wrongly


@pytest.mark.parametrize("shards", [0, -1, True, "2", 1.5, 10**6, None])
def test_a_number_of_shards_that_is_none_is_refused(shards: Any) -> None:
    for ask in (
        LocalRunner,
        functools.partial(assert_exactly_once, records=ROWS),
        functools.partial(assert_same_in_any_epochs, records=ROWS),
    ):
        with pytest.raises(ms.errors.DefinitionError, match=r"^shards=.*give a whole number from 1 to"):
            ask(pipeline(Windows), shards=shards)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"seeds": 5}, "seeds=5: give several numbers"),
        ({"ignore": ["outt"]}, r"ignore=\['outt'\].*there are: Program, out"),
        ({"ignore": "outt"}, r"ignore=\['outt'\]"),
        ({"compare": 3}, "compare= is a function"),
        ({"compare": len, "ignore": ["out"]}, "ignore= has no place beside it"),
        ({"watermarks": "none"}, "watermarks='none': there are 'known'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ms.errors.DefinitionError, match=match):
        assert_same_in_any_epochs(pipeline(Windows), ROWS, **options)


def test_epochs_are_any_or_the_same() -> None:
    with pytest.raises(ms.errors.DefinitionError, match="epochs='some': there are 'any'"):
        assert_exactly_once(pipeline(Windows), ROWS, epochs="some")


def test_records_that_are_no_rows_are_refused() -> None:
    with pytest.raises(ms.errors.DefinitionError, match="a record is a dict of the source's columns, not 5"):
        assert_same_in_any_epochs(pipeline(Windows), [5])


def test_what_the_step_binds_is_told_from_what_a_program_keeps() -> None:
    """Else the check would reset what the step needs, or blame a name that no user knows."""
    from millstream.simulation.instance_sharing import ONE, SharedCompiled
    from millstream.simulation.local import LocalEngine

    p = pipeline(Windows, on_error=ms.DEAD_LETTER)
    engine = LocalEngine(p.program())
    engine.compiled = compiled = SharedCompiled(p.program(), ONE)
    for row in MIXED:
        engine.push("in", row)
        engine.run_epoch()
    engine.drain()
    assert compiled.attributes() == {}


# --- the end of a visit


class AtTheEnd(ms.Computation):
    """Says once per epoch what has come; behind a merge of records, only its state is the same in any epochs."""

    State = int
    judges_lateness = True

    def process_record(self, record: ms.Record) -> None:
        self.state += 1

    def finish_key(self) -> None:
        self.later("all", self.state)

    def finish_epoch(self, gathered: Any) -> None:
        self.produce(len(gathered), key="all")


@pytest.mark.parametrize("sharing", SHARINGS)
def test_the_end_of_a_visit_and_of_a_step_come_on_every_instance(sharing: str) -> None:
    trials = Trials(pipeline(AtTheEnd).program(), [("in", row) for row in ROWS])
    engine = trials.run(Cut((0, len(ROWS)), 1, sharing=sharing)).engine
    keys = len({row["k"] for row in ROWS})
    assert [row.value for row in engine.outputs["out"]] == [keys]
