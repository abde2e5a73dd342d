"""A live server: the data plane over one checkpoint, in a process of its own or in a thread beside a run.

Rules
1. It listens at once, whether or not there is a checkpoint yet. Health says NOT_SERVING for the whole until the first epoch is pinned, and
   SERVING for each table that there is.
2. Beside a run it has a thread and an event loop of its own (`ServerThread`), and touches nothing of the run's but its storage.
3. Whatever ends it, nothing is left behind but copies that the next one uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

from millstream.network import Tls
from millstream.service.grpc_servers import DataPlane
from millstream.service.limits import DATA, Limits
from millstream.service.live.backend import LiveBackend
from millstream.state.storage import Storage


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
