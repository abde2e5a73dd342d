"""Records of a stream, each with the document that a table, a view or a join has under its key when the record is processed: `stream.by(key).join(table)`.

Rules
1. Order of arrival counts: a record meets the document as of its epoch; of what comes in one epoch, by timestamp. A document that changes later changes no
   result. For the document of a time, there is `asof`.
2. how="inner": a record without a document gives nothing; how="left": it stands beside None.
3. A join that is added to documents that are there is filled first. Records that come meanwhile wait, hold time back, and are told when all documents are
   there: none of them misses one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.core.backfill import ACTIVE, cutover_name
from millstream.core.computation import Computation
from millstream.core.record import Record
from millstream.core.statekind import Codec
from millstream.views.join import INNER


class LookupRow(msgspec.Struct):
    """document: encoded; None: there is none. waiting: timestamp, id and encoded value of records."""

    document: bytes | None = None
    waiting: list[tuple[int, str, bytes]] = []


class Lookup(Computation):
    State = LookupRow
    judges_lateness = True  # a record meets its document, however late

    def __init__(self, name: str, right: str, how: str, codec: Codec) -> None:
        """right: the stream of documents."""
        self.name, self.right, self.how = name, right, how
        self.encode, self.decode = codec.encoder(), codec.decoder(object)

    def process_record(self, record: Record) -> None:
        state = self.state
        if record.stream == self.right:
            _, _, *document = self.decode(record.value)
            state.document = self.encode(document[0]) if document else None
        elif self._is_filling():
            state.waiting.append((record.timestamp, record.id, self.encode(record.value)))
            self.hold(min(record.timestamp, self._visit.held))
        else:
            self._tell(record.value, record.timestamp, record.id)

    def _is_filling(self) -> bool:
        build = self._visit.builds.get(self.name, ACTIVE)
        return build.generation != build.active

    def _tell(self, value: Any, timestamp: int, id: str) -> None:
        document = self.state.document
        if document is not None or self.how != INNER:
            right = None if document is None else self.decode(document)
            self.produce({"left": value, "right": right}, timestamp=timestamp, id=id or None, late=True)

    def finish_key(self) -> None:
        state = self.state
        if state.waiting:
            build = self._visit.builds.get(self.name, ACTIVE)
            if not self._is_filling() or cutover_name(self.name, build.generation) in self._visit.scans:
                for timestamp, id, value in sorted(state.waiting):
                    self._tell(self.decode(value), timestamp, id)
                state.waiting = []
                self.release()
