"""A live server: the data plane over one checkpoint, in a process of its own or in a thread beside a run.

Rules
1. It listens at once, whether or not there is a checkpoint yet. Health says NOT_SERVING for the whole until the first epoch is pinned, and
   SERVING for each table that there is.
2. Beside a run it has a thread and an event loop of its own, and touches nothing of the run's but its storage.
3. Whatever ends it, nothing is left behind but copies that the next one uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
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
        replicas: str | os.PathLike[str] | None = None,
        tls: Tls | None = None,
        cookie: str = "",
        limits: Limits = DATA,
        force: bool = False,
    ) -> None:
        self.live = LiveBackend(checkpoint, storage_options=storage_options, replicas=replicas)
        self._plane = DataPlane(self.live, address, tls=tls, cookie=cookie, limits=limits, force=force)
        self._telling: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return self._plane.address

    async def start(self) -> None:
        """Listens, and begins to follow the checkpoint."""
        await self._plane.start()
        self.live.address = self._plane.address
        await self._plane.say_health("", False)
        await self.live.start()
        self._telling = asyncio.ensure_future(self._tell_health())

    async def stop(self) -> None:
        """Takes no more calls, and lets go of what is pinned."""
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


async def serve_checkpoint(
    checkpoint: str | os.PathLike[str] | Storage,
    address: str = "127.0.0.1:0",
    *,
    ready: Callable[[str], None] | None = None,
    **options: Any,
) -> None:
    """Serves the live state of a checkpoint until it is cancelled. ready: told where it listens. options: as of `LiveServer`.

    >>> async def main():
    ...     serving = asyncio.ensure_future(serve_checkpoint("nowhere", ready=lambda at: (print(at.startswith("127.0.0.1:")), serving.cancel())))
    ...     await asyncio.wait([serving])
    >>> asyncio.run(main())
    True
    """
    server = LiveServer(checkpoint, address, **options)
    await server.start()
    try:
        if ready is not None:
            ready(server.address)
        await asyncio.Event().wait()
    finally:
        await server.stop()


class LiveServerThread:
    """A live server in a thread with an event loop of its own. It listens when this returns; what stands in the way is raised.

    >>> server = LiveServerThread("nowhere", "127.0.0.1:0")
    >>> server.address.startswith("127.0.0.1:")
    True
    >>> server.stop()
    """

    def __init__(self, checkpoint: str | os.PathLike[str] | Storage, address: str, **options: Any) -> None:
        self.address = ""
        self._listens = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, args=(checkpoint, address, options), name="millstream-serving", daemon=True)
        self._thread.start()
        self._listens.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Ends it. Doing it again does nothing."""
        if self._loop is not None and self._serving is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join(10)

    def _run(self, checkpoint: Any, address: str, options: dict[str, Any]) -> None:
        try:
            asyncio.run(self._serve(checkpoint, address, options))
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self._listens.set()

    async def _serve(self, checkpoint: Any, address: str, options: dict[str, Any]) -> None:
        self._loop, self._serving = asyncio.get_running_loop(), asyncio.current_task()
        await serve_checkpoint(checkpoint, address, ready=self._listening, **options)

    def _listening(self, address: str) -> None:
        self.address = address
        self._listens.set()
