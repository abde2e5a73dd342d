"""A join: the documents of a left side, each with the one of the right side whose key it names.

Rules
1. A row is a key of the right side, with the right document and all left ones that name it. What it sends of a left document has the origin (this row,
   the left document). So a left document that goes from one right one to another is taken out by the one row and put in by the other, in no defined
   order, and right in any.
2. A change on either side moves the result within the epoch. A change on the right moves it for every left document of the row.
3. how="inner": a left document without a right one gives nothing; how="left": it stands alone, beside None.
4. A few left documents stand in the row, more of them beside it, an entry each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import msgspec

from millstream.core.backfill import cutover_name
from millstream.core.keys import key_of, key_text
from millstream.core.mapstate import MapState
from millstream.core.record import Record
from millstream.views.change import RESTATED, Document, unpacked
from millstream.views.operator import Sending, ViewOperator

INNER, LEFT = "inner", "left"
INLINE_BYTES = 1024
FEW = 4  # left documents whose size is not looked at
BACK = 8  # so many or fewer return into the row


class JoinRow(msgspec.Struct):
    """A key of the right side."""

    right: list[Any] = []  # its document, as a list of one, or nothing
    count: int = 0
    inline: dict[str, list[Any]] = {}  # left values by origin
    beside: bool = False  # they are in `lefts` instead
    lefts: MapState = msgspec.field(default_factory=MapState)
    touched: dict[str, list[Any]] = {}  # left values by origin, as they were before the visit
    was: list[Any] | None = None  # the right side, as it was before the visit
    restated: set[str] = set()
    restated_right: bool = False

    is_plain: ClassVar[bool] = False

    def pack(self) -> list[Any]:
        return [self.right, self.count, self.inline, self.beside]

    def essence(self) -> Any:
        return [self.right, self.count]


class Join(ViewOperator):
    State = JoinRow

    def __init__(self, sending: Sending, left: str, how: str) -> None:
        """left: the stream of the left side."""
        super().__init__(sending)
        self.left, self.how = left, how

    def process_record(self, record: Record) -> None:
        row = self.state
        if record.stream == self.left:
            _, entries = unpacked(record.value, self.decode)
            for origin, how, values in entries:
                self._put(row, origin, values, how & RESTATED != 0)
        else:
            _, how, *right = self.decode(record.value)
            if row.was is None:
                row.was = row.right
            row.right = right
            row.restated_right = row.restated_right or how & RESTATED != 0

    def lefts_of(self, row: JoinRow) -> dict[str, list[Any]]:
        return {origin: self.decode(data) for origin, data in row.lefts.items()} if row.beside else dict(row.inline)

    def _put(self, row: JoinRow, origin: str, values: list[Any] | None, restated: bool) -> None:
        old = self._left(row, origin)
        row.touched.setdefault(origin, old or [])
        if restated:
            row.restated.add(origin)
        row.count += (values is not None) - (old is not None)
        if row.beside:
            if values is not None:
                row.lefts.set(origin, self.encode(values))
            else:
                row.lefts.delete(origin)
        elif values is not None:
            row.inline[origin] = values
        elif old is not None:
            del row.inline[origin]

    def _left(self, row: JoinRow, origin: str) -> list[Any] | None:
        if not row.beside:
            return row.inline.get(origin)
        data = row.lefts.get(origin)
        return None if data is None else self.decode(data)

    def _origins(self, row: JoinRow) -> Iterable[str]:
        return list(row.lefts) if row.beside else list(row.inline)

    def finish_key(self) -> None:
        row, build = self.state, self.build(self.sending.name)
        cuts_over = cutover_name(self.sending.name, build.generation) in self._visit.scans
        if cuts_over or build.generation == build.active:
            self._say(row, cuts_over)
        row.touched, row.was, row.restated, row.restated_right = {}, None, set(), False
        self._settle(row)
        if not row.right and not row.count:
            self.state = JoinRow(lefts=row.lefts)

    def _say(self, row: JoinRow, cuts_over: bool) -> None:
        was = row.right if row.was is None else row.was
        moved = was != row.right
        everyone = moved or row.restated_right or cuts_over or self.is_scanned
        origins = dict.fromkeys([*row.touched, *(self._origins(row) if everyone else ())])
        if moved and row.count:
            self.tally("fan-outs", row.count)
        for origin in origins:
            now = self._left(row, origin) or []
            before = row.touched.get(origin, now)
            key = key_of(origin)
            prev = [] if cuts_over else self._documents(key, before, was)
            next = self._documents(key, now, row.right)
            again = row.restated_right or origin in row.restated
            if prev != next or again or self.is_scanned:
                sender = key_text((self.key, key)) if self._visit.guards.sender else origin
                self.send(sender, prev, next, unchanged=prev == next, restated=again)
                self.tally("changes", prev != next)

    def _documents(self, key: Any, values: Sequence[Any], right: Sequence[Any]) -> list[Document]:
        if not right and self.how == INNER:
            return []
        beside = right[0] if right else None
        return [Document(key, {"left": value, "right": beside}) for value in values]

    def documents(self, key: Any, state: JoinRow) -> Iterator[tuple[str, list[Document]]]:
        for origin in self._origins(state):
            left = key_of(origin)
            found = self._documents(left, self._left(state, origin) or [], state.right)
            if found:
                yield key_text((key, left)), found

    def _settle(self, row: JoinRow) -> None:
        """Rule 4."""
        if row.beside and row.count <= BACK:
            row.inline = {origin: self.decode(data) for origin, data in row.lefts.items()}
            row.lefts.clear()
            row.beside = False
        elif not row.beside and len(row.inline) > FEW and len(self.encode(row.inline)) > INLINE_BYTES:
            for origin, values in row.inline.items():
                row.lefts.set(origin, self.encode(values))
            row.inline, row.beside = {}, True
