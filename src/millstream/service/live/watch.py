"""Watching live state: what is there, then what every epoch changes, then a mark that says how far event time is.

Rules
1. First a snapshot, unless the watcher says which epoch it knows (`after`). Then per epoch the rows that it changed, and a mark with the epoch and the
   computation's low watermark. A row that is gone has version 0; any other has the epoch's number (and 1 in epoch 0).
2. A watcher that applies a snapshot and what follows has at each mark exactly the rows of that epoch. Epochs that were merged (compacted, or passed without a
   watcher) come as one, with the first of them.
3. A watcher takes what it is sent at its own pace, out of one buffer for all (`history.py`). One whose next epoch has left the buffer meanwhile is too
   slow: the stream ends with `Stale`, which names the epoch to go on after.
4. A watcher that comes back is given what the buffer has, else what the log has, else (also where an epoch changed too much) a reset and a snapshot.
5. A computation that begins anew under its name, or a checkpoint that was restored, is a reset. One that is gone ends the stream.
6. A window operator cannot be watched.
7. As JSON rows are shown as of the newest epoch, so epochs that came meanwhile are merged; rows whose MapStates changed are among them; and a view that
   shows another generation is a reset. A join cannot be watched as JSON: it shows rows by keys that it does not keep them by.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from millstream.core.keyspace import after
from millstream.errors import DamageError, RefusedRequest, Stale
from millstream.service.limits import columns, pages, while_pinned
from millstream.service.live import row_formats
from millstream.service.live.epochs import PATIENCE, PinnedEpoch
from millstream.service.live.history import ChangeSet, Wanted, read_changes
from millstream.service.proto import service_pb2 as pb
from millstream.views.dsl import JOIN

if TYPE_CHECKING:
    from millstream.service.live.backend import LiveBackend


class Watch:
    def __init__(self, live: LiveBackend, request: pb.WatchRequest) -> None:
        self._live = live
        self._header = request.header
        self._after = request.after if request.HasField("after") else None
        self._wanted = Wanted(tuple(sorted(set(request.keys))), request.prefix)
        self._as_json = request.header.form == pb.JSON
        self._name = ""
        self._origin: tuple[object, ...] = ()  # what must stay for changes to make sense: history, lineage, generation of a view
        self._lineage = ""
        self._last = -1

    async def replies(self) -> AsyncIterator[pb.WatchReply]:
        first = self._after is not None
        try:
            with await self._live.snapshot(self._header) as snapshot, while_pinned(PATIENCE):
                self._name = self._live.computation(snapshot, self._header.table)
                if self._as_json and snapshot.computation(self._name).kind == JOIN:
                    raise RefusedRequest(
                        f"{self._name!r} is a join: watch it in the form BYTES, or publish its changes. It shows rows by other keys than it keeps."
                    )
                if snapshot.computation(self._name).keeps_columns:
                    what = (
                        "a window operator, and what it has open"
                        if snapshot.computation(self._name).window
                        else "a join, and what waits in it"
                    )
                    raise RefusedRequest(
                        f"{self._name!r} is {what} cannot be watched: an epoch changes entries of many keys. Scan it, or publish its results."
                    )
                self._begin(snapshot)
                if self._after is not None and self._after > snapshot.epoch:
                    await self._live.tailer_thread.catch_up()
                if self._after is None:
                    async for reply in self._snapshot(snapshot):
                        yield reply
                else:
                    self._last = self._after
                    if not self._is_same_as_then(self._after, snapshot):
                        self._origin = ()
            while True:
                newest = self._live.epochs.take()
                waits = newest is None
                if newest is not None:
                    with newest, while_pinned(PATIENCE):
                        waits = newest.epoch == self._last and self._origin == self._origin_in(newest)
                        if not waits:
                            async for reply in self._go_on(newest, first):
                                yield reply
                        first = False
                if waits:
                    await self._live.tailer_thread.changed()
        finally:
            self._stop()

    def _begin(self, snapshot: PinnedEpoch) -> None:
        self._stop()
        self._origin = self._origin_in(snapshot)
        self._lineage = str(self._origin[1])
        self._live.history.begin(self._lineage)

    def _stop(self) -> None:
        if self._lineage:
            self._live.history.end(self._lineage)
            self._lineage = ""

    def _origin_in(self, snapshot: PinnedEpoch) -> tuple[object, ...]:
        state = snapshot.manifest.computations.get(self._name)
        if state is None:
            known = ", ".join(snapshot.computations) or "none"
            raise RefusedRequest(f"computation {self._name!r} is gone since epoch {snapshot.epoch}. There are: {known}.")
        build = snapshot.manifest.builds.get(self._name) if self._as_json else None
        return snapshot.generation, state.lineage or self._name, None if build is None else build.active

    def _is_same_as_then(self, epoch: int, snapshot: PinnedEpoch) -> bool:
        """Whether changes lead from what a watcher knows to what is here: told by that epoch if it is pinned, else by where the state began."""
        then = self._live.epochs.take(epoch)
        if then is not None:
            with then:
                return self._name in then.manifest.computations and self._origin_in(then) == self._origin
        began = self._lineage.partition("-")[0]
        is_rebuilt = self._as_json and self._name in snapshot.manifest.builds  # it may have been switched since
        return not is_rebuilt and (not began.isdigit() or int(began) <= epoch)

    async def _go_on(self, snapshot: PinnedEpoch, is_back: bool) -> AsyncIterator[pb.WatchReply]:
        history, last, is_same = self._live.history, self._last, self._origin == self._origin_in(snapshot)
        found = history.since(self._lineage, last, snapshot.epoch) if is_same else None
        if found is None and is_same and last <= snapshot.epoch:
            if not is_back and history.has_dropped(self._lineage, last) and last < max(self._live.epochs.pinned[:-1], default=-1):
                raise Stale(
                    f"this watcher is too slow: what came after epoch {last} is no longer kept for it. Watch again, with after={last}."
                )
            found = await self._from_log(snapshot)
        if found is None:
            self._begin(snapshot)
            yield pb.WatchReply(kind=pb.WatchReply.RESET, at=self._live.position(snapshot, self._name))
            async for reply in self._snapshot(snapshot):
                yield reply
            return
        for one in [self._merged(found, snapshot)] if self._as_json else found:
            async for reply in self._changes(one, snapshot):
                yield reply
            at = self._live.position(snapshot, self._name, epoch=one.last, low_watermark=one.low_watermark)
            yield pb.WatchReply(kind=pb.WatchReply.MARK, at=at, first=one.first)
            self._last = one.last

    async def _from_log(self, snapshot: PinnedEpoch) -> list[ChangeSet] | None:
        try:
            storage, limit = self._live.log.storage, self._live.history.limit
            found = await asyncio.to_thread(read_changes, storage, self._name, snapshot.manifest, self._last, limit)
        except DamageError:
            return None  # collected meanwhile: what is pinned is here
        return None if found is None else [found]

    def _merged(self, sets: list[ChangeSet], snapshot: PinnedEpoch) -> ChangeSet:
        """Several change sets as one, whose rows are read when they are shown."""
        keys = sorted(set().union(*(one.shown(self._wanted) for one in sets)))
        low = snapshot.computation(self._name).low_watermark
        return ChangeSet(sets[0].after, min(one.first for one in sets), snapshot.epoch, low, keys, [None] * len(keys), [], 0)

    async def _changes(self, one: ChangeSet, snapshot: PinnedEpoch) -> AsyncIterator[pb.WatchReply]:
        found: Iterator[tuple[bytes, bytes | None]] = ((one.keys[at], one.values[at]) for at in self._wanted.places(one.keys))
        if self._as_json:
            found = ((key, row_formats.lookup(snapshot, self._name, key, True)) for key in one.keys)
        version = version_of(one.last)
        rows = ((key, b"", 0) if value is None else (key, value, version) for key, value in found)
        at = self._live.position(snapshot, self._name, epoch=one.last, low_watermark=one.low_watermark)
        async for page in pages(rows, in_thread=self._as_json):
            if page:
                yield pb.WatchReply(kind=pb.WatchReply.CHANGES, at=at, first=one.first, **columns(page))

    async def _snapshot(self, snapshot: PinnedEpoch) -> AsyncIterator[pb.WatchReply]:
        at, prefix, version = self._live.position(snapshot, self._name), self._wanted.prefix, version_of(snapshot.epoch)
        found: Iterator[tuple[bytes, bytes | None]]
        if self._wanted.keys:
            found = ((key, row_formats.lookup(snapshot, self._name, key, self._as_json)) for key in self._wanted.keys)
        else:
            found = row_formats.rows(snapshot, self._name, prefix, after(prefix) if prefix else None, self._as_json)
        rows = ((key, value, version) for key, value in found if value is not None)
        async for page in pages(rows, in_thread=self._as_json):
            yield pb.WatchReply(kind=pb.WatchReply.SNAPSHOT, at=at, **columns(page))
        self._last = snapshot.epoch
        yield pb.WatchReply(kind=pb.WatchReply.MARK, at=at, first=snapshot.epoch)


def version_of(epoch: int) -> int:
    """The version of a row as of an epoch: its number. 0 says that it is not there, so in epoch 0 it is 1."""
    return max(epoch, 1)
