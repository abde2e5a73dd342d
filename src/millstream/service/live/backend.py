"""The live state of a pipeline behind the data plane, over one checkpoint; and its server, in a process of its own or in a thread beside a run.

Rules
1. A table is a computation: its name, or `pipeline/computation`. Live state is read only.
2. Every answer is of one epoch, over all keys and shards, and says which: `epoch` (and `lsn`), the computation's low watermark in it, and its age.
3. The age of an answer is the time since its epoch was last known to be the newest committed one. So while nothing is committed, because the
   driver is idle, is restarted or is gone, the newest epoch stays young: nothing newer exists. It grows when the checkpoint cannot be read, or is damaged, or
   this server falls behind. When an epoch was committed, by its driver's clock, says the part "epochs" of a scan.
4. LINEARIZABLE looks for a newer epoch first. SESSION waits for `seen`. BOUNDED takes what is here, and if that is too old, looks; what is still too
   old is `Stale`. AS_OF takes a pinned epoch, or says which there are.
5. `complete_to` waits until the computation's low watermark is there, and never answers early. The caller sets the deadline.
6. The newest good epoch is served while the checkpoint is away or damaged; only who must be sure is told.
7. A server listens at once, whether or not there is a checkpoint yet. Health says NOT_SERVING for the whole until the first epoch is pinned, and SERVING for
   each table that there is. Beside a run it has a thread and an event loop of its own (`ServerThread`), and touches nothing of the run's but its storage.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from itertools import islice
from typing import Any, NoReturn

import msgspec

from millstream.errors import MillstreamError, NotReady, RefusedRequest, Stale, TooLarge
from millstream.network import Tls
from millstream.service.grpc_servers import DataPlane
from millstream.service.limits import DATA, LARGEST, Limits, columns, pages, while_pinned
from millstream.service.live import row_formats
from millstream.service.live.epochs import KEEP, PATIENCE, PinnedEpoch, PinnedEpochs
from millstream.service.live.history import LIMIT, ChangeHistory
from millstream.service.live.tailer import ManifestTailer, TailerThread, as_service_error
from millstream.service.live.watch import Watch, version_of
from millstream.service.proto import service_pb2 as pb
from millstream.service.range_map import LIVE
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import Storage, open_storage

_WHOLE = 1  # the number of the one partition that a table of live state is, and its term
_UINT32 = 2**32 - 1


class LiveBackend:
    """The live state of a checkpoint. checkpoint: a folder, a URL, or a storage. cache_folder: a folder for the copies that answer.

    keep: how many epochs are pinned. buffer: bytes of changes that are kept for those who watch.

    >>> LiveBackend("nowhere").tables()
    []
    """

    def __init__(
        self,
        checkpoint: str | os.PathLike[str] | Storage,
        *,
        storage_options: dict[str, Any] | None = None,
        cache_folder: str | os.PathLike[str] | None = None,
        keep: int = KEEP,
        buffer: int = LIMIT,
    ) -> None:
        storage = open_storage(checkpoint, storage_options) if isinstance(checkpoint, (str, os.PathLike)) else checkpoint
        self.address = ""  # where clients reach it, once it is served
        self.log = ManifestLog(storage)
        self.epochs = PinnedEpochs(None if cache_folder is None else os.fspath(cache_folder), keep=keep)
        self.history = ChangeHistory(buffer)
        self.tailer_thread = TailerThread(ManifestTailer(self.log, self.epochs, self.history))

    async def start(self) -> None:
        self.tailer_thread.start()

    async def close(self) -> None:
        await self.tailer_thread.stop()

    # --- what is asked

    def tables(self) -> list[str]:
        newest = self.epochs.newest
        return [] if newest is None else [name for name, state in sorted(newest.manifest.computations.items()) if not state.hidden]

    async def get(self, request: pb.GetRequest) -> pb.GetReply:
        as_json = request.header.form == pb.JSON
        with await self.snapshot(request.header) as snapshot:
            name = self.computation(snapshot, request.header.table)
            if as_json or snapshot.computation(name).keeps_columns:
                found = await asyncio.to_thread(lambda: [row_formats.lookup(snapshot, name, key, as_json) for key in request.keys])
            else:
                found = [row_formats.read_row(snapshot, name, key) for key in request.keys]
            size = sum(len(value) for value in found if value is not None)
            if size > LARGEST:
                has = f"the values of these {len(found)} keys have {size:,} bytes"
                raise TooLarge(f"{has}, and an answer at most {LARGEST:,}. Ask for fewer, or scan.")
            version = version_of(snapshot.epoch)
            versions = [0 if value is None else version for value in found]
            return pb.GetReply(at=self.position(snapshot, name), values=[value or b"" for value in found], versions=versions)

    async def scan(self, request: pb.ScanRequest) -> AsyncIterator[pb.ScanReply]:
        as_json = request.header.form == pb.JSON
        if request.part == "epochs":
            yield self._pinned()
            return
        with await self.snapshot(request.header) as snapshot, while_pinned(PATIENCE):
            name = self.computation(snapshot, request.header.table)
            at, version = self.position(snapshot, name), version_of(snapshot.epoch)
            if request.keys_only and not snapshot.computation(name).kind:
                as_json = False  # only a relation shows fewer rows than it keeps
            found = row_formats.scan_part(snapshot, name, request.part, request.start, request.end, request.prefix, as_json)
            rows = ((key, value, version) for key, value in islice(found, request.limit or None))
            async for page in pages(rows, in_thread=as_json or snapshot.computation(name).keeps_columns):
                yield pb.ScanReply(at=at, **columns(page, request.keys_only))

    def watch(self, request: pb.WatchRequest) -> AsyncIterator[pb.WatchReply]:
        return Watch(self, request).replies()

    async def upsert(self, request: Any) -> NoReturn:
        raise RefusedRequest(f"{request.header.table!r}: the live state of a pipeline is read only. Send records to the pipeline instead.")

    remove = call = decide = upsert

    async def route(self, request: pb.RouteRequest) -> pb.PartitionList:
        """A table of live state is one partition, wherever it is asked."""
        with self._newest() as snapshot:
            self.computation(snapshot, request.table)
            one = pb.Partition(id=_WHOLE, table=request.table, term=_WHOLE, primary=self.address, state="serving", point=LIVE)
            one.lsn = snapshot.epoch
        return pb.PartitionList(partitions=[one], version=1)

    # --- which epoch answers

    async def snapshot(self, header: pb.Header) -> PinnedEpoch:
        if header.HasField("as_of") or header.level == pb.AS_OF:
            found = await self._as_of(header)
        else:
            if header.level == pb.LINEARIZABLE:
                await self.tailer_thread.catch_up()
            elif header.level == pb.SESSION:
                await self._seen(header.seen)
            elif header.level == pb.BOUNDED:
                await self._young(header.max_age_ms)
            found = self._newest()
        if not header.HasField("complete_to"):
            return found
        return await self._complete(found, header)

    def computation(self, snapshot: PinnedEpoch, table: str) -> str:
        if table in snapshot.manifest.computations:
            return table
        pipeline, slash, name = table.partition("/")
        if slash and pipeline == self.tailer_thread.tailer.pipeline and name in snapshot.manifest.computations:
            return name
        known, ours = ", ".join(self.tables()) or "none", self.tailer_thread.tailer.pipeline
        raise RefusedRequest(f"pipeline {ours!r} has no computation called {table!r} in epoch {snapshot.epoch}. It has: {known}.")

    def position(self, snapshot: PinnedEpoch, name: str, epoch: int | None = None, low_watermark: int | None = None) -> pb.Position:
        """Rules 2 and 3."""
        number = snapshot.epoch if epoch is None else epoch
        low = snapshot.computation(name).low_watermark if low_watermark is None else low_watermark
        return pb.Position(
            partition=_WHOLE, term=_WHOLE, lsn=number, epoch=number, low_watermark=low, age_ms=min(_UINT32, snapshot.age_ms())
        )

    def _newest(self) -> PinnedEpoch:
        found = self.epochs.take()
        if found is None:
            trouble = self.tailer_thread.trouble
            raise NotReady(f"{self.log.storage.url} is being read for the first time.") if trouble is None else as_service_error(trouble)
        return found

    async def _as_of(self, header: pb.Header) -> PinnedEpoch:
        if not header.HasField("as_of"):
            raise RefusedRequest("the level AS_OF needs an epoch: set as_of")
        newest = self.epochs.newest
        if newest is None or newest.epoch < header.as_of:
            await self.tailer_thread.catch_up()
        found = self.epochs.take(header.as_of)
        if found is None:
            pinned = ", ".join(map(str, self.epochs.pinned))
            raise Stale(f"epoch {header.as_of} is not pinned here. Pinned are the epochs {pinned}.")
        return found

    async def _seen(self, epoch: int) -> None:
        while max(self.epochs.pinned, default=-1) < epoch:
            await self.tailer_thread.catch_up()
            if max(self.epochs.pinned, default=-1) < epoch:
                await self.tailer_thread.changed()

    async def _young(self, wanted: int) -> None:
        newest = self.epochs.newest
        if newest is None or newest.age_ms() > wanted:
            with contextlib.suppress(MillstreamError):
                await self.tailer_thread.catch_up()
            newest = self.epochs.newest
            if newest is not None and (age := newest.age_ms()) > wanted:
                why = f" {self.tailer_thread.trouble}" if self.tailer_thread.trouble is not None else ""
                raise Stale(f"epoch {newest.epoch} was last known to be the newest {age:,} ms ago, and at most {wanted:,} are wanted.{why}")

    async def _complete(self, found: PinnedEpoch, header: pb.Header) -> PinnedEpoch:
        """Rule 5."""
        while True:
            try:
                low = found.computation(self.computation(found, header.table)).low_watermark
            except BaseException:
                found.close()
                raise
            if low >= header.complete_to:
                return found
            epoch, wanted = found.epoch, header.complete_to
            found.close()
            if header.HasField("as_of"):
                raise Stale(f"epoch {epoch} is complete to {low} only, and {wanted} is wanted. It will not change: ask without as_of.")
            newest = self.epochs.newest
            if newest is None or newest.epoch == epoch:
                if self.tailer_thread.trouble is not None:
                    raise as_service_error(self.tailer_thread.trouble)
                await self.tailer_thread.changed()
            found = self._newest()

    def _pinned(self) -> pb.ScanReply:
        """The pinned epochs: when each was committed, by its driver's clock, and how far event time was."""
        keys, values = [], []
        for epoch in self.epochs.pinned:
            pin = self.epochs.take(epoch)
            if pin is not None:
                with pin:
                    low = {name: state.low_watermark for name, state in pin.manifest.computations.items() if not state.hidden}
                    said = {"epoch": epoch, "now": pin.manifest.now, "run": pin.manifest.token, "low_watermarks": low}
                keys.append(str(epoch).encode())
                values.append(msgspec.json.encode(said))
        newest = self.epochs.newest
        at = pb.Position() if newest is None else pb.Position(lsn=newest.epoch, epoch=newest.epoch)
        return pb.ScanReply(at=at, keys=keys, values=values)


