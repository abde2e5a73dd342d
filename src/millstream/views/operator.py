"""What tables, views and joins share: who has to hear of a change, and how it is said.

Rules
1. The map of every consumer is run on prev and on next. A group hears of a document if what it gets from it differs; nobody hears of a change that
   changes nothing, unless it is a restatement.
2. A consumer that is being filled hears of rows that the scan has been at, as changes; of those that the scan is at, as what they are now; and not of
   those that it will come to.
3. What goes to one group from one shard in one epoch is one message (`change.py`). For a view without origins it is added up here, before it travels.
4. A map that raises on what is new fails the epoch; or, where its view has dead letters, the document gives nothing to that view until it maps again,
   and a dead letter says so. What a map raises on, it has given nothing of. So a view is always a function of the current rows alone.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from millstream.core.backfill import ACTIVE, Build
from millstream.core.computation import Computation
from millstream.core.keys import key_of
from millstream.core.links import Link, linked
from millstream.core.statekind import Codec
from millstream.core.visit import AHEAD, BEHIND, NOW
from millstream.reducers.base import Reducer
from millstream.views.change import INSERT, REMOVE, RESTATED, UPDATE, Document, added_up, packed, unchanged
from millstream.views.distinct import ReferenceIndex
from millstream.views.mapper import Lift, MapFailed, Pairs, pairs_of, single_of, with_value

CHANGES, CHANGELOG, LATEST = "changes", "changelog", "latest"


class Downstream(msgspec.Struct, frozen=True):
    """A consumer of a sender's changes, and its map."""

    consumer: str
    stream: str  # the way to it
    links: tuple[Link, ...] = ()
    by: Any = ()
    lift: Lift = None
    origins: bool = True
    right: bool = False  # it takes the documents themselves, under their own keys: the right side of a join
    dead_letters: str | None = None

    @property
    def reducer(self) -> Reducer | None:
        """The reducer that adds up what is told; None where every entry counts: with origins, and where values are counted by reference."""
        reducer = None if self.origins else getattr(self.lift, "__self__", None)
        return reducer if isinstance(reducer, Reducer) and not ReferenceIndex(reducer) else None


class Shown(msgspec.Struct, frozen=True):
    """A stream on which a sender tells its own changes."""

    stream: str
    how: str  # CHANGES gives [prev, next], CHANGELOG gives them by name, LATEST gives next


class Sending(msgspec.Struct, frozen=True):
    name: str
    codec: Codec
    downstreams: tuple[Downstream, ...] = ()
    shown: tuple[Shown, ...] = ()


