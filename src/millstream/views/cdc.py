"""How a source says what has changed: from a record to a document, its version, and whether it is a deletion.

    ms.changes.upserts()      the row is the document; a field may say that it is gone. What tables do unless told otherwise
    ms.changes.debezium()     change events of Debezium: `after` is the document, op "d" is a deletion. A tombstone (a null event) has no key to go by:
                              leave them out in the source, because the deletion has come before it

`before` is never needed: the table knows what was. So a source need not log whole old rows (in Postgres, REPLICA IDENTITY DEFAULT will do).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import msgspec

from millstream.core.record import Record
from millstream.errors import DefinitionError, InputError

Reads = Callable[[Record], tuple[Any, Any, bool]]  # from a record: the document, its version, and whether it is a deletion


class Feed(msgspec.Struct, frozen=True):
    """A form of change. envelope: where documents lie in a row; None: the row is one. version: a path in the row that says the version."""

    kind: str
    envelope: str | None = None
    version: str | None = None
    deleted: Any = None

    def key_expression(self, key: str) -> str:
        """The key of a row as SQL, where it is no column of the row itself."""
        if self.kind == "upserts":
            return key
        inside = "" if self.envelope is None else f"`{self.envelope}`."
        return f"coalesce({inside}after.`{key}`, {inside}before.`{key}`)"

    def key_of(self, key: str, row: dict[str, Any]) -> Any:
        if self.kind == "upserts":
            return row.get(key)
        inside = (row if self.envelope is None else row[self.envelope]) or {}
        after, before = inside.get("after") or {}, inside.get("before") or {}
        return after.get(key) if after.get(key) is not None else before.get(key)


def upserts(*, deleted: Any = None) -> Feed:
    """Every row is a document. deleted: a field, or a function of the row, that says that it is gone."""
    if deleted is not None and not isinstance(deleted, str) and not callable(deleted):
        raise DefinitionError(f"ms.changes.upserts(deleted={deleted!r}): give a field's name, or a function of the row")
    return Feed("upserts", deleted=deleted)


def debezium(*, value: str | None = None, version: str | None = "source.lsn") -> Feed:
    """Change events of Debezium. value: the column that holds them; None: before, after, op and source are columns themselves. version: a path inside
    that says the order: source.lsn (Postgres), source.pos, ts_ms, ..."""
    return Feed("debezium", value, version)


def reader(table: str, feed: Feed, version: Any, is_sorted: bool) -> Reads:
    """A function that reads records of a feed. version: a field, several, a function of the row; None: the feed's own, or none. is_sorted: fields are put
    in order, where several sources may bring them in different ones."""
    if feed.kind == "debezium":
        return _debezium(table, feed, _path(version or feed.version), is_sorted)
    return _upserts(table, _path(version), _path(feed.deleted), is_sorted)


def said_by_fields(feed: Feed, version: Any) -> tuple[str | None, str | None] | None:
    """The fields of a row that say the version and the deletion, None for what nothing says; None altogether if they are said in another way."""
    said = (version, feed.deleted)
    if feed.kind != "upserts" or not all(one is None or (isinstance(one, str) and "." not in one) for one in said):
        return None
    return said


def _upserts(table: str, version: Callable[[Any], Any] | None, deleted: Callable[[Any], Any] | None, is_sorted: bool) -> Reads:
    def read(record: Record) -> tuple[Any, Any, bool]:
        row = record.value
        try:
            said = None if version is None else version(row)
            is_gone = row is None or (deleted is not None and bool(deleted(row)))
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"table {table!r}: the version or the deletion of {row!r} cannot be read: {type(error).__name__}: {error}"
            ) from error
        return (None if is_gone else _sorted(row) if is_sorted else row), said, is_gone

    return read


def _debezium(table: str, feed: Feed, version: Callable[[Any], Any] | None, is_sorted: bool) -> Reads:
    def read(record: Record) -> tuple[Any, Any, bool]:
        row = record.value if feed.envelope is None else record.value[feed.envelope]
        if not isinstance(row, dict) or "op" not in row or "after" not in row:
            raise InputError(
                f"table {table!r}: no change event of Debezium: {row!r}. It has `op`, `before`, `after` and `source`; see value= of debezium()."
            )
        try:
            said = None if version is None else version(row)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"table {table!r}: the version of {row!r} cannot be read: {type(error).__name__}: {error}") from error
        is_gone = row["op"] == "d" or row["after"] is None
        return (None if is_gone else _sorted(row["after"]) if is_sorted else row["after"]), said, is_gone

    return read


def _path(given: Any) -> Callable[[Any], Any] | None:
    """A field, a path with dots, several of them, or a function, as a function of the row."""
    if given is None or callable(given):
        return given  # type: ignore[no-any-return]
    if isinstance(given, str):
        return partial(_walk, tuple(given.split("."))) if "." in given else itemgetter(given)
    if isinstance(given, (list, tuple)) and given:
        paths: Any = [_path(one) for one in given]
        return lambda row: [path(row) for path in paths]
    raise DefinitionError(f"version={given!r}: give a field's name, a list of names, or a function of the row")


def _walk(names: Sequence[str], row: Any) -> Any:
    if row.__class__ is dict and names[0] not in row and ".".join(names) in row:
        return row[".".join(names)]
    for name in names:
        row = row[name]
    return row


def _sorted(row: Any) -> Any:
    """Fields in one order, whoever brought them."""
    if row.__class__ is dict:
        return {name: _sorted(value) for name, value in sorted(row.items(), key=lambda item: str(item[0]))}
    return [_sorted(value) for value in row] if row.__class__ is list else row
