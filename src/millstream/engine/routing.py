"""Routing: where productions go that leave their task. A later level of this epoch, or the log, for the next. Pure.

Rule: a consumer's key is worked out where the record is produced. Where that fails, the record goes to the consumer as a rejected one, if it takes such.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from millstream.core.keys import shard_of
from millstream.core.outcome import Outcome
from millstream.core.route_keys import NoKey
from millstream.core.topology import STRONG
from millstream.engine.program import Compiled

StoredRow = tuple[str, int, str, bytes]  # key, timestamp, id, body


class SentRows(msgspec.Struct):
    """Productions under way to other tasks of this epoch, in columns: the consumer's shard, the route, the key (None: rejected), and so on."""

    shards: list[int] = []
    routes: list[int] = []
    keys: list[Any] = []
    times: list[int] = []
    ids: list[str] = []
    bodies: list[bytes] = []

    def __len__(self) -> int:
        return len(self.shards)

    def rows(self) -> Iterator[SentRow]:
        return map(SentRow._make, zip(self.shards, self.routes, self.keys, self.times, self.ids, self.bodies, strict=True))


class SentRow(NamedTuple):
    """One row of it."""

    shard: int
    route: int
    key: Any
    time: int
    id: str
    body: bytes


class Routed(msgspec.Struct):
    """Productions with their targets: those that go on in this epoch, by level, and those that are stored, by edge and shard."""

    sent: dict[int, SentRows] = {}
    kept: dict[tuple[str, str], dict[int, list[StoredRow]]] = {}


def route(compiled: Compiled, outcomes: Iterable[Outcome], shards: int, stored: Collection[tuple[str, str]]) -> Routed:
    out = Routed()
    routes_of, route_keys = compiled.routes_of, compiled.route_keys
    for outcome in outcomes:
        for p in compiled.productions_of(outcome, routes_of):
            for way in routes_of.get(p.stream, ()):
                text: Any = None
                body, shard = p.body, 0
                try:
                    text = route_keys[way.index](p)
                    shard = shard_of(text.encode(), shards)
                except NoKey as error:
                    body = compiled.rejected(way, p, error)
                edge = (way.stream, way.computation)
                if way.production == STRONG or edge in stored:
                    by_shard = out.kept.get(edge)
                    if by_shard is None:
                        by_shard = out.kept[edge] = {}
                    by_shard.setdefault(shard, []).append((text, p.timestamp, p.id, body))
                else:
                    sent = out.sent.get(way.level)
                    if sent is None:
                        sent = out.sent[way.level] = SentRows()
                    sent.shards.append(shard)
                    sent.routes.append(way.index)
                    sent.keys.append(text)
                    sent.times.append(p.timestamp)
                    sent.ids.append(p.id)
                    sent.bodies.append(body)
    return out
