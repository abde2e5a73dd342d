"""Rows of a sink as the columns of a table.

Rules
1. A column named key, timestamp, value or id has that part of the row; any other has the field of the value with its name. `columns=` says otherwise: a
   path such as "key.0" or "value.user.name".
2. Types are checked here, in the task, before an epoch is committed. A value that does not fit is an error that names key, column and value.
3. Where a column has a time, an integer is milliseconds since 1970, as everywhere in Millstream.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.errors import DefinitionError
from millstream.sinks.base import SinkRow

if TYPE_CHECKING:
    import pyarrow as pa

GONE = "millstream_gone"  # a column
PARTS = ("key", "timestamp", "value", "id")


class TableColumn(msgspec.Struct, frozen=True):
    """A column of a target. path: where in a row its value is. type: Arrow's; None: whatever the values are. required: it must not be null. convert: what
    becomes of each value that is not null, before it is given the type; ValueError says that it does not fit."""

    name: str
    path: str
    type: Any = None
    required: bool = False
    convert: Callable[[Any], Any] | None = None


def default_path(name: str) -> str:
    return name if name in PARTS else f"value.{name}"


def key_path(name: str, key: Sequence[str]) -> str:
    """Where a column's value is in the rows of an upsert: the columns of the primary key are the row's key."""
    if name not in key:
        return default_path(name)
    return f"key.{key.index(name)}" if len(key) > 1 else "key"


def check_paths(paths: Mapping[str, str], who: str) -> None:
    for name, path in paths.items():
        if path.split(".")[0] not in PARTS:
            raise DefinitionError(
                f"{who}: column {name!r} from {path!r}: a path begins with {', '.join(PARTS)}, as in 'key.0' or 'value.user.name'"
            )


def getter(path: str) -> Callable[[SinkRow], Any]:
    """What is at a path in a row; None where the way there is missing."""
    first, *rest = path.split(".")
    if not rest:
        return lambda row: getattr(row, first, None)

    def found(row: SinkRow) -> Any:
        here: Any = getattr(row, first, None)
        for step in rest:
            if isinstance(here, dict):
                here = here.get(step)
            elif isinstance(here, (list, tuple)) and step.isdigit() and int(step) < len(here):
                here = here[int(step)]
            elif first == "key" and step == "0" and not isinstance(here, (list, tuple)):
                continue
            else:
                return None
        return here

    return found


def values_at(rows: Sequence[SinkRow], path: str) -> list[Any]:
    """What is at a path in each row."""
    if path == "key":
        return [row.key for row in rows]
    if path == "timestamp":
        return [row.timestamp for row in rows]
    first, _, name = path.partition(".")
    if first != "value" or "." in name:
        return list(map(getter(path), rows))
    whole = [row.value for row in rows]
    if not name:
        return whole
    try:
        return [one[name] for one in whole]
    except (LookupError, TypeError):
        return [one.get(name) if isinstance(one, dict) else None for one in whole]


def to_columns(rows: Sequence[SinkRow], columns: Iterable[TableColumn]) -> pa.Table:
    """The rows as an Arrow table. Raises ValueError that names key, column and value."""
    import pyarrow as pa

    return pa.table({column.name: _array(rows, column) for column in columns})


def to_upserts(rows: Sequence[SinkRow], columns: Sequence[TableColumn], key: Sequence[str]) -> pa.Table:
    """The rows as what is to be done, with a column `GONE`: a row without a value removes its key. Of a change {"prev", "next"} the next one counts."""
    import pyarrow as pa

    now = [SinkRow(row.key, row.timestamp, row.value["next"]) if _is_change(row.value) else row for row in rows]
    gone = [row.value is None for row in now]
    if any(gone):
        columns = [msgspec.structs.replace(one, required=one.required and one.name in key) for one in columns]
    return to_columns(now, columns).append_column(GONE, pa.array(gone))


def _is_change(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"prev", "next"}


def _array(rows: Sequence[SinkRow], column: TableColumn) -> pa.Array:
    import pyarrow as pa

    values = values_at(rows, column.path)
    try:
        found = _typed(values, column)
        if column.required and found.null_count:
            raise ValueError("it must not be null")
        return found
    except (pa.ArrowException, ValueError, TypeError, OverflowError, UnicodeError, ArithmeticError) as error:
        for row, value in zip(rows, values, strict=True):
            try:
                if value is None and column.required:
                    raise ValueError("it must not be null")
                _typed([value], column)
            except Exception as culprit:
                raise ValueError(f"key {row.key!r}: column {column.name!r}: {value!r:.200} does not fit: {culprit}") from error
        raise ValueError(f"column {column.name!r}: {error}") from error


def _typed(values: list[Any], column: TableColumn) -> pa.Array:
    if column.convert is not None:
        values = [None if value is None else column.convert(value) for value in values]
    return converted(values, column.type)


def converted(values: list[Any], kind: Any) -> pa.Array:
    """Python values as an Arrow array, without loss: a fraction in a column of integers, a number in one of texts and the like are errors."""
    import pyarrow as pa

    if kind is None:
        return pa.array(values)
    if pa.types.is_timestamp(kind):
        try:
            return _integers(values, pa.int64()).cast(pa.timestamp("ms", kind.tz)).cast(kind)
        except (pa.ArrowException, TypeError):
            values = [_time(value) if isinstance(value, int) else value for value in values]
    if pa.types.is_integer(kind):
        return _integers(values, kind)
    if pa.types.is_decimal(kind):
        values = [None if value is None else decimal.Decimal(str(value)) for value in values]
    return pa.array(values, kind)


def _integers(values: list[Any], kind: Any) -> pa.Array:
    """Arrow by itself would cut fractions off."""
    import pyarrow as pa

    found = pa.array(values)
    if not pa.types.is_floating(found.type):
        return pa.array(values, kind)
    try:
        return found.cast(kind)
    except pa.ArrowInvalid as error:
        raise ValueError("a fraction does not fit a column of integers, as times are (milliseconds)") from error


_START = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _time(millis: int) -> datetime.datetime:
    return _START + datetime.timedelta(milliseconds=millis)
