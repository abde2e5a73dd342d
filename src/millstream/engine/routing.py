"""Departures: where productions go that leave their task. A later level of this epoch, or the log, for the next. Pure.

Rule: a consumer's key is worked out where the record is produced. Where that fails, the record goes to the consumer as a rejected one, if it takes such.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.core.keys import shard_of
from millstream.core.outcome import Outcome
from millstream.core.route_keys import NoKey
from millstream.core.topology import STRONG
from millstream.engine.program import Compiled

if TYPE_CHECKING:
    from millstream.state.stored_productions import StoredRow

Sent = tuple[int, int, Any, int, str, bytes]  # the consumer's shard, route, key (None: rejected), timestamp, id, body


class Departures(msgspec.Struct):
    """Productions with their targets: those that go on in this epoch, by level, and those that are stored, by edge and shard."""

    sent: dict[int, list[Sent]] = {}
    kept: dict[tuple[str, str], dict[int, list[StoredRow]]] = {}


def outgoing(compiled: Compiled, outcomes: Iterable[Outcome], shards: int, stored: Collection[tuple[str, str]]) -> Departures:
    """Where productions go that leave their task."""
    out = Departures()
    routes_of, route_keys = compiled.routes_of, compiled.route_keys
    for outcome in outcomes:
        for p in outcome.productions:
            for route in routes_of.get(p.stream, ()):
                text: Any = None
                body, shard = p.body, 0
                try:
                    text = route_keys[route.index](p)
                    shard = shard_of(text.encode(), shards)
                except NoKey as error:
                    body = compiled.rejected(route, p, error)
                edge = (route.stream, route.computation)
                if route.production == STRONG or edge in stored:
                    by_shard = out.kept.get(edge)
                    if by_shard is None:
                        by_shard = out.kept[edge] = {}
                    by_shard.setdefault(shard, []).append((text, p.timestamp, p.id, body))
                else:
                    sent = out.sent.get(route.level)
                    if sent is None:
                        sent = out.sent[route.level] = []
                    sent.append((shard, route.index, text, p.timestamp, p.id, body))
    return out
