"""Typed values: a dataclass or a Struct in the place of the row, on engines of lists and of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import millstream as ms
from millstream.engine.columns.batches import ColumnBatch, ValueColumn
from millstream.errors import DefinitionError, HookError, InputError

SCHEMA = "user string, price long, at long"


@dataclass
class Click:
    user: str
    price: int
    note: str = "none"


class Priced(msgspec.Struct):
    price: int


class Told(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.produce([type(record.value).__name__, record.value.price])


def pipeline(kind: Any, on_error: str = ms.FAIL) -> ms.Pipeline:
    p = ms.Pipeline("typed")
    clicks = p.inject("clicks", ms.sources.files("clicks/", schema=SCHEMA), timestamp="at", value=kind)
    p.emit(p.compute(Told, clicks, key="user", produces="told", on_error=on_error), ms.sinks.memory())
    if on_error == ms.DEAD_LETTER:
        p.emit(p.dead_letters("Told"), ms.sinks.memory())
    windows = clicks.by("user").filter("price > 1").window(ms.windows.tumbling("1s"))
    p.emit(
        windows.reduce(total=ms.sum("price"), most=ms.max(lambda value: value.price), name="windows", on_error=on_error), ms.sinks.memory()
    )
    return p


@pytest.mark.parametrize("kind", [Click, Priced])
def test_hooks_expressions_and_reducers_get_the_class(kind: Any) -> None:
    runner = ms.testing.LocalRunner(pipeline(kind))
    runner.push("clicks", *[{"user": "sue", "price": n, "at": 100 + n} for n in (1, 2, 3)])
    runner.drain()
    assert [value for _, value, _ in runner.output("told")] == [[kind.__name__, n] for n in (1, 2, 3)]
    assert [(value["total"], value["most"]) for _, value, _ in runner.output("windows")] == [(5, 3)]


def test_a_row_that_is_none_of_the_class_is_an_error_with_stream_field_and_row_or_a_dead_letter() -> None:
    bad = {"user": "sue", "price": None, "at": 7}
    runner = ms.testing.LocalRunner(pipeline(Click))
    runner.push("clicks", bad)
    with pytest.raises(
        HookError, match=r"stream 'clicks': a row is no Click: Expected `int`, got `null` - at `\$.price`, in the row \{'user': 'sue'"
    ):
        runner.run()
    runner = ms.testing.LocalRunner(pipeline(Click, ms.DEAD_LETTER))
    runner.push("clicks", bad, {"user": "sue", "price": 4, "at": 8})
    runner.drain()
    assert [value["error"][:31] for _, value, _ in runner.output("Told.dead-letters")] == ["InputError: stream 'clicks': a "]
    assert [value["total"] for _, value, _ in runner.output("windows")] == [4]


def test_a_field_without_a_column_is_said_when_it_is_defined() -> None:
    class Other(msgspec.Struct):
        prise: int

    with pytest.raises(
        DefinitionError, match=r"value=Other: there is no column 'prise'; the source has: user, price, at\. Did you mean 'price'"
    ):
        pipeline(Other)


def test_columns_become_the_class_row_by_row() -> None:
    table = pa.table({"key": ["sue", "tod"], "ts": [1, 2], "id": ["a", "b"], "v0": [{"price": 3}, {"price": None}]})
    batch = ColumnBatch("clicks", table, "v0", [ValueColumn("user", "key"), ValueColumn("price", "")], False, Click)
    assert batch.value(0) == batch.anew().value(0) == Click("sue", 3)
    for one in (batch, batch.anew()):
        with pytest.raises(InputError, match="stream 'clicks': a row is no Click"):
            one.value(1)
    assert batch.column("price") is None, "a column would not be looked at"
