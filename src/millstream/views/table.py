"""A table: the latest document per key.

Rules
1. A table is a last-writer-wins register per key: the greatest (version, deletion, bytes) counts, so the result does not depend on the order of arrival.
   Without versions, epochs count in their order, and within one the greatest (timestamp, deletion, bytes).
2. All versions that one epoch brings are merged before anything is sent: what was overtaken in the same epoch has never been.
3. A document that equals the stored one changes nothing.
4. A deletion keeps its version as a tombstone for a while, so that an older version does not bring the document back.
5. A version older than the stored one is stale. It changes nothing, and heals: what it would have given is taken out wherever it dangles, and the current
   document is stated again. That travels on through views on views.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import msgspec

from millstream.core.keys import key_text
from millstream.core.record import Record, Timer
from millstream.core.time import WALL_CLOCK
from millstream.errors import InputError
from millstream.views.cdc import Reads
from millstream.views.change import Document
from millstream.views.operator import Sending, ViewOperator

TOMBSTONE = "tombstone"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class DocumentRow(msgspec.Struct):
    """A document as a table keeps it. body: encoded; None: deleted. What has arrived in this epoch stands beside it until the visit ends."""

    version: Any = None
    body: bytes | None = None
    has_new: bool = False
    new_version: Any = None
    new_body: bytes | None = None
    restated: bool = False
    document: Any = None  # what new_body says, where it is at hand: never kept

    is_plain: ClassVar[bool] = True

    def pack(self) -> list[Any]:
        if self.has_new or self.restated:
            return [self.version, self.body, self.has_new, self.new_version, self.new_body, self.restated]
        return [self.version, self.body]

    def essence(self) -> Any:
        return [self.version, self.body]


class TableRules(msgspec.Struct, frozen=True):
    """How a table reads its records. columns: fields that are kept; None: all. tombstones: in milliseconds, None for ever. said: the fields that say the
    version and the deletion, None for either that there is none; None if they are said in another way. is_sorted: fields are put in order."""

    read: Reads
    versioned: bool
    columns: tuple[str, ...] | None = None
    tombstones: int | None = None
    said: tuple[str | None, str | None] | None = None
    is_sorted: bool = False


class DocumentTable(ViewOperator):
    State = DocumentRow

    def __init__(self, sending: Sending, rules: TableRules) -> None:
        super().__init__(sending)
        self.rules = rules

    def read(self, record: Record) -> tuple[Any, Any, bool]:
        """The document that a record brings, its version, and whether it is a deletion."""
        document, version, deleted = self.rules.read(record)
        if self.rules.columns is not None and not deleted:
            document = _only(document, self.rules.columns, self.sending.name)
        return document, version, deleted

    def process_record(self, record: Record) -> None:
        rules = self.rules
        document, version, deleted = self.read(record)
        body = None if deleted else self.encode(document)
        state = self.state
        if not rules.versioned:
            time, new = record.timestamp, state.new_body
            if not state.has_new or (time, deleted, body or b"") > (state.new_version, new is None, new or b""):
                state.has_new, state.new_version, state.new_body, state.document = True, time, body, document
            return
        if version.__class__ is not int:
            version = ordered(version, self.sending.name)
        stored = state.version
        if stored is not None and self._visit.guards.versions:
            order = compared(version, stored, self.sending.name) or _by_bytes(body, state.body)
            if order < 0:
                self._stale(version, body)
            if order <= 0:
                return
        if state.has_new:
            order = compared(version, state.new_version, self.sending.name) or _by_bytes(body, state.new_body)
            if order <= 0 and self._visit.guards.versions:
                return
        state.has_new, state.new_version, state.new_body, state.document = True, version, body, document

    def _stale(self, version: Any, body: bytes | None) -> None:
        self.tally("stale")
        if not self._visit.guards.restate:
            return
        self.state.restated = True
        if body is not None:
            self.retract(self.origin, [Document(self.key, self.decode(body), version)])

    def finish_key(self) -> None:
        state, is_scanned = self.state, self.is_scanned
        if not state.has_new and not state.restated and not is_scanned:
            return
        before, body = state.body, state.new_body if state.has_new else state.body
        version = state.version if not state.has_new else state.new_version if self.rules.versioned else None
        is_newer = body is not None and version != state.version  # which a map, or first and last, may look at
        if before != body or is_newer or state.restated or is_scanned:
            key = self.key
            prev = [] if before is None else [Document(key, self.decode(before), state.version)]
            is_same = body == before and not is_newer
            if is_same or body is None:
                next = prev if is_same else []
            else:
                next = [Document(key, state.document if state.document is not None else self.decode(body), version)]
            self.send(self.origin, prev, next, unchanged=is_same, restated=state.restated)
            if before != body:
                self.tally("changes")
                if (before is None) != (body is None):
                    self.tally("documents", 1 if before is None else -1)
                if self.sending.shown:
                    self.show(prev[0].value if prev else None, next[0].value if next else None)
        if state.has_new and body is None and self.rules.versioned:
            self.cancel_timer(TOMBSTONE, kind=WALL_CLOCK)
            if self.rules.tombstones is not None:  # rule 4
                self.set_timer(TOMBSTONE, self.now + self.rules.tombstones, WALL_CLOCK)
        elif state.has_new and before is None and state.version is not None:
            self.cancel_timer(TOMBSTONE, kind=WALL_CLOCK)
        state.version, state.body = version, body
        state.has_new, state.new_version, state.new_body, state.restated, state.document = False, None, None, False, None

    def documents(self, key: Any, state: DocumentRow) -> Iterator[tuple[str, list[Document]]]:
        if state.body is not None:
            yield key_text(key), [Document(key, self.decode(state.body), state.version)]

    def process_timer(self, timer: Timer) -> None:
        if self.state.body is None and not self.state.has_new:
            self.state = DocumentRow()


def _only(document: Any, columns: Sequence[str], table: str) -> dict[str, Any]:
    try:
        return {name: document[name] for name in columns}
    except (KeyError, TypeError) as error:
        raise InputError(f"table {table!r}: columns={list(columns)!r}, and the document {document!r} lacks {error}") from error


def _by_bytes(body: bytes | None, other: bytes | None) -> int:
    """Rule 1, for equal versions."""
    ours, theirs = (body is None, body or b""), (other is None, other or b"")
    return (ours > theirs) - (ours < theirs)


def ordered(version: Any, table: str) -> Any:
    """A version as it is kept: a number, a text or bytes, or a list of those."""
    kind = version.__class__
    if kind is int or kind is str or kind is bytes or (kind is float and version == version):
        return version
    if kind is tuple or kind is list:
        return [ordered(part, table) for part in version]
    if isinstance(version, datetime.datetime):
        at = version if version.tzinfo is not None else version.replace(tzinfo=datetime.UTC)
        return (at - _EPOCH) // datetime.timedelta(microseconds=1)
    if isinstance(version, datetime.date):
        return version.isoformat()
    what = "null" if version is None else f"{version!r}, a {kind.__name__}"
    raise InputError(f"table {table!r}: the version is {what}. Give a number, a text, a time, or several of them (version=[...]).")


def compared(version: Any, other: Any, table: str) -> int:
    """-1, 0 or 1, as a version is older than another, equal, or newer."""
    try:
        return 1 if version > other else -1 if version < other else 0
    except TypeError:
        raise InputError(
            f"table {table!r}: the version {version!r} is a {type(version).__name__}, and an earlier one, {other!r}, is a {type(other).__name__}: they "
            f"cannot be compared. Cast it in the source."
        ) from None