class LiveServer:
    """Serves the live state of a checkpoint. `address` is where it listens, once it is started."""

    def __init__(
        self,
        checkpoint: str | os.PathLike[str] | Storage,
        address: str = "127.0.0.1:0",
        *,
        storage_options: dict[str, Any] | None = None,
        cache_folder: str | os.PathLike[str] | None = None,
        tls: Tls | None = None,
        cookie: str = "",
        limits: Limits = DATA,
        force: bool = False,
    ) -> None:
        self.live = LiveBackend(checkpoint, storage_options=storage_options, cache_folder=cache_folder)
        self._plane = DataPlane(self.live, address, tls=tls, cookie=cookie, limits=limits, force=force)
        self._telling: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return self._plane.address

    async def start(self) -> None:
        await self._plane.start()
        self.live.address = self._plane.address
        await self._plane.say_health("", False)
        await self.live.start()
        self._telling = asyncio.ensure_future(self._tell_health())

    async def stop(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._telling
        await self._plane.stop()
        await self.live.close()

    async def _tell_health(self) -> None:
        told: set[str] = set()
        while True:
            tables = set(self.live.tables())
            if self.live.epochs.newest is not None:
                tables.add("")
            for name in tables ^ told:
                await self._plane.say_health(name, name in tables)
            told = tables
            await self.live.tailer_thread.changed()