class ViewOperator(Computation):
    """A computation whose rows are documents that others derive from."""

    judges_lateness = True
    folds_ahead = False

    def __init__(self, sending: Sending) -> None:
        self.encode = sending.codec.encoder()
        self.decode = sending.codec.decoder(object)
        self.sending = sending
        self.downstreams = sending.downstreams
        self.pairs = [pairs_of(one.consumer, one.links, one.by, one.lift) for one in sending.downstreams]
        self.singles = [
            None if one.right or one.dead_letters is not None else single_of(one.consumer, one.links, one.by, one.lift)
            for one in sending.downstreams
        ]

    @property
    def origin(self) -> str:
        """The row at hand, as consumers know it."""
        return self._visit.row_key.decode()

    @property
    def is_scanned(self) -> bool:
        return bool(self._visit.scans)

    def send(
        self, origin: str, prev: Sequence[Document], next: Sequence[Document], *, unchanged: bool = False, restated: bool = False
    ) -> None:
        """Tells all consumers that the documents of a row were these and are those. unchanged: they are the same, and only a consumer that is being filled
        hears of them. restated: consumers hear of them in any case, and say them again in turn."""
        is_silent = unchanged and not restated
        for at, downstream in enumerate(self.downstreams):
            before = prev
            place = self._place(downstream.consumer) if downstream.consumer in self._visit.builds else BEHIND
            if place == NOW:
                before = ()
            elif is_silent or place == AHEAD:
                continue
            self.send_to(at, origin, before, next, restated)

    def send_to(self, at: int, origin: str, prev: Sequence[Document], next: Sequence[Document], restated: bool = False) -> None:
        """Tells one consumer."""
        downstream = self.downstreams[at]
        if downstream.right:
            self._hand_over(downstream, prev, next, restated)
        elif len(prev) == 1 == len(next) and self.singles[at] is not None and not restated:
            self._tell_one(at, downstream, origin, prev[0], next[0])
        else:
            self._tell(at, downstream, origin, prev, next, restated)

    def _tell_one(self, at: int, downstream: Downstream, origin: str, prev: Document, next: Document) -> None:
        """What `_tell` does, for the most frequent case: a document that is there before and after, and gives one pair."""
        single = self.singles[at]
        assert single is not None
        try:
            old_text, old = single(prev)
        except MapFailed:
            self._tell(at, downstream, origin, [prev], [next], False)
            return
        text, new = single(next)
        encode, later = self.encode, self.later
        if text == old_text and unchanged(old, new, encode):
            return
        if text == old_text:
            entry: list[Any] = [origin, UPDATE, [new]] if downstream.origins else [[old], [new]]
        else:
            entry = [origin, INSERT, [new]] if downstream.origins else [None, [new]]
            later((at, old_text), encode([origin, REMOVE, None] if downstream.origins else [[old], None]))
        try:
            later((at, text), encode(entry))
        except Exception as error:
            raise _unencodable(downstream, next, error) from error

    def _tell(
        self, at: int, downstream: Downstream, origin: str, prev: Sequence[Document], next: Sequence[Document], restated: bool
    ) -> None:
        origins, encode, later = downstream.origins, self.encode, self.later
        was = self._mapped(at, prev, False) if prev else {}
        now = self._mapped(at, next, True) if next else {}
        again = RESTATED if restated else 0
        for text, parts in now.items():
            old = was.pop(text, None)
            if old is None or (restated and origins) or not unchanged(old, parts, encode):
                entry = [origin, (INSERT if old is None else UPDATE) | again, parts] if origins else [old, parts]
                try:
                    later((at, text), encode(entry))
                except Exception as error:
                    raise _unencodable(downstream, next[0], error) from error
        for text, old in was.items():
            later((at, text), encode([origin, REMOVE | again, None] if origins else [old, None]))

    def retract(self, origin: str, documents: Sequence[Document]) -> None:
        """Takes the contribution of an origin out of every group that some documents would have given to; for repairs."""
        for at, downstream in enumerate(self.downstreams):
            if downstream.origins and not downstream.right:
                for text in self._mapped(at, documents, False):
                    self.later((at, text), self.encode([origin, REMOVE | RESTATED, None]))

    def _mapped(self, at: int, documents: Sequence[Document], is_new: bool) -> Pairs:
        """Rule 4."""
        try:
            return self.pairs[at](documents)
        except MapFailed as error:
            downstream = self.downstreams[at]
            if is_new and downstream.dead_letters is None:
                raise
            if is_new:
                self._letter(downstream, documents[0], error)
            return {}

    def _letter(self, downstream: Downstream, document: Document, error: MapFailed) -> None:
        self.tally(f"dead in {downstream.consumer}")
        trace = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ is not None else ""
        record = {"stream": f"{self.sending.name}.changes", "value": document.value, "timestamp": self._visit.caused(), "id": None}
        letter = {**record, "computation": downstream.consumer, "error": error.why, "traceback": trace}
        self.produce(letter, stream=downstream.dead_letters)

    def _hand_over(self, downstream: Downstream, prev: Sequence[Document], next: Sequence[Document], restated: bool) -> None:
        """To the right side of a join: the document under its own key."""
        was, now = ([d.value for d in self.rights(downstream, documents)] for documents in (prev, next))
        if was != now or restated:
            body = self.encode([self.build(downstream.consumer).generation, RESTATED if restated else 0, *now[:1]])
            self.produce(body, stream=downstream.stream)

    def rights(self, downstream: Downstream, documents: Sequence[Document]) -> Sequence[Document]:
        """The documents of a row as the right side of a join gets them."""
        if not downstream.links:
            return documents
        try:
            return [d for document in documents for d in linked(downstream.links, with_value)(document)]
        except Exception as error:
            raise MapFailed(downstream.consumer, documents[0].key, f"{type(error).__name__}: {error}") from error

    def show(self, prev: Any, next: Any) -> None:
        """Tells the change of the row at hand to whoever reads this table or view as a stream. None: there was, or is, no such row."""
        for one in self.sending.shown:
            value = next if one.how == LATEST else [prev, next] if one.how == CHANGES else {"prev": prev, "next": next}
            self.produce(value, stream=one.stream)

    def finish_epoch(self, gathered: Sequence[tuple[Any, Any, int]]) -> None:
        bundles: dict[Any, list[bytes]] = {}
        newest: dict[Any, int] = {}
        for name, entry, timestamp in gathered:
            bundle = bundles.get(name)
            if bundle is None:
                bundles[name] = [entry]
                newest[name] = timestamp
            else:
                bundle.append(entry)
                if timestamp > newest[name]:
                    newest[name] = timestamp
        least = self.output_watermark
        generations = [self.build(downstream.consumer).generation for downstream in self.downstreams]
        reducers = [downstream.reducer for downstream in self.downstreams]
        for (at, text), bundle in bundles.items():
            timestamp, reducer = max(least, newest[at, text]), reducers[at]
            entries = bundle if reducer is None else added_up(reducer, bundle, self.encode, self.decode)
            self.produce(packed(generations[at], entries), key=key_of(text), timestamp=timestamp, stream=self.downstreams[at].stream)
        self.tally("messages", len(bundles))

    def documents(self, key: Any, state: Any) -> Iterator[tuple[str, list[Document]]]:
        """By origin, the documents of a row; for whoever reads rows."""
        raise NotImplementedError

    # --- what the epoch says of consumers that are being filled

    def build(self, computation: str) -> Build:
        """What this epoch says of a consumer, or of this computation itself."""
        return self._visit.builds.get(computation, ACTIVE)

    def _place(self, consumer: str) -> str:
        """Where the scan that fills a consumer is, seen from the row at hand."""
        build = self._visit.builds[consumer]
        if build.waiting or build.scan not in self._visit.scans:
            return AHEAD if build.waiting else BEHIND
        place = self._visit.scanned(build.scan)
        return place if place != AHEAD or self._visit.guards.cursor else BEHIND


def _unencodable(downstream: Downstream, document: Document, error: Exception) -> MapFailed:
    return MapFailed(downstream.consumer, document.key, f"what it gives cannot be encoded: {error}")
