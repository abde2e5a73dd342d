"""What a source's server counts.

Rules
1. A counter moves when the thing has happened: an entry is received when it is durable.
2. `received`, `refused` and `fsyncs` begin at 0 with the server and never go back. The others are numbers of now.
"""

from __future__ import annotations

import msgspec


class SourceStats(msgspec.Struct, frozen=True, kw_only=True):
    """How the server of a source is doing."""

    #: Entries (messages, watermarks, ends) that are durable.
    received: int
    #: Connections that were sent away because there was no room.
    refused: int
    #: Forced writes.
    fsyncs: int
    #: Programs that are connected now, and connections that have not greeted yet.
    sessions: int
    unauthenticated: int
    #: Streams that are known.
    streams: int
    #: Positions in the log: how far it is durable, and how far it is committed.
    end: int
    acknowledged: int
    #: Bytes that wait for the disk.
    waiting_bytes: int
    #: What it waits for while nobody is connected, in words; None if somebody is.
    waiting_for: str | None
