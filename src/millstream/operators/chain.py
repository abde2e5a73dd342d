"""Steps without state on streams: inside the operator that reads them, or as a computation of their own.

Rules
1. Functions take the record. What is an expression works on columns where the rows are columns; everything else record by record, with the same result.
2. A record keeps its key, timestamp and id. What becomes of a late record is late, too.
3. A function that raises is blamed on the record. Where the operator has dead letters, the record goes there, and gives nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.core.arrivals import Arrivals, OperatorInput
from millstream.core.computation import Computation
from millstream.core.keys import key_of
from millstream.core.links import FILTER, MAP, Link, linked
from millstream.core.outcome import Outcome
from millstream.core.record import Batch, ListBatch, Record, with_value
from millstream.operators.expressions import NotInColumns
from millstream.operators.functions import OfValue, OfValues
from millstream.operators.results import Results
from millstream.operators.rows import StreamRows, rows_of
from millstream.reducers.base import spelled

if TYPE_CHECKING:
    from millstream.core.operator_step import OperatorStep

Failed = Callable[[Record, Exception], None]  # what to do with a record whose function raises


class Stateless(Computation):
    """A chain as a computation of its own: by stream, its links. keyed: productions keep the record's key. Where what it reads comes as columns, it takes whole
    columns."""

    State = type(None)
    judges_lateness = True
    folds_ahead = False
    keeps = "nothing"

    def __init__(self, links: Mapping[str, Sequence[Link]], keyed: Mapping[str, bool]) -> None:
        self.links = links
        self._chains = {stream: linked(some, with_value) for stream, some in links.items()}
        self._keyed = keyed

    def explain(self, types: Mapping[str, str]) -> list[tuple[str, str]]:
        return explained_links([link for links in self.links.values() for link in links])

    def run_columns(self, step: OperatorStep, given: Arrivals | OperatorInput) -> Outcome:
        if not isinstance(given, OperatorInput):
            given = rows_of(given)
        step.counts.records = sum(map(len, given.rows))
        stream = step.wiring.streams[0]
        with_ids = stream in step.visit.named_streams
        if given.rejected:
            step.reject(given.rejected)
        made = [applied(self.links[rows.stream], rows, step.put_failed, given.one_by_one) for rows in given.rows]
        for rows in made:
            if isinstance(rows.batch, MappedBatch):
                rows.batch.values = carried(step, rows)
        results: list[Any] = [ChainResults(step.name, stream, rows, self._keyed[rows.stream], with_ids) for rows in made if len(rows)]
        return Outcome(step.delta, step.visit.productions, step.counts, results=results)

    def process_record(self, record: Record) -> None:
        for one in self._chains[record.stream](record):
            key = record.key if self._keyed[record.stream] else None
            self.produce(one.value, key=key, timestamp=record.timestamp, late=True)  # as late as the record is, and no later


class ComputedBatch(Batch):
    """Records whose values were worked out as columns. columns: by field; under None, where the value is no dict."""

    __slots__ = ("_columns", "_lists", "_of")

    def __init__(self, of: StreamRows, columns: Mapping[str | None, Any]) -> None:
        super().__init__(of.stream)
        self._of, self._columns = of, columns
        self._lists: dict[str | None, list[Any]] | None = None

    def column(self, name: str | None) -> Any:
        return self._columns.get(name)

    def value(self, index: int) -> Any:
        if self._lists is None:
            self._lists = {name: column.to_pylist() for name, column in self._columns.items()}
        if None in self._lists:
            return self._lists[None][index]
        return {name: column[index] for name, column in self._lists.items()}

    def id(self, index: int) -> str:
        return self._of.batch.id(int(self._of.places()[index]))


class ChainResults(Results):
    """What a chain gives, as columns."""

    def __init__(self, computation: str, stream: str, made: StreamRows, keyed: bool, with_ids: bool) -> None:
        super().__init__(computation, stream, with_ids)
        self._made, self._keyed, self.times = made, keyed, made.times

    def __len__(self) -> int:
        return len(self._made)

    def python_keys(self) -> list[Any]:
        return list(map(key_of, self._made.keys.to_pylist())) if self._keyed else [None] * len(self)

    def values(self) -> Iterator[Any]:
        return iter(self._made.values())

    def made_ids(self) -> list[str]:
        about, found = f"\0{self.computation}\0{self.stream}\0record/{self._made.stream}/", []
        last, ordinal = None, 0
        for cause in zip(self._made.keys.to_pylist(), self._made.ids(), strict=True):
            last, ordinal = cause, ordinal + 1 if cause == last else 0
            found.append(blake2b(f"{cause[0]}{about}{cause[1]}\0{ordinal}".encode(), digest_size=16).hexdigest())
        return found

    def content(self, encode: Callable[[Any], bytes]) -> bytes:
        return msgspec.msgpack.encode(self.productions(encode))


def carried(step: OperatorStep, rows: StreamRows) -> list[Any]:
    """Values that functions have made, as productions carry them: what is no plain value comes back as the codec has it."""
    encode, decode, found = step.visit.encode, step.visit.decode, list[Any]()
    for record in rows.records():
        try:
            found.append(decode(encode(record.value)))
        except Exception as error:
            step.put_failed(record, ValueError(f"the value produced on stream {step.wiring.streams[0]!r} cannot be encoded: {error}"))
    return found


def in_columns(links: Sequence[Link]) -> bool:
    """Whether a chain has no function of a user's."""
    return all(isinstance(function, OfValue) or (kind == MAP and isinstance(function, OfValues)) for kind, function in links)


