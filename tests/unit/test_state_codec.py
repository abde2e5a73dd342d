"""State comes back equal in the next epoch, or is refused at the hook that left it."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import re
import uuid
import zoneinfo
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from effort import some
from millstream.state import codec
from millstream.state.codec import difference
from millstream.testing import LocalRunner

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.datetimes(),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.datetimes(timezones=st.just(datetime.UTC)),
)
keys = st.one_of(st.text(), st.integers(), st.dates(), st.tuples(st.integers(), st.dates()), st.binary())
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(keys, inner), st.sets(keys), st.frozensets(keys)),
    max_leaves=12,
)


@given(values)
@settings(max_examples=some(400), deadline=None)
def test_an_untyped_state_comes_back_equal_and_of_the_same_types(value: Any) -> None:
    data = codec.encode_firm(value)
    found = codec.msgpack.decoder(object)(data)
    assert found == value and difference(value, found) is None
    assert codec.encode_firm(found) == data, "and encodes to the same bytes"


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.floats(), st.text()),
        lambda i: st.lists(i) | st.dictionaries(st.text() | st.integers(-9, 9), i),
    )
)
@settings(max_examples=some(200), deadline=None)
def test_plain_values_have_the_bytes_they_always_had(value: Any) -> None:
    assert codec.encode_firm(value) == codec.encode_value(value) == msgspec.msgpack.encode(value)


class Colour(enum.Enum):
    RED = 1


@dataclass
class Point:
    x: int = 0


@pytest.mark.parametrize("value", [Colour.RED, Point(), collections.Counter("a"), collections.defaultdict(int), object()])
@pytest.mark.parametrize("place", [lambda v: v, lambda v: {"a": v}, lambda v: {1: {2: [v]}}])
def test_what_would_come_back_as_something_else_is_refused_by_name(value: Any, place: Any) -> None:
    with pytest.raises(TypeError, match=type(value).__name__):
        codec.encode_firm(place(value))


@dataclass
class Typed:
    count: int = 0
    names: list[str] = field(default_factory=list)
    when: datetime.datetime | None = None


@dataclass
class Open:
    seen: dict = field(default_factory=dict)  # type: ignore[type-arg]
    last: Any = None
    price: decimal.Decimal = decimal.Decimal(0)


def runner_of(hook: Any, state: Any) -> LocalRunner:
    computation = type("Keeps", (ms.Computation,), {"State": state, "process_record": hook})
    p = ms.Pipeline("codec")
    p.compute(computation, p.inject("in", ms.sources.files("in/", schema="k string, at long", format="json"), timestamp="at"), key="k")
    return LocalRunner(p)


def test_an_open_dataclass_keeps_dates_and_decimals_over_an_epoch() -> None:
    day, moment = datetime.date(2024, 5, 1), datetime.datetime(2024, 5, 1, 12)

    def hook(self: Any, record: ms.Record) -> None:
        self.state.seen[day] = self.state.seen.get(day, decimal.Decimal("0.5")) + 1
        self.state.last, self.state.price = (moment, uuid.UUID(int=7)), decimal.Decimal("1.10")

    runner = runner_of(hook, Open)
    for at in range(3):  # three epochs: what changes its type in between would not add up
        runner.push("in", {"k": "a", "at": at})
        runner.run()
    assert runner.state("Keeps", "a") == Open({day: decimal.Decimal("3.5")}, (moment, uuid.UUID(int=7)), decimal.Decimal("1.10"))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda s: setattr(s, "count", "three"), "count"),
        (lambda s: setattr(s, "names", ("a", "b")), r"state\.names is \('a', 'b'\), and would come back as \['a', 'b'\]"),
        (lambda s: s.names.append(7), "names"),
    ],
)
def test_a_state_that_contradicts_its_annotations_is_an_error_of_the_hook_that_left_it(wrong: Any, says: str) -> None:
    def hook(self: Any, record: ms.Record) -> None:
        if record.timestamp == 2:
            wrong(self.state)
        elif record.timestamp == 3:
            self.state.when = datetime.datetime(2024, 1, 1)  # it is not this hook's fault

    runner = runner_of(hook, Typed)
    runner.push("in", *[{"k": "a", "at": at} for at in (1, 2, 3)])
    with pytest.raises(ms.errors.HookError, match=says) as caught:
        runner.run()
    assert "timestamp=2" in str(caught.value)
    assert runner.state("Keeps") == {}


def test_an_object_that_cannot_be_kept_is_charged_to_the_hook_that_put_it_there() -> None:
    def hook(self: Any, record: ms.Record) -> None:
        self.state[record.timestamp] = object() if record.timestamp == 2 else 1

    runner = runner_of(hook, dict)
    runner.push("in", *[{"k": "a", "at": at} for at in (1, 2, 3)])
    with pytest.raises(ms.errors.HookError, match="object cannot be kept") as caught:
        runner.run()
    assert "timestamp=2" in str(caught.value)


def test_a_value_of_a_map_is_taken_as_it_is_when_it_is_set() -> None:
    def hook(self: Any, record: ms.Record) -> None:
        if record.timestamp == 1:
            self.state["a"] = kept = [1]
            kept.append(2)  # seen by nobody: not in this epoch, not in a later one
        self.state["a"].append(3)
        self.state[record.timestamp] = self.state["a"]

    together, apart = runner_of(hook, ms.MapState), runner_of(hook, ms.MapState)
    together.push("in", {"k": "a", "at": 1}, {"k": "a", "at": 2})
    together.run()
    for at in (1, 2):
        apart.push("in", {"k": "a", "at": at})
        apart.run()
    assert dict(together.state("Keeps", "a").items()) == dict(apart.state("Keeps", "a").items()) == {"a": [1], 1: [1], 2: [1]}


def test_productions_keep_dates_and_make_lists_of_tuples() -> None:
    day = datetime.date(2024, 5, 1)
    assert codec.msgpack.decoder(object)(codec.encode_value({"d": day, "t": (1, {2}), "p": Point(3)})) == {
        "d": day,
        "t": [1, [2]],
        "p": {"x": 3},
    }


def test_a_number_of_a_subclass_is_refused_because_it_would_come_back_as_a_plain_one() -> None:
    import numpy as np

    class Level(enum.IntEnum):
        HIGH = 3

    @dataclass
    class Measured:
        mean: float = 0.0
        level: int = 0

    encode, check = codec.msgpack.state_encoder(Measured), codec.msgpack.state_checker(Measured)
    assert check is not None
    check(Measured(2, 3), encode(Measured(2, 3)))  # an int may stand where a float is asked for
    for left in (lambda: encode(Measured(np.float64(1.5), 3)), lambda: codec.encode_firm({"mean": np.float64(1.5)})):
        with pytest.raises(TypeError, match=r"numpy\.float64 .* value\.item"):
            left()
    for enumerated in ({"level": Level.HIGH}, {1: Level.HIGH}, [Level.HIGH]):  # it would come back as a bare 3, typed or not
        with pytest.raises(TypeError, match="Level"):
            codec.encode_firm(enumerated)
    with pytest.raises(ValueError, match="come back"):
        check(Measured(1.5, Level.HIGH), codec.msgpack.state_encoder(Measured)(Measured(1.5, Level.HIGH)))


@pytest.mark.parametrize(
    ("state", "left"), [(int, 1.5), (int, True), (int, None), (dict, None), (list, ()), (set, [1]), (bool, 1), (str, b"x"), (tuple, [1])]
)
def test_a_state_of_another_class_than_its_built_in_type_is_refused(state: Any, left: Any) -> None:
    def hook(self: Any, record: ms.Record) -> None:
        self.state = left

    runner = runner_of(hook, state)
    runner.push("in", {"k": "a", "at": 1})
    with pytest.raises(ms.errors.HookError, match=f"State is {state.__name__}"):
        runner.run()


@dataclass
class Loose:
    counts: dict[str, int] = field(default_factory=dict)
    other: Any = None


class Pair(NamedTuple):
    x: int = 0


@pytest.mark.parametrize(
    "left",
    [
        Loose(collections.defaultdict(int, a=1)),
        Loose(collections.Counter("a")),
        Loose(other=Pair(1)),
        Loose(other={"a": [collections.OrderedDict(b=1)]}),
    ],
)
def test_a_field_that_equals_what_comes_back_and_is_of_another_class_is_refused(left: Any) -> None:
    data = codec.msgpack.state_encoder(Loose)
    check = codec.msgpack.state_checker(Loose)
    assert check is not None
    with pytest.raises((ValueError, TypeError), match="come back"):
        check(left, data(left))


class Numbers(msgspec.Struct):
    price: decimal.Decimal = decimal.Decimal(0)
    seen: set[float] = msgspec.field(default_factory=set)
    mean: float = 0.0


def test_what_is_not_a_number_is_the_same_when_it_comes_back() -> None:
    check = codec.msgpack.state_checker(Numbers)
    assert check is not None
    for state in (Numbers(decimal.Decimal("NaN")), Numbers(seen={float("nan")}), Numbers(mean=float("nan")), Numbers(mean=3)):
        check(state, codec.msgpack.state_encoder(Numbers)(state))


# --- against a dumb model: a value is what it is, down to every type


class Text(str):
    pass


class Whole(int):
    pass


class Real(float):
    pass


class Raw(bytes):
    pass


BERLIN, NEW_YORK = zoneinfo.ZoneInfo("Europe/Berlin"), zoneinfo.ZoneInfo("America/New_York")


class Elsewhere(datetime.tzinfo):
    """A time zone that nobody else knows."""

    def utcoffset(self, when: Any) -> datetime.timedelta:
        return datetime.timedelta(hours=1)

    def dst(self, when: Any) -> None:
        return None


def exactly(value: Any) -> Any:
    """All that there is to know of a value, in plain words: the dumb model of sameness."""
    kind = type(value)
    if kind is dict:
        return kind, [(exactly(key), exactly(one)) for key, one in value.items()]
    if kind in (list, tuple):
        return kind, [exactly(one) for one in value]
    if kind in (set, frozenset):
        return kind, sorted(repr(exactly(one)) for one in value)
    if dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct):
        names = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(kind) else kind.__struct_fields__  # type: ignore[arg-type]
        return kind, [exactly(getattr(value, name)) for name in names]
    if isinstance(value, (datetime.datetime, datetime.time)):
        zone = value.tzinfo
        return kind, repr(value.replace(tzinfo=None)), value.fold, value.utcoffset() if type(zone) is datetime.timezone else repr(zone)
    return kind, repr(value)


zones = st.sampled_from(
    [BERLIN, NEW_YORK, zoneinfo.ZoneInfo("UTC"), datetime.UTC, datetime.timezone(datetime.timedelta(hours=5)), Elsewhere()]
)
naive = st.datetimes(datetime.datetime(1990, 1, 1), datetime.datetime(2030, 1, 1))
moments = st.builds(lambda at, zone, fold: at.replace(tzinfo=zone, fold=fold), naive, st.none() | zones, st.integers(0, 1))
repeated_hour = st.builds(
    lambda minute, fold: datetime.datetime(2024, 10, 27, 2, minute, tzinfo=BERLIN, fold=fold),
    st.integers(0, 59),
    st.integers(0, 1),
)
odd = st.one_of(
    st.binary(max_size=3).map(bytearray),
    st.binary(max_size=3).map(memoryview),
    st.text(max_size=3).map(Text),
    st.integers().map(Whole),
    st.floats(allow_nan=False).map(Real),
    st.binary(max_size=3).map(Raw),
    moments,
    repeated_hour,
    st.builds(lambda at: at.timetz(), moments),
)
odd_keys = st.one_of(st.text(max_size=3).map(Text), st.integers(0, 9).map(Whole), st.binary(max_size=3).map(Raw))


def within(inner: Any) -> Any:
    """Containers of something."""
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(keys, odd_keys), inner, max_size=3),
        st.sets(st.one_of(keys, odd_keys), max_size=3),
    )


leaves = st.one_of(odd, scalars)
odd_values = st.one_of(leaves, within(leaves), within(within(leaves)))


@dataclass
class Annotated:
    text: str = ""
    number: int = 0
    mean: float = 0.0
    raw: bytes = b""
    buffer: bytearray = field(default_factory=bytearray)
    when: datetime.datetime | None = None
    names: dict[str, int] = field(default_factory=dict)
    some: set[str] = field(default_factory=set)


annotated = st.builds(
    Annotated,
    st.text(max_size=3) | st.text(max_size=3).map(Text),
    st.integers(0, 9) | st.integers(0, 9).map(Whole),
    st.floats(allow_nan=False) | st.floats(allow_nan=False).map(Real),
    st.binary(max_size=3) | st.binary(max_size=3).map(Raw) | st.binary(max_size=3).map(bytearray),
    st.binary(max_size=3).map(bytearray),
    st.none() | moments | repeated_hour,
    st.dictionaries(st.text(max_size=3) | st.text(max_size=3).map(Text), st.integers(0, 9), max_size=2),
    st.sets(st.text(max_size=3) | st.text(max_size=3).map(Text), max_size=2),
)


def comes_back(state: Any, kind: Any) -> Any:
    """What the next hook finds of a state of a type; raises if the hook that left it is refused."""
    data = codec.msgpack.state_encoder(kind)(state)
    check = codec.msgpack.state_checker(kind)
    if check is not None:
        check(state, data)
    return codec.msgpack.decoder(kind)(data)


def comes_back_or_is_refused(state: Any, kind: Any) -> None:
    before = exactly(state)
    try:
        found = comes_back(state, kind)
    except (TypeError, ValueError):
        return
    assert exactly(found) == before


@given(odd_values)
@settings(max_examples=some(800), deadline=None)
def test_an_untyped_state_comes_back_exactly_as_it_was_or_is_refused(value: Any) -> None:
    comes_back_or_is_refused({"a": value}, dict)
    comes_back_or_is_refused(Loose(other=value), Loose)


@given(annotated)
@settings(max_examples=some(800), deadline=None)
def test_a_typed_state_comes_back_exactly_as_it_was_or_is_refused(state: Annotated) -> None:
    comes_back_or_is_refused(state, Annotated)


@pytest.mark.parametrize("zone", [BERLIN, zoneinfo.ZoneInfo("UTC"), None])
@pytest.mark.parametrize("fold", [0, 1])
def test_what_need_not_be_refused_is_not(zone: Any, fold: int) -> None:
    moment = datetime.datetime(2024, 10, 27, 2, 30, tzinfo=zone, fold=fold)
    for value in (moment, moment.timetz(), bytearray(b"x"), [bytearray(b"x"), {1: bytearray(b"y")}], {"a": (moment, 1.5)}):
        assert exactly(comes_back({"a": value}, dict)) == exactly({"a": value})
        assert exactly(comes_back(Loose(other=value), Loose)) == exactly(Loose(other=value))


@pytest.mark.parametrize("state", [int, str, float, bytes])
def test_a_whole_state_of_a_subclass_is_refused(state: Any) -> None:
    own = {int: Whole(1), str: Text("a"), float: Real(1.5), bytes: Raw(b"a")}[state]
    with pytest.raises((TypeError, ValueError), match=type(own).__name__):
        comes_back(own, state)


def test_what_is_produced_has_the_offset_and_not_the_zone_as_ever() -> None:
    moment = datetime.datetime(2024, 7, 1, tzinfo=BERLIN)
    assert codec.encode_value([moment]) == codec.encode_value([moment.astimezone(datetime.timezone(datetime.timedelta(hours=2)))])


# --- state of an older program


@dataclass
class Old:
    count: int = 0
    names: list[str] = field(default_factory=list)


@dataclass
class New:
    count: dict[str, int] = field(default_factory=dict)


def keeping(state: Any, leave: Any, on_error: str = ms.FAIL) -> ms.Pipeline:
    def hook(self: Any, record: ms.Record) -> None:
        self.state = leave

    computation = type("Keeps", (ms.Computation,), {"State": state, "process_record": hook})
    p = ms.Pipeline("codec")
    source = p.inject("in", ms.sources.files("in/", schema="k string, at long", format="json"), timestamp="at")
    p.compute(computation, source, key="k", on_error=on_error)
    return p


@pytest.mark.parametrize(
    ("before", "left", "now", "fresh", "stored", "wanted"),
    [
        (Old, Old(3, ["a"]), New, New(), r"\{'count': 3, 'names': \['a'\]\}", r"New\(count: dict\[str, int\]\)"),
        (int, 7, str, "", r"7 \(int\)", r"str"),
        (dict, {"a": 1}, list, [], r"\{'a': 1\} \(dict\)", r"list"),
        (Old, Old(3), int, 0, r"\{'count': 3, 'names': \[\]\} \(dict\)", r"int"),
        (list, [1], New, New(), r"\[1\] \(list\)", r"New"),
    ],
)
@pytest.mark.parametrize("on_error", [ms.FAIL, ms.DEAD_LETTER])
def test_a_state_of_an_older_program_is_named_with_both_types(
    before: Any, left: Any, now: Any, fresh: Any, stored: str, wanted: str, on_error: str
) -> None:
    runner = LocalRunner(keeping(before, left, on_error))
    runner.push("in", {"k": "a", "at": 1})
    runner.run()
    runner.become(keeping(now, fresh, on_error))
    runner.push("in", {"k": "a", "at": 2})
    with pytest.raises(ms.errors.HookError, match="stored state is of an older program") as caught:
        runner.run()
    text = str(caught.value)
    assert re.search(f"stored: {stored}", text) and re.search(f"State now: {wanted}", text), text
    assert "computation 'Keeps', key 'a'" in text and "name=" in text and "Traceback" not in text


def test_a_field_with_a_default_more_is_no_other_type() -> None:
    @dataclass
    class More(Old):
        extra: int = 5

    runner = LocalRunner(keeping(Old, Old(3)))
    runner.push("in", {"k": "a", "at": 1})
    runner.run()
    runner.become(keeping(More, More(4)))
    assert runner.state("Keeps", "a") == More(3, [], 5)
    runner.push("in", {"k": "a", "at": 2})
    runner.run()


@dataclass
class Closed:
    total: decimal.Decimal = decimal.Decimal(0)
    since: datetime.date = datetime.date(2020, 1, 1)


@dataclass
class Opened:
    total: decimal.Decimal = decimal.Decimal(0)
    since: datetime.date = datetime.date(2020, 1, 1)
    extra: Any = None


def test_a_state_from_before_its_class_had_an_untyped_field_is_read() -> None:
    runner = LocalRunner(keeping(Closed, Closed(decimal.Decimal("1.50"), datetime.date(2024, 2, 29))))
    runner.push("in", {"k": "a", "at": 1})
    runner.run()
    runner.become(keeping(Opened, Opened()))
    assert runner.state("Keeps", "a") == Opened(decimal.Decimal("1.50"), datetime.date(2024, 2, 29))
    runner.push("in", {"k": "a", "at": 2})
    runner.run()


def test_a_typed_moment_with_an_offset_that_would_be_lost_is_refused() -> None:
    state = Annotated(
        "", 0, 0.0, b"", bytearray(), datetime.datetime(2000, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=5))), {}, set()
    )
    comes_back_or_is_refused(state, Annotated)
