"""The desired state: which partitions there are to be, on which nodes; how it is changed; and what a node must do to get there. Pure.

Rules
1. It changes by compare-and-set: a change is made to a version that its author has read, and makes the next one, or nothing. So no two changes can
   together do what each of them alone may not: ranges of a table never overlap.
2. Ids are given out once. A partition that is removed does not come back under its id.
3. A partition moves by a higher term, never by the same.
4. A node's name belongs to the folder that took it first: two nodes under one name would each believe that the partitions are theirs.
5. In a plan what goes, goes before what comes, so no two partitions of a node ever serve the same point. A plan for a state that is as desired is empty,
   and one that was carried out half leads to the other half: a node that is killed in between continues from what is on its disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import msgspec

from millstream.errors import RefusedRequest
from millstream.service.messages import Descriptor
from millstream.service.range_map import RangeMaps


class NodeEntry(msgspec.Struct, frozen=True):
    """A node: its name, where its data plane listens, and the identity of its folder."""

    name: str
    address: str
    identity: str


class PartitionsAdded(msgspec.Struct, frozen=True, tag="added"):
    """Partitions are to be: one, or all of a new table at once."""

    partitions: list[Descriptor]


class PartitionRemoved(msgspec.Struct, frozen=True, tag="removed"):
    id: int


class PartitionMoved(msgspec.Struct, frozen=True, tag="moved"):
    id: int
    node: str
    term: int


class NodeJoined(msgspec.Struct, frozen=True, tag="node"):
    """A node is there, or listens somewhere else. instead: it takes the name of a folder that is lost."""

    node: NodeEntry
    instead: bool = False


RegistryChange = PartitionsAdded | PartitionRemoved | PartitionMoved | NodeJoined


class Desired(msgspec.Struct, dict=True):
    version: int = 0
    next_id: int = 1
    partitions: dict[int, Descriptor] = {}
    nodes: dict[str, NodeEntry] = {}
    tables: dict[str, int] = {}  # those that ever had a partition, and the version in which it came

    @cached_property
    def _ranges(self) -> RangeMaps[Descriptor]:
        found: RangeMaps[Descriptor] = RangeMaps()
        found.become(self.partitions)
        return found

    def check(self, change: RegistryChange) -> None:
        """Rules 1 to 4: raises if the change may not be made to this version."""
        if isinstance(change, PartitionsAdded):
            coming: RangeMaps[Descriptor] = RangeMaps()
            free = self.next_id
            for new in change.partitions:
                if new.id < free:
                    raise RefusedRequest(f"id {new.id} was given out before: leave it out, or use {free} or more")
                if new.end and new.start >= new.end:
                    raise RefusedRequest(f"the range from {new.start!r} to {new.end!r} is empty")
                for other in (*self._ranges.of(new.table).overlapping(new), *coming.of(new.table).overlapping(new)):
                    who = f"partition {other.id} of table {other.table!r}"
                    has = f"{other.start!r} to {other.end!r}" if other.end else f"{other.start!r} and all behind it"
                    raise RefusedRequest(f"{who} has points of that range already (it has {has}): remove it first, or choose another range")
                coming.add(new)
                free = new.id + 1
        elif isinstance(change, (PartitionRemoved, PartitionMoved)):
            found = self.partitions.get(change.id)
            if found is None:
                raise RefusedRequest(f"there is no partition {change.id}")
            if isinstance(change, PartitionMoved) and change.term <= found.term:
                raise RefusedRequest(f"partition {change.id} is at term {found.term} already")
        else:
            known = self.nodes.get(change.node.name)
            if known is not None and known.identity != change.node.identity and not change.instead:
                raise RefusedRequest(
                    f"a node called {change.node.name!r} is known already, with another folder (it listens on {known.address}). Give this one a name of its "
                    f"own (--node), or if the other is lost, take its place (--take-over {change.node.name})."
                )

    def apply(self, change: RegistryChange) -> None:
        if isinstance(change, PartitionsAdded):
            for new in change.partitions:
                self._ranges.add(new)
                self.partitions[new.id] = new
                self.next_id = new.id + 1
                self.tables.setdefault(new.table, self.version + 1)
        elif isinstance(change, PartitionRemoved):
            self._ranges.remove(change.id)
            del self.partitions[change.id]
        elif isinstance(change, PartitionMoved):
            found = self.partitions[change.id]
            self.partitions[change.id] = msgspec.structs.replace(found, node=change.node, term=change.term)
        else:
            self.nodes[change.node.name] = change.node
        self.version += 1


class PartitionOp(NamedTuple):
    """A step of a plan: a node begins to serve a partition, or serves it no more. moved: another owner or term has it, so its data are not ours to keep."""

    partition: Descriptor
    opens: bool = False
    moved: bool = False


def plan(node: str, current: Mapping[int, Descriptor], desired: Mapping[int, Descriptor]) -> list[PartitionOp]:
    """What a node must do, in order. Rule 5.

    >>> a, b = Descriptor(1, "t", b"", b"m", node="n1"), Descriptor(2, "t", node="n1")
    >>> [(op.partition.id, op.opens) for op in plan("n1", {1: a}, {2: b})]
    [(1, False), (2, True)]
    >>> plan("n1", {2: b}, {2: b})
    []
    """
    ours = {id: one for id, one in desired.items() if one.node == node}
    going = [PartitionOp(one, moved=id in desired) for id, one in sorted(current.items()) if ours.get(id) != one]
    return going + [PartitionOp(one, opens=True) for id, one in sorted(ours.items()) if current.get(id) != one]