def explained_links(links: Sequence[Link]) -> list[tuple[str, str]]:
    """Steps, each with the reason why it does not work on columns."""
    return [
        (f"{kind} {spelled(function)}", "" if in_columns([(kind, function)]) else "it is a Python function") for kind, function in links
    ]


def applied(links: Sequence[Link], rows: StreamRows, failed: Failed, one_by_one: bool = False) -> StreamRows:
    """What becomes of some rows."""
    for at, (kind, function) in enumerate(links):
        if not len(rows):
            return rows
        made = None if one_by_one else _attempted(kind, function, rows)
        if made is None:
            return _one_by_one(links[at:], rows, failed)
        rows = made
    return rows


def _attempted(kind: str, function: Any, rows: StreamRows) -> StreamRows | None:
    """A step on columns; None where that cannot be done, or fails for some record: which one, is found one by one."""
    try:
        return _in_columns(kind, function, rows)
    except Exception:
        return None


def _in_columns(kind: str, function: Any, rows: StreamRows) -> StreamRows:
    if kind == FILTER and isinstance(function, OfValue):
        mask = function.expression.columns(rows.column, len(rows))
        if not pa.types.is_boolean(mask.type):
            raise NotInColumns("the condition is no boolean")
        return rows.where(pc.fill_null(mask, False).to_numpy(zero_copy_only=False))
    if kind == MAP and isinstance(function, (OfValue, OfValues)):
        expressions = {None: function.expression} if isinstance(function, OfValue) else function.expressions
        columns = {name: one.columns(rows.column, len(rows)) for name, one in expressions.items()}
        return StreamRows(ComputedBatch(rows, columns), rows.keys, rows.times)
    raise NotInColumns("it is a function")


def _one_by_one(links: Sequence[Link], rows: StreamRows, failed: Failed) -> StreamRows:
    chain = linked(links, with_value)
    values, ids, places = [], [], []
    for at, record in enumerate(rows.records()):
        try:
            made = list(chain(record))
        except Exception as error:
            failed(record, error)
            continue
        values += [one.value for one in made]
        places += [at] * len(made)
        ids += [record._index] * len(made)
    batch = MappedBatch(rows, values, ids)
    return StreamRows(batch, rows.keys.take(pa.array(places, pa.int64())), rows.times[np.array(places, np.int64)])


class MappedBatch(ListBatch):
    """Records whose values were made one by one. ids: the places of the records that they were made of."""

    __slots__ = ("_of",)

    def __init__(self, of: StreamRows, values: Sequence[Any], ids: Sequence[Any]) -> None:
        super().__init__(of.stream, values, ids)
        self._of = of

    def id(self, index: int) -> str:
        return self._of.batch.id(self.ids[index])  # type: ignore[arg-type]
