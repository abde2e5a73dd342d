"""A large group: its contributions in leaves, and partial results of them in inner nodes above.

    leaf b       sub-key b               {origin: parts}          b by linear hashing of the origin over n leaves
    node         sub-key level<<40 | j   [partial of child 32·j, ..., 32·j+31]      only for reducers without an inverse

Rules
1. Every address follows from n, the number of leaves, which the row of the group remembers: that is the depth of the tree. Nothing is probed.
2. A leaf holds about eight contributions. When there are more, leaf n is split off leaf n - 2^⌊log2 n⌋; when there are fewer than three, the last leaf
   goes back where it came from. So a group grows and shrinks by one leaf at a time. One that doubles within a message is laid out anew.
3. A message reads and writes every leaf that it touches once. Where the partial result of a leaf has changed, its parent is written; and so on up, no
   further than a partial changes.
4. The hash does not follow from the order of keys, and is the same in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from zlib import crc32

from millstream.core.mapstate import MapState
from millstream.reducers.base import Reducer

LOAD = 8  # contributions per leaf, at most on average
LEAST = 3  # and at least
FAN = 32  # children per node
MOST_BYTES = 64 * 1024  # of a node: a reducer that does not reduce makes them larger

_MIX = 0x9E3779B97F4A7C15

Leaf = dict[str, list[Any]]


class DoesNotReduce(ValueError):
    """A partial result has become too large."""


def hashed(origin: str) -> int:
    """Rule 4: CRC-32, multiplied so that its low bits follow from all of its bits."""
    return crc32(origin.encode()) * _MIX >> 24 & 0xFFFFFFFF


def leaf_of(hash: int, leaves: int) -> int:
    """The leaf of an origin among so many.

    >>> [leaf_of(h, 3) for h in range(8)]
    [0, 1, 2, 1, 0, 1, 2, 1]
    """
    top = 1 << (leaves.bit_length() - 1)
    at = hash & (2 * top - 1)
    return at if at < leaves else at - top


def depth(leaves: int) -> int:
    """How many levels of nodes stand above so many leaves.

    >>> [depth(n) for n in (1, 2, 32, 33, 1024, 1025)]
    [0, 1, 1, 2, 2, 3]
    """
    levels, width = 0, leaves
    while width > 1:
        width = -(-width // FAN)
        levels += 1
    return levels


def address(level: int, at: int) -> int:
    return level << 40 | at


class Tree:
    """The leaves of one group, while one message is worked in. `flush` writes what has changed."""

    def __init__(
        self, entries: MapState, leaves: int, reducer: Reducer | None, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
    ) -> None:
        """entries: where leaves and nodes are, as bytes. reducer: whose partials the nodes hold; None: no nodes are kept."""
        self.leaves = leaves
        self._entries = entries
        self._reducer = reducer
        self._encode = encode
        self._decode = decode
        self._loaded: dict[int, Leaf] = {}
        self._dirty: dict[int, None] = {}
        self._mask = (1 << leaves.bit_length()) - 1  # of as many leaves as there are until `resize`
        self._stands = leaves  # how many leaves the entries say there are
        self._gone: list[int] = []  # leaves that were merged away

    def leaf(self, at: int) -> Leaf:
        found = self._loaded.get(at)
        if found is None:
            data = self._entries.get(at)
            found = self._loaded[at] = {} if data is None else self._decode(data)
        return found

    def get(self, origin: str) -> list[Any] | None:
        return self.leaf(leaf_of(hashed(origin), self.leaves)).get(origin)

    def put(self, origin: str, parts: list[Any] | None) -> list[Any] | None:
        """Sets the contribution of an origin, or removes it; gives what it was."""
        at = (crc32(origin.encode()) * _MIX >> 24) & self._mask  # hashed and leaf_of, written out: once per contribution
        if at >= self.leaves:
            at -= self._mask + 1 >> 1
        leaf = self._loaded.get(at)
        if leaf is None:
            leaf = self.leaf(at)
        old = leaf.get(origin)
        if parts is None and old is None:
            return None
        if parts is None:
            del leaf[origin]
        else:
            leaf[origin] = parts
        self._dirty[at] = None
        return old

    def items(self) -> Iterator[tuple[str, list[Any]]]:
        for at in range(self.leaves):
            yield from self.leaf(at).items()

    # --- growing and shrinking

    def resize(self, count: int) -> None:
        """Rule 2: as many leaves as so many contributions need."""
        if count > 2 * LOAD * self.leaves or 2 * count < LEAST * self.leaves:
            wanted = max(1, -(-count // (LOAD - 2)))
            if wanted != self.leaves:
                self._lay_out(dict(self.items()), wanted)
            return
        while count > LOAD * self.leaves:
            self._split()
        while self.leaves > 1 and count < LEAST * self.leaves:
            self._merge()

    def begin(self, contributions: Leaf) -> None:
        """Lays out the contributions of a group that had no leaves."""
        self._lay_out(contributions, max(1, -(-len(contributions) // (LOAD - 2))))

    def _lay_out(self, contributions: Leaf, leaves: int) -> None:
        self._clear(self._stands)
        self.leaves, self._stands = leaves, 0
        self._loaded = {at: {} for at in range(leaves)}
        self._dirty, self._gone = dict.fromkeys(range(leaves)), []
        for origin, parts in contributions.items():
            self._loaded[leaf_of(hashed(origin), leaves)][origin] = parts

    def split_to(self, leaves: int) -> None:
        """As many leaves, one after the other."""
        while self.leaves < leaves:
            self._split()

    def _split(self) -> None:
        new = self.leaves
        old = new - (1 << (new.bit_length() - 1))
        leaf = self.leaf(old)
        self.leaves = new + 1
        moved = {origin: parts for origin, parts in leaf.items() if leaf_of(hashed(origin), self.leaves) == new}
        for origin in moved:
            del leaf[origin]
        self._loaded[new] = moved
        self._dirty[old] = self._dirty[new] = None

    def _merge(self) -> None:
        last = self.leaves - 1
        home = last - (1 << (last.bit_length() - 1))
        self.leaf(home).update(self.leaf(last))
        self.leaves = last
        del self._loaded[last]
        self._dirty.pop(last, None)
        self._dirty[home] = None
        self._gone.append(last)

    def dissolve(self) -> Leaf:
        """All contributions, and nothing left in the entries."""
        found = dict(self.items())
        self._clear(self._stands)
        self.leaves, self._stands = 0, 0
        self._loaded, self._dirty, self._gone = {}, {}, []
        return found

    def _clear(self, width: int, above: int = -1) -> None:
        """Takes out the levels above one, of what stands in the entries. width: how many leaves that has."""
        for level in range(depth(width) + 1 if width else 0):
            if level > above and (level == 0 or self._reducer is not None):
                for at in range(width):
                    self._entries.delete(address(level, at))
            width = -(-width // FAN)

    # --- writing

    def flush(self, total: Any) -> Any:
        """Writes what has changed, and gives the total over all leaves. total: what it was; of no meaning without a reducer."""
        changed: dict[int, Any] = {}
        for at in self._gone:
            if at >= self.leaves:
                self._entries.delete(at)
                if at < self._stands:
                    changed[at] = None
        reducer = self._reducer
        for at in self._dirty:
            leaf = self._loaded[at]
            if leaf:
                self._entries.set(at, self._encode(leaf))
            else:
                self._entries.delete(at)
            if reducer is not None:
                changed[at] = compact_all(reducer, leaf.values())
        was, self._stands = self._stands, self.leaves
        self._dirty, self._gone = {}, []
        if reducer is None:
            return None
        return self._up(reducer, changed, was, total)

    def _up(self, reducer: Reducer, changed: dict[int, Any], was: int, total: Any) -> Any:
        """Rule 3. changed: the new partials of the leaves that were written or have gone."""
        levels, stood = depth(self.leaves), depth(was)
        width, old_width = self.leaves, was
        for level in range(1, levels + 1):
            if level == stood + 1 and was and 0 not in changed:
                changed[0] = total  # what stood alone until now gets a parent
            width, old_width = -(-width // FAN), -(-old_width // FAN)
            nodes: dict[int, list[Any]] = {}
            touched: dict[int, None] = {}
            for at, partial in changed.items():
                parent, child = divmod(at, FAN)
                node = nodes.get(parent)
                if node is None:
                    data = self._entries.get(address(level, parent)) if level <= stood and parent < old_width else None
                    node = nodes[parent] = [] if data is None else self._decode(data)
                known = node[child] if child < len(node) else None
                if known != partial or known.__class__ is not partial.__class__:
                    node.extend([None] * (child + 1 - len(node)))
                    node[child] = partial
                    touched[parent] = None
            changed = {}
            for parent in touched:
                node = nodes[parent]
                while node and node[-1] is None:
                    node.pop()
                if node:
                    self._entries.set(address(level, parent), self._sized(node))
                else:
                    self._entries.delete(address(level, parent))
                changed[parent] = reducer.fold(node)
        if stood <= levels:
            return changed.get(0, total)
        total = changed[0] if 0 in changed else self._root(reducer, levels)  # the tree has become lower: what stood above goes
        self._clear(was, levels)
        return total

    def _root(self, reducer: Reducer, level: int) -> Any:
        if level == 0:
            return compact_all(reducer, self.leaf(0).values())
        data = self._entries.get(address(level, 0))
        return None if data is None else reducer.fold(self._decode(data))

    def _sized(self, node: list[Any]) -> bytes:
        data = self._encode(node)
        if len(data) > MOST_BYTES:
            raise DoesNotReduce(
                f"a node of partial results has {len(data):,} bytes, more than {MOST_BYTES:,}: {self._reducer!r} does not make them smaller than what "
                f"it reduces. Give it a limit, or keep less of each value"
            )
        return data


def compact_all(reducer: Reducer, contributions: Iterable[list[Any]]) -> Any:
    """The total of contributions that stand in one place."""
    return reducer.fold([part for parts in contributions for part in parts])
