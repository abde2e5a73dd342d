"""The streams of a source: what was received of each, what is committed, who pushes it, and how far its event time is complete.

Rules
1. `received` is the last id taken, `acknowledged` the last one committed: acknowledged <= received, and neither goes back. A stream resumes at
   `acknowledged`; an id that is not above `received` was seen before, and is skipped.
2. A stream has one owner, the session that announced it. Another is refused, unless it is the same instance of the same program: then the older
   session is a half-open connection of its own, and is fenced.
3. A stream that was never used is forgotten with its session. There are never more than `limit`.
4. The watermark that a pusher declares counts once everything before it is committed. It never goes back.
5. The watermark of the source is the minimum over its streams: those that were declared by name, or else all that are known. One of which nothing was
   declared holds it back. One that has ended, or has been silent for `idle`, holds nothing back; if that is so of all, the furthest counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from millstream.connector.intake.format import Mark
from millstream.errors import RemoteProtocolError


class PushedStream(msgspec.Struct, eq=False):
    """One stream. `watermark` and `ended` are of what is committed. Invariant: acknowledged is None, or received is not None and acknowledged <= received."""

    name: str
    heard: float
    received: int | None = None
    acknowledged: int | None = None
    watermark: int | None = None
    ended: bool = False
    owner: Any = None
    is_stored: bool = False

    @property
    def is_committed(self) -> bool:
        return self.received == self.acknowledged


class Streams(dict[str, PushedStream]):
    """All streams of a source, by name. The clock is an argument: seconds, of any clock that only goes forward."""

    def __init__(self, acknowledged: Mapping[str, Mark], received: Mapping[str, Mark], now: float, limit: int = 10_000) -> None:
        super().__init__()
        self.limit, self._began = limit, now
        for name, last in received.items():
            mark = acknowledged.get(name, Mark(name))
            self[name] = PushedStream(name, now, last.last, mark.last, mark.watermark, mark.ended, is_stored=True)

    def claim(self, name: str, owner: Any, now: float) -> PushedStream | None:
        """The stream, if nobody else has it; None if somebody has."""
        stream = self.get(name)
        if stream is None:
            if len(self) >= self.limit:
                raise RemoteProtocolError(f"there are {self.limit} streams, and no more are taken")
            stream = self[name] = PushedStream(name, now)
        elif stream.owner is not None:
            return None
        stream.owner, stream.heard = owner, now
        return stream

    def release(self, stream: PushedStream, owner: Any) -> None:
        if stream.owner is owner:
            stream.owner = None
            if not stream.is_stored:
                self.pop(stream.name, None)

    def committed(self, marks: Iterable[Mark]) -> None:
        for mark in marks:
            stream = self.get(mark.name)
            if stream is not None:
                now = Mark(stream.name, stream.acknowledged, stream.watermark).then(mark)
                stream.acknowledged, stream.watermark, stream.ended = now.last, now.watermark, now.ended

    def watermark(self, declared: tuple[str, ...], idle: float | None, now: float) -> tuple[int | None, str]:
        """Rule 5: the watermark, None if nothing can be said yet, and what holds it there."""
        names = declared or tuple(self)
        holding: list[tuple[int, str]] = []
        for name in names:
            stream = self.get(name)
            heard = self._began if stream is None else stream.heard
            if idle is not None and now - heard >= idle:
                continue
            if stream is not None and stream.ended and stream.owner is None and stream.is_committed:
                continue
            if stream is None or stream.watermark is None:
                return None, f"stream {name!r}, of which nothing was {'heard' if stream is None else 'declared'}"
            holding.append((stream.watermark, f"stream {name!r}"))
        if holding:
            return min(holding)
        said = [stream.watermark for name in names if (stream := self.get(name)) is not None and stream.watermark is not None]
        return max(said, default=None), "nothing: every stream is idle or has ended"
