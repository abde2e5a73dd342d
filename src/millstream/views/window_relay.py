"""Windows that change, for whoever derives from them. What a window operator tells is [prev, next, version] under its own key.

Rules
1. A document is a window. Its key is the operator's key and `start`; published rows have it, too. A stream of changes has the operator's key.
2. Where nothing derives from them, changes are handed on by a `WindowRelay`, in the operator's task, and nothing is kept. A view needs to know its documents,
   for repairs and to be filled anew: then a `WindowTable` keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millstream.core.record import Record
from millstream.views.change import Document
from millstream.views.operator import CHANGES, LATEST, Sending, ViewOperator
from millstream.views.table import DocumentRow, DocumentTable, TableRules


def window_identity(record: Record) -> Any:
    """The key of a window's document, where the operator has keys."""
    prev, next, _ = record.value
    start, own = (next or prev)["start"], record.key
    return (*own, start) if isinstance(own, tuple) else (own, start)


def window_start(record: Record) -> Any:
    """The key of a window's document, where all is one group."""
    prev, next, _ = record.value
    return (next or prev)["start"]


def window_document(record: Record) -> tuple[Any, Any, bool]:
    """A window as a table reads it: document, version, and whether it is gone."""
    _, next, version = record.value
    return next, version, next is None


class WindowRelay(ViewOperator):
    State = type(None)

    def __init__(self, sending: Sending, is_one_group: bool) -> None:
        super().__init__(sending)
        self.identity = window_start if is_one_group else window_identity

    def process_record(self, record: Record) -> None:
        prev, next, _ = record.value
        for one in self.sending.shown:
            if one.how == CHANGES:
                self.produce([prev, next], stream=one.stream)
            else:
                self.produce(next if one.how == LATEST else {"prev": prev, "next": next}, stream=one.stream, key=self.identity(record))

    def documents(self, key: Any, state: Any) -> Iterator[tuple[str, list[Document]]]:
        return iter(())


class WindowRow(DocumentRow):
    """A window as its table keeps it. Its version depends on epochs, and says nothing."""

    def essence(self) -> Any:
        return self.body


class WindowTable(DocumentTable):
    State = WindowRow

    def __init__(self, sending: Sending) -> None:
        super().__init__(sending, TableRules(window_document, versioned=True, tombstones=0))
