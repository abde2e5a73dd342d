"""A node: a process that serves partitions of tables, on two planes.

    node = Node([history], name="n1", folder="n1-data", data="127.0.0.1:7400")
    await node.start()

Rules
1. The folder belongs to one process.
2. One event loop serves all partitions; one task looks after them. A partition has none of its own.
3. `manager.py` has the partitions, `table_backend.py` answers the calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from millstream.errors import DefinitionError, MillstreamError
from millstream.network import Tls
from millstream.service.blocking import ServerThread
from millstream.service.grpc_servers import ControlPlane, DataPlane
from millstream.service.limits import CONTROL, DATA, Limits
from millstream.service.logs.wal import lock_node_folder
from millstream.service.manager import Manager
from millstream.service.partition import SERVING
from millstream.service.registry import Registry
from millstream.service.snapshotting import SnapshotPlaces
from millstream.service.table import Table
from millstream.service.table_backend import Control, TableBackend
from millstream.state.storage import open_storage

_LOOK_EVERY = 1.0  # seconds between two looks at the registry

_log = logging.getLogger("millstream.service")


class Node:
    def __init__(
        self,
        tables: Sequence[Table],
        *,
        name: str = "n1",
        folder: str | os.PathLike[str],
        data: str = "127.0.0.1:0",
        control: str | None = None,
        registry: Registry | str | None = None,
        tls: Tls | None = None,
        cookie: str = "",
        control_tls: Tls | None = None,
        control_cookie: str = "",
        limits: Limits = DATA,
        control_limits: Limits = CONTROL,
        take_over: str | None = None,
        advertise: str | None = None,
        backups: str | os.PathLike[str] | None = None,
        force: bool = False,
    ) -> None:
        self.name = name
        self.folder = Path(folder).absolute()
        self._tables = {table.name: table for table in tables}
        if len(self._tables) < len(tables):
            raise DefinitionError(f"two tables share a name: {', '.join(sorted(table.name for table in tables))}")
        if registry is None or isinstance(registry, str):
            registry = Registry(open_storage(registry or self.folder / "registry"))
        self.manager = Manager(name, self.folder, registry, self._tables)
        self.backend = TableBackend(self.manager)
        self.data = DataPlane(self.backend, data, tls=tls, cookie=cookie, limits=limits, force=force)
        self.control = ControlPlane(
            Control(self.manager, SnapshotPlaces(self.folder, self.folder / "backups" if backups is None else Path(backups))),
            control or f"unix:{self.folder / 'control.sock'}",
            tls=control_tls,
            cookie=control_cookie,
            limits=control_limits,
        )
        self._take_over = take_over
        self._advertise = advertise
        self._tending: asyncio.Task[None] | None = None
        self._lock: int | None = None

    @property
    def address(self) -> str:
        return self.data.address

    async def start(self) -> None:
        """Locks the folder, listens, and serves what is desired."""
        self._lock = lock_node_folder(self.folder, "lock")
        try:
            self.manager.on_change = self.backend.update
            await self.data.start()
            await self._tell_health()
            await self.manager.start(self._advertise or self.data.address, self._take_over)
            await self.control.start()
            await self._tell_health()
        except BaseException:
            await self.stop()
            raise
        self._tending = asyncio.ensure_future(self._tend())

    async def stop(self) -> None:
        """Takes no more calls, answers those under way, and closes its files."""
        if self._tending is not None:
            self._tending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._tending
        await self.control.stop()
        await self.data.stop()
        await self.manager.stop()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            try:
                await self.manager.refresh()
                await self.manager.tend()
                await self._tell_health()
            except (MillstreamError, OSError) as error:
                _log.warning("the registry or a log cannot be looked at: %s", error)
            except Exception:  # the one task must not end
                _log.exception("the partitions cannot be looked after")

    async def _tell_health(self) -> None:
        """A table is well if all of its partitions here serve; the node, if all tables are."""
        ill = {one.descriptor.table for one in self.manager.partitions.values() if one.state != SERVING}
        if not self.manager.started:
            ill = set(self._tables)
        await self.data.say_health("", not ill)
        for name in self._tables:
            await self.data.say_health(name, name not in ill)


@contextlib.contextmanager
def serving(*tables: Table, folder: str | os.PathLike[str] | None = None, **options: Any) -> Iterator[str]:
    """While it lasts, a node serves the tables; what it gives is the address of its data plane. It is a real node, with its log and its gRPC servers.

    folder: where it keeps its files, to find them again; without one, in a temporary folder. options: as of `ms.service.Node`.

    >>> from millstream.service import Client, Table
    >>> with serving(Table("history")) as address, Client(address, "history") as client:
    ...     client.put("tea", "green")
    ...     client.get("tea")
    1
    b'green'
    """
    with tempfile.TemporaryDirectory(prefix="millstream-") if folder is None else contextlib.nullcontext(os.fspath(folder)) as place:
        node = Node(tables, folder=place, **options)
        thread = ServerThread(node)
        try:
            yield thread.address
        finally:
            thread.stop()
