"""Following a checkpoint: looks for the next epoch, applies it, pins it, and says so.

Rules
1. A look at a folder costs microseconds: is there a manifest behind the newest one that is known, and has the folder changed? A listing decides when that
   does not: at the start, when the folder has changed, when a store has no folders to look at, and once in a while.
2. That the next manifest is absent proves nothing by itself: far enough behind, it has been collected. It does where the folder has not changed since the
   listing that found the newest. (In one tick of its clock, 10 ms at most, no checkpoint commits and collects more than `KEEP` epochs.) Elsewhere
   it is believed between two listings, and never for a caller that must be sure.
3. Epochs are applied one by one, as long as it is not far behind; then it goes to the newest at once. One that was collected meanwhile is left out.
4. What an older manifest names may be collected at any time. That is never damage. Damage is said, with the object, only if the newest manifest
   names it; then the last good epoch stays, and it is tried again.
5. A manifest that is not of the history that is known (the checkpoint was restored, or made anew) begins a new generation.
6. Applying is done in a thread of its own, never on the event loop. Nothing is written to the checkpoint.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from millstream.errors import CheckpointError, DamageError, MillstreamError, NotReady
from millstream.service.live.epochs import KEEP, PinnedEpochs
from millstream.service.live.history import ChangeHistory, ChangeSet, read_changes
from millstream.state.gc import named_by
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog, manifest_name
from millstream.state.memory_storage import MemoryStorage
from millstream.state.storage import LocalStorage, Storage

NEAR_PAUSE = 0.02  # seconds between two looks at a folder
FAR_PAUSE = 0.2  # and at an object store
_LIST_EVERY = 1.0
_LIST_FAR_EVERY = 10.0
_AFTER_TROUBLE = 0.5
_TRIES = 20


class ReadOnceStorage:
    """A storage of which each part is read once, as far as there is room: what is told of an epoch is applied too. room: bytes."""

    def __init__(self, storage: Storage, room: int) -> None:
        self._storage = storage
        self._room = room
        self._read: dict[tuple[str, int, int | None], bytes] = {}
        self.url = storage.url

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        found = self._read.get((name, offset, length))
        if found is None:
            found = self._storage.read(name, offset, length)
            if len(found) <= self._room:
                self._room -= len(found)
                self._read[name, offset, length] = found
        return found


class ManifestTailer:
    """Brings `epochs` and `history` up to the newest committed epoch. All methods but `is_newest` are for one thread."""

    def __init__(self, log: ManifestLog, epochs: PinnedEpochs, history: ChangeHistory, clock: Callable[[], float] = time.monotonic) -> None:
        self.log = log
        self.epochs = epochs
        self.history = history
        self._clock = clock
        storage = log.storage
        self._folder = os.path.join(storage.root, "manifests") if isinstance(storage, LocalStorage) else None
        self.is_near = self._folder is not None or isinstance(storage, MemoryStorage)
        self._listed = self._begun = float("-inf")
        self._proof: tuple[int, int, str] | None = None  # the newest epoch, when its folder changed last, where the next manifest would be
        self.pipeline = ""
        self.applied = 0

    def is_newest(self) -> bool:
        """Whether it is certain, at no cost to speak of, that no epoch is newer than the newest pinned one. For any thread."""
        proof, newest = self._proof, self.epochs.newest
        if proof is None or newest is None or newest.epoch != proof[0]:
            return False
        try:
            return os.stat(self._folder or "").st_mtime_ns == proof[1] and not os.path.exists(proof[2])
        except OSError:
            return False

    def poll(self, sure: bool = False) -> bool:
        """Applies what is new, if anything is. sure: what was committed before this call is applied when it returns.

        Raises what stands in the way; what is pinned stays.
        """
        begun = self._begun = self._clock()
        known = self.epochs.newest
        if known is not None:
            due = sure or begun - self._listed >= (_LIST_EVERY if self.is_near else _LIST_FAR_EVERY)
            if self.is_newest() or not (due or self._folder is not None or self.log.exists(known.epoch + 1)):
                self.epochs.confirm(known.epoch, begun)
                self.epochs.trim()
                return False
        return self._catch_up(begun)

    def _catch_up(self, begun: float) -> bool:
        generation, before = self.epochs.generation, self.epochs.newest
        changed = self._changed()
        newest = self._newest()
        self._listed = begun
        for left in reversed(range(_TRIES)):
            try:
                self._go_to(newest)
                break
            except DamageError as error:
                again = self._newest()
                if not left or (again == newest and (error.object is None or error.object in named_by(self.log.read(newest)))):
                    raise
                newest = again
        if changed is not None:
            self._proof = (newest, changed, os.path.join(self.log.storage.url, manifest_name(newest + 1)))
        self.epochs.confirm(newest, begun)
        self.epochs.trim()
        return before is None or before.epoch != newest or self.epochs.generation != generation

    def _changed(self) -> int | None:
        try:
            return None if self._folder is None else os.stat(self._folder).st_mtime_ns
        except OSError:
            return None

    def _newest(self) -> int:
        found: int | None = None
        if self._folder is not None:
            try:
                found = max((int(name[:-5]) for name in os.listdir(self._folder) if name[:-5].isdigit()), default=None)
            except (FileNotFoundError, NotADirectoryError):
                pass
        else:
            found = max(self.log.epochs(), default=None)
        if found is None:
            self.log.identity()
            raise CheckpointError(f"{self.log.storage.url} has no committed epoch yet.")
        return found

    def _go_to(self, newest: int) -> None:
        known = self.epochs.newest
        if known is not None and newest < known.epoch:
            self._start_over()
            known = None
        elif known is not None and newest == known.epoch:
            return
        steps = range(known.epoch + 1, newest) if known is not None and newest - known.epoch <= KEEP else range(0)
        for epoch in steps:  # rule 3
            try:
                self._take(self.log.read(epoch))
            except DamageError:
                break  # the newest decides whether it was one
        self._take(self.log.read(newest))

    def _take(self, manifest: Manifest) -> None:
        known = self.epochs.newest
        if known is not None and manifest.token_at(known.epoch) != known.manifest.token_at(known.epoch):
            self._start_over()
            known = None
        if known is None:
            identity = self.log.identity()
            self.pipeline = identity.pipeline
            self.epochs.open(identity.id)
        watched = self.history.watched if known is not None else frozenset()
        storage: Storage = ReadOnceStorage(self.log.storage, self.history.limit) if watched else self.log.storage  # type: ignore[assignment]
        told: list[tuple[str, ChangeSet]] = []
        for name, state in manifest.computations.items():
            lineage = state.lineage or name
            if lineage in watched and known is not None:
                changes = read_changes(storage, name, manifest, known.epoch, self.history.limit)
                if changes is not None:
                    told.append((lineage, changes))
        pin = self.epochs.prepare(storage, manifest)
        for lineage, changes in told:
            self.history.add(lineage, changes)
        self.epochs.publish(pin, self._begun if known is None else known.confirmed)
        self.applied += 1

    def _start_over(self) -> None:
        self.epochs.start_over()
        self.history.start_over()
        self._proof = None


class TailerThread:
    """A tailer for an event loop, which looks in a thread of its own. trouble: what the last look ran into."""

    def __init__(self, tailer: ManifestTailer) -> None:
        self.tailer = tailer
        self.trouble: Exception | None = None
        self._pause = NEAR_PAUSE if tailer.is_near else FAR_PAUSE
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="millstream-live")
        self._asked = asyncio.Event()
        self._wanted: list[asyncio.Future[None]] = []
        self._looking: asyncio.Task[None] | None = None
        self._moved: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Begins to look. Called on the event loop that will ask."""
        self._moved = asyncio.get_running_loop().create_future()
        self._looking = asyncio.ensure_future(self._look())

    async def catch_up(self) -> None:
        """Returns when every epoch that was committed before this call is pinned. Raises what stands in the way."""
        epochs, now = self.tailer.epochs, time.monotonic()
        if self.tailer.is_newest() and (newest := epochs.newest) is not None:
            epochs.confirm(newest.epoch, now)
            return
        if self._looking is None:
            raise NotReady("the server ends")
        looked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wanted.append(looked)
        self._asked.set()
        await looked
        if self.trouble is not None:
            raise as_service_error(self.trouble)

    async def changed(self) -> None:
        """Returns when something new is pinned, or something has come into the way."""
        assert self._moved is not None
        await asyncio.shield(self._moved)

    async def stop(self) -> None:
        if self._looking is not None:
            looking, self._looking = self._looking, None
            looking.cancel()
            await asyncio.wait([looking])
            self._tell(self._wanted, NotReady("the server ends"), True)
            await asyncio.get_running_loop().run_in_executor(self._pool, self.tailer.epochs.close)
        self._pool.shutdown(wait=False)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            pause = loop.call_later(self._pause if self.trouble is None else _AFTER_TROUBLE, self._asked.set)
            await self._asked.wait()
            pause.cancel()
            self._asked.clear()
            trouble, moved = None, False
            sure = len(self._wanted)
            try:
                moved = await loop.run_in_executor(self._pool, self.tailer.poll, sure > 0)
            except Exception as error:  # whatever it is, what is pinned is served on, and callers that must be sure are told
                trouble = error
            wanted, self._wanted = self._wanted[:sure], self._wanted[sure:]
            is_news = trouble is not None and (bool(wanted) or str(trouble) != str(self.trouble))
            self._tell(wanted, trouble, moved or is_news)

    def _tell(self, wanted: list[asyncio.Future[None]], trouble: Exception | None, moved: bool) -> None:
        self.trouble = trouble
        for looked in wanted:
            if not looked.done():
                looked.set_result(None)
        if moved and self._moved is not None:
            self._moved.set_result(None)
            self._moved = self._moved.get_loop().create_future()


def as_service_error(trouble: Exception) -> MillstreamError:
    """What a caller is told: damage as it is, and anything else as an error that may pass."""
    if isinstance(trouble, DamageError):
        return trouble
    return NotReady(str(trouble) if isinstance(trouble, MillstreamError) else repr(trouble))
