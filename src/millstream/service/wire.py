"""From our words to those of service.proto."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.service.messages import Descriptor
from millstream.service.proto import service_pb2 as pb

if TYPE_CHECKING:
    from millstream.service.partition import Partition


def position(one: Descriptor, lsn: int, age: int = 0) -> pb.Position:
    """Where an answer is from."""
    return pb.Position(partition=one.id, term=one.term, lsn=lsn, age_ms=age)


def partition_message(one: Descriptor, address: str, here: Partition | None = None) -> pb.Partition:
    """A partition as callers are told of it. here: if this node serves it."""
    found = pb.Partition(
        id=one.id,
        table=one.table,
        start=one.start,
        end=one.end,
        term=one.term,
        primary=address,
        node=one.node,
        point=one.point,
        state="desired",
    )
    if here is not None:
        found.state, found.reason, found.lsn = here.state.value, here.reason, here.store.applied
        found.in_sync.append(one.node)
    return found


def descriptor(found: pb.Partition) -> Descriptor:
    """A partition as a client remembers it."""
    return Descriptor(found.id, found.table, found.start, found.end, found.term, found.node, found.point or "key")
