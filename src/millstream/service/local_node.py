"""A node for tests: in this process, in a thread of its own, with its files in a folder that goes afterwards."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

from millstream.service.loop_thread import LoopThread
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
    thread = LoopThread("millstream-node")
    with tempfile.TemporaryDirectory(prefix="millstream-") if folder is None else contextlib.nullcontext(os.fspath(folder)) as place:
        try:
            node = Node(tables, folder=place, **options)
            thread.run(node.start())
            try:
                yield node.data.address
            finally:
                thread.run(node.stop())
        finally:
            thread.stop()
