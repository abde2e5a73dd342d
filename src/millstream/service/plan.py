"""The plan: from what a node has and what is desired to what it must do. Pure; carried out by `manager.py`.

Rules
1. What goes, goes before what comes. So no two partitions of a node ever serve the same point.
2. A plan for a state that is as desired is empty, and a plan that was carried out half leads to the other half: a node that is killed in the middle begins
   again from what is on its disk.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millstream.service.messages import Descriptor


class Add(msgspec.Struct, frozen=True):
    """Begin to serve a partition."""

    partition: Descriptor


class Del(msgspec.Struct, frozen=True):
    """Serve it no more. moved: it is another node's now, and its data are not ours to keep."""

    partition: Descriptor
    moved: bool = False


class Update(msgspec.Struct, frozen=True):
    """Serve it in another term."""

    before: Descriptor
    partition: Descriptor


PartitionOp = Add | Del | Update


def plan(node: str, current: Mapping[int, Descriptor], desired: Mapping[int, Descriptor]) -> list[PartitionOp]:
    """What a node must do, in order.

    >>> a, b = Descriptor(1, "t", b"", b"m", node="n1"), Descriptor(2, "t", node="n1")
    >>> [type(op).__name__ for op in plan("n1", {1: a}, {2: b})]
    ['Del', 'Add']
    >>> plan("n1", {2: b}, {2: b})
    []
    """
    ours = {id: one for id, one in desired.items() if one.node == node}
    found: list[PartitionOp] = [Del(current[id], moved=id in desired) for id in sorted(current) if id not in ours]
    found += [Update(current[id], ours[id]) for id in sorted(current) if id in ours and current[id] != ours[id]]
    found += [Add(ours[id]) for id in sorted(ours) if id not in current]
    return found
