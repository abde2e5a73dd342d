"""Messages that other programs push over TCP, as a source: a server in the driver's process, a durable log, and Spark's way to read it.

Rules
1. A run starts the server when it loads the source, or makes its reader; `close` ends it.
2. A message is acknowledged to whoever pushed it when the epoch that read it is committed, never before: the engine calls `acknowledge` with its offset.
3. The folder and the address are the source's identity: a driver that is started again with both goes on where the last one was.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.core.time import duration
from millstream.errors import DefinitionError
from millstream.sources.base import Source
from millstream.sources.splits import Offset

if TYPE_CHECKING:
    from millstream.connector.source.server import SourceServer, SourceStats
    from millstream.network import Tls
    from millstream.sources.splits import PlannedReader

_SIZE = re.compile(r"^\s*(\d+)\s*([KMG])i?B\s*$", re.IGNORECASE)
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class IntakeOffset(Offset, frozen=True):
    """what was pushed over the connector"""

    position: int


class PushedStats(msgspec.Struct, frozen=True):
    """How a source that programs push into is doing: the server's counters, None while none runs; how far event time is complete, by what pushers have
    declared, and what holds it there."""

    server: SourceStats | None = None
    watermark: int | None = None
    held_by: str | None = None


class PushedSource(Source):
    """Messages that other programs push to HOST:PORT, each once, as rows (stream, id, event_time, key, payload, record_id).

    dir: the folder of the durable log, which every Spark process can read; keep it with the checkpoint. cookie: a secret that pushers must know; needed to
    listen beyond this machine, unless `force`. tls: `ms.connector.Tls(cert, key, ca)`. streams, idle: which streams `watermark` waits for, and for how
    long if they are silent. max_per_epoch: a number of messages, or a size such as "64MB". credits: frames of one pusher on the way. backlog: how much may
    wait uncommitted before pushers are slowed down.

    >>> connector(dir="intake", listen="127.0.0.1:7401", max_per_epoch=100_000).describe()
    'messages pushed to 127.0.0.1:7401'
    """

    schema = "stream string, id long, event_time long, key string, payload binary, record_id string"
    is_acknowledged = True

    def __init__(
        self,
        *,
        dir: str | os.PathLike[str],
        listen: str = "127.0.0.1:7401",
        cookie: str = "",
        tls: Tls | None = None,
        force: bool = False,
        streams: Sequence[str] = (),
        idle: str | int | None = None,
        max_per_epoch: int | str | None = None,
        partitions: int | None = None,
        credits: int = 100_000,
        backlog: str = "4GB",
        sessions: int = 256,
        max_message: str = "1MB",
    ) -> None:
        from millstream.network import check_listening, parse_address

        check_listening(parse_address(listen)[0], cookie, force)
        if isinstance(streams, str):
            raise DefinitionError("sources.connector(streams=...): give a list of names")
        for name, value in (("max_per_epoch", max_per_epoch), ("partitions", partitions), ("credits", credits), ("sessions", sessions)):
            if value is not None and not isinstance(value, str) and value < 1:
                raise DefinitionError(f"sources.connector({name}=...): at least 1")
        self.folder, self.listen, self.streams = os.path.abspath(os.fspath(dir)), listen, tuple(streams)
        self.idle = None if idle is None else duration(idle) / 1000
        self._messages = max_per_epoch if isinstance(max_per_epoch, int) else None
        self._size = _bytes("max_per_epoch", max_per_epoch) if isinstance(max_per_epoch, str) else None
        self._partitions = partitions
        self._options: dict[str, Any] = {"cookie": cookie, "tls": tls, "force": force, "credits": credits, "sessions": sessions}
        self._options |= {"backlog": _bytes("backlog", backlog), "frame_limit": _bytes("max_message", max_message)}
        if self._messages is not None:
            self._options["batch_messages"] = self._messages
        self._needs = (False, False)
        self._server: SourceServer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_server": None}  # the server stays on the driver

    def check(self, *, offsets: bool) -> None:
        if not offsets:
            raise DefinitionError(
                f"{self.describe()} must be told what is committed, and Spark's offset log is out of reach. Keep Spark's checkpoint in a local folder, "
                "with run(..., spark_checkpoint=...)"
            )

    def load(self, spark: Any, unreadable: str | None = None) -> Any:
        self.start()
        from millstream.engine.spark import intake_source  # stands above: the exception that tests/test_layout.py names

        return intake_source.load(spark, self.folder, partitions=self._partitions, messages=self._messages, size=self._size)

    def unplanned(self) -> str | None:
        return None

    def reader(self, arrow_schema: Any, unreadable: str | None = None) -> PlannedReader:
        from millstream.sources.pushed_reading import IntakeReader

        self.start()
        return IntakeReader(self, self._messages, self._size, self._partitions)

    def require(self, *, key: bool, time: bool) -> None:
        """A message without a key, or with an impossible event time, is then refused, and whoever pushed it is told at once."""
        self._needs = (key, time)

    def start(self) -> SourceServer:
        if self._server is None:
            from millstream.connector.source.protocol.session import Needs
            from millstream.connector.source.server import SourceServer

            server = SourceServer(self.folder, self.listen, **self._options, needs=Needs(*self._needs))
            server.start()
            self._server = server
        return self._server

    @property
    def address(self) -> str:
        """HOST:PORT where the server listens; before it is started, where it will."""
        return self.listen if self._server is None else self._server.address

    def acknowledge(self, offset: str) -> None:
        if self._server is None or offset.strip() in ("-", ""):
            return
        self._server.acknowledge(IntakeOffset.read(offset).position)

    def watermark(self) -> int | None:
        """For `ms.watermarks.declared(source.watermark)`: how far event time is complete, by what the pushers have declared; None says nothing yet."""
        return None if self._server is None else self._server.watermark(self.streams, self.idle)[0]

    def stats(self) -> PushedStats:
        if self._server is None:
            return PushedStats()
        return PushedStats(self._server.stats(), *self._server.watermark(self.streams, self.idle))

    def waits_for(self) -> str:
        server = self.stats().server
        return self.describe() if server is None or server.waiting_for is None else server.waiting_for

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    def describe(self) -> str:
        return f"messages pushed to {self.address}"


def _bytes(name: str, text: str) -> int:
    match = _SIZE.match(text)
    if match is None:
        raise DefinitionError(f"sources.connector({name}={text!r}): write a size such as '64MB' or '1GB'")
    return int(match.group(1)) * _UNITS[match.group(2).upper()]


connector = PushedSource
