"""What counts as a difference, and how it is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

import millstream as ms
from millstream.core.keyspace import ROW, NoEntries, Row, encode_row, sub_prefix
from millstream.core.keyspace import encode_sub_key as encode
from millstream.core.step import StateKind
from millstream.simulation.diff import OutRow, first_entry, first_of_bag, first_row, same, short
from millstream.state.codec import msgpack


class Plain:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class Struct(msgspec.Struct, eq=False):
    a: Any = None


class NoTruth:
    """As an array has it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> Any:
        raise ValueError("no truth")

    def __repr__(self) -> str:
        return self.text


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1, True),
        (1, 2, False),
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (True, True, True),
        (0.1 + 0.2, 0.3, True),
        (1e9, 1e9 + 10, False),
        (float("nan"), float("nan"), True),
        (2**60, 2**60 + 1, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": {"b": 0.3}}, {"a": {"b": 0.1 + 0.2}}, True),
        ([1, [2]], (1, (2,)), True),
        ([1, 2], [2, 1], False),
        ([1], [1, 2], False),
        ("1", 1, False),
        (None, 0, False),
        ({1, 2}, {2, 1}, True),
        (Plain(a=0.3), Plain(a=0.1 + 0.2), True),
        (Plain(a=1), Plain(a=2), False),
        (Plain(a=1), Plain(b=1), False),
        (Struct([1]), Struct((1,)), True),
        (Struct(1), Struct(2), False),
        (object(), object(), False),
        (NoTruth("a"), NoTruth("a"), True),
        (NoTruth("a"), NoTruth("b"), False),
    ],
)
def test_values_are_the_same_or_not(one: Any, other: Any, equal: bool) -> None:
    assert same(one, other) is same(other, one) is equal


def row(value: Any, at: int, id: str = "") -> OutRow:
    return OutRow(at, value, msgspec.msgpack.encode(value), id)


def test_a_bag_has_no_order_and_counts() -> None:
    rows = [row(1, 10), row(0.3, 20), row({"a": 1, "b": 2}, 30), row(7, 40), row(7, 40)]
    other = [row(7, 40), row({"b": 2, "a": 1}, 30), row(0.1 + 0.2, 20), row(1, 10), row(7, 40)]
    assert first_of_bag("here", rows, other) is None
    assert first_of_bag("here", rows[:-1], other) == "here: nothing instead of 7 at 40"
    assert first_of_bag("here", [*rows, row(3, 5)], other) == "here: 3 at 5 instead of nothing"
    assert first_of_bag("here", [row(2, 10), *rows[1:]], other) == "here: 2 at 10 instead of 1 at 10"
    assert first_of_bag("here", [row(1, 11), *rows[1:]], other) == "here: 1 at 11 instead of 1 at 10"


def test_a_key_with_its_order_has_the_first_row_that_differs() -> None:
    rows = [row(1, 10, "i"), row(2, 20, "j")]
    assert first_row("here", rows, list(rows)) is None
    assert first_row("here", rows, rows[::-1]) == "here: row 1 of 2 is 1 at 10 instead of 2 at 20"
    assert first_row("here", rows[:1], rows) == "here: row 2 of 2 is nothing instead of 2 at 20"
    assert first_row("here", [rows[0], row(2, 20, "k")], rows) == "here: row 2 of 2 is 2 at 20, id k instead of 2 at 20, id j"


@dataclass
class Kept:
    count: int = 0
    items: ms.MapState = field(default_factory=ms.MapState)


class Program(ms.Computation):
    State = Kept


def test_entries_are_told_as_keys_states_timers_and_items() -> None:
    kind = StateKind(Program, msgpack)
    five, six = (kind.encode(_bound(kind, count)) for count in (5, 6))
    plain, item = ROW + b"tea", sub_prefix(b"tea", "items") + encode(("a", 1))

    def told(got: dict[bytes, bytes], expected: dict[bytes, bytes], exact: bool = True) -> str | None:
        return first_entry("Program", kind, got, expected, exact)

    assert told({plain: encode_row(Row(five))}, {plain: encode_row(Row(five))}) is None
    found = told({plain: encode_row(Row(five))}, {plain: encode_row(Row(six))})
    assert found is not None and found.startswith("state of 'Program', key 'tea': Kept(count=5") and " instead of Kept(count=6" in found
    found = told({}, {plain: encode_row(Row(six))})
    assert found is not None and found.startswith("state of 'Program', key 'tea': nothing instead of Kept(count=6")
    timers = [encode_row(Row(five, [(at, "end")])) for at in (10, 20)]
    assert (
        told({plain: timers[0]}, {plain: timers[1]}, exact=False)
        == "timers of 'Program', key 'tea': [(10, 'end')] instead of [(20, 'end')]"
    )
    holds = [encode_row(Row(five, [], [], [(at, "", 0, "")])) for at in (10, 20)]
    assert told({plain: holds[0]}, {plain: holds[1]}) is not None
    assert told({plain: holds[0]}, {plain: holds[1]}, exact=False) is None, "a hold is about time, not a result"
    found = told({item: msgspec.msgpack.encode(1)}, {item: msgspec.msgpack.encode(2)})
    assert found == "state of 'Program', key 'tea', item items[('a', 1)]: 1 instead of 2"
    assert (
        told({item: msgspec.msgpack.encode(1)}, {}, exact=False)
        == "state of 'Program', key 'tea', item items[('a', 1)]: 1 instead of nothing"
    )


def _bound(kind: StateKind, count: int) -> Kept:
    state = Kept(count)
    for _, sub in kind.maps(state):
        sub.bind(NoEntries(), b"", kind.encode, kind.decode_sub)
    return state


def test_a_value_that_cannot_be_shown_does_not_hide_the_difference() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert short(Silent()) == "a Silent that cannot be shown (no)"
    assert len(short("x" * 10_000)) == 100
