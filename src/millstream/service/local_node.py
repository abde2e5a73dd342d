"""A node for tests: in this process, in a thread of its own, with its files in a folder that goes afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from millstream.service.node import Node
from millstream.service.table import Table


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
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="millstream-node", daemon=True)
    thread.start()

    async def begin(place: str) -> Node:
        node = Node(tables, folder=place, **options)
        await node.start()
        return node

    with tempfile.TemporaryDirectory(prefix="millstream-") if folder is None else contextlib.nullcontext(os.fspath(folder)) as place:
        try:
            node = asyncio.run_coroutine_threadsafe(begin(place), loop).result()
            try:
                yield node.data.address
            finally:
                asyncio.run_coroutine_threadsafe(node.stop(), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
