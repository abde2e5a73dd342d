"""Large groups: leaves and nodes against a dictionary, while a group grows to thousands and shrinks back; what is read and written; the depth."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

import millstream as ms
from millstream.core.keyspace import encode_sub_key
from millstream.reducers.base import Reducer
from millstream.views.agg_tree import FAN, LEAST, LOAD, DoesNotReduce, Tree, address, compact_all, depth, hashed, leaf_of

encode, decode = ms.codecs.msgpack.encoder(), ms.codecs.msgpack.decoder(object)


class Entries:
    """Entries in memory, with a count of what is read and written."""

    def __init__(self) -> None:
        self.entries: dict[Any, bytes] = {}
        self.reads = self.writes = 0

    def get(self, sub_key: Any, default: Any = None) -> Any:
        self.reads += 1
        return self.entries.get(sub_key, default)

    def set(self, sub_key: Any, value: Any) -> None:
        encode_sub_key(sub_key)
        self.writes += 1
        self.entries[sub_key] = value

    def delete(self, sub_key: Any) -> None:
        self.writes += 1
        self.entries.pop(sub_key, None)


class Large:
    """A group, and what it must be."""

    def __init__(self, reducer: Reducer) -> None:
        self.reducer = reducer
        self.entries = Entries()
        self.leaves = 0
        self.total: Any = None
        self.model: dict[str, list[Any]] = {}

    def change(self, values: dict[str, list[Any] | None]) -> None:
        changes = {origin: None if of is None else [self.reducer.lift(value) for value in of] for origin, of in values.items()}
        tree = Tree(self.entries, self.leaves, self.reducer, encode, decode)
        for origin, parts in changes.items():
            if self.leaves:
                assert tree.put(origin, parts) == self.model.get(origin)
            if parts is None:
                self.model.pop(origin, None)
            else:
                self.model[origin] = parts
        if self.leaves:
            tree.resize(len(self.model))
        else:
            tree.begin(self.model)
        self.total = tree.flush(self.total)
        self.leaves = tree.leaves

    def check(self) -> None:
        assert self.total == compact_all(self.reducer, self.model.values())
        assert self.leaves == 1 or LEAST * self.leaves <= len(self.model) <= LOAD * self.leaves
        expected: dict[int, Any] = {}
        found: list[dict[str, Any]] = [{} for _ in range(self.leaves)]
        for origin, parts in self.model.items():
            found[leaf_of(hashed(origin), self.leaves)][origin] = parts
        expected.update({at: leaf for at, leaf in enumerate(found) if leaf})
        below = [compact_all(self.reducer, leaf.values()) for leaf in found]
        for level in range(1, depth(self.leaves) + 1):
            nodes = [below[at : at + FAN] for at in range(0, len(below), FAN)]
            for at, node in enumerate(nodes):
                while node and node[-1] is None:
                    node.pop()
                if node:
                    expected[address(level, at)] = node
            below = [self.reducer.fold(node) for node in nodes]
        assert {at: decode(data) for at, data in self.entries.entries.items()} == expected


@pytest.mark.slow
@pytest.mark.parametrize("reducer", [ms.min(), ms.sum(), ms.top(3)], ids=repr)
@pytest.mark.parametrize("seed", [0, *[pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2, 3)]])
def test_a_group_that_grows_and_shrinks_is_what_a_dictionary_says(reducer: Reducer, seed: int) -> None:
    dice = random.Random(seed)
    large = Large(reducer)
    large.change({f"o{at}": [at] for at in range(20)})
    deepest = 0
    for phase, (size, up) in enumerate([(40, 0.9), (400, 0.95), (3000, 1.0), (30, 0.5), (3, 0.5), (300, 0.1), (900, 0.02), (1, 0.5)]):
        for _ in range(8 if size < 1000 else 3):
            changes: dict[str, list[Any] | None] = {}
            for _ in range(size):
                if dice.random() < up or len(large.model) <= 20:
                    changes[f"o{dice.randrange(20000)}"] = [dice.randrange(1000) for _ in range(dice.choice([1, 1, 1, 2]))]
                else:
                    origin = dice.choice(list(large.model))
                    changes[origin] = None
            if len(large.model) - sum(v is None for v in changes.values()) < 10:
                break
            large.change(changes)
            large.check()
            deepest = max(deepest, depth(large.leaves))
        assert phase < 2 or deepest >= 2
    assert depth(large.leaves) < deepest


def test_twin_a_node_that_is_not_told_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    large = Large(ms.min())
    large.change({f"o{at}": [at] for at in range(2000)})
    monkeypatch.setattr(Tree, "_up", lambda self, reducer, changed, was, total: total)
    large.change({"o0": None})
    with pytest.raises(AssertionError):
        large.check()


@pytest.mark.parametrize("count", [300, 3_000, 30_000])
def test_the_worst_change_writes_the_leaf_and_one_node_per_level(count: int) -> None:
    """Each update changes the least value of all, so every partial on its way up changes. The row of the group is one write more."""
    large = Large(ms.min())
    large.change({f"o{at}": [at] for at in range(count)})
    bound = 1 + math.ceil(math.log(count / LOAD, FAN))
    assert depth(large.leaves) in (bound - 1, bound)  # a group that was laid out anew has leaves of six
    for value in range(1, 6):
        large.entries.reads = large.entries.writes = 0
        large.change({f"o{count - 1}": [-value]})
        assert large.entries.writes == 1 + depth(large.leaves)
        assert large.entries.reads == 1 + depth(large.leaves)
        large.check() if count < 10_000 else None


def test_work_goes_up_only_while_a_partial_changes() -> None:
    large = Large(ms.min())
    large.change({f"o{at}": [at] for at in range(3_000)})
    large.entries.reads = large.entries.writes = 0
    large.change({"o2999": [5_000]})  # not the least of its leaf, or of its node: nobody above cares
    leaf = leaf_of(hashed("o2999"), large.leaves)
    least = min(parts[0] for origin, parts in large.model.items() if leaf_of(hashed(origin), large.leaves) == leaf)
    assert least < 5_000
    assert (large.entries.reads, large.entries.writes) == (2, 1)


def test_a_reducer_that_does_not_reduce_is_named() -> None:
    class Everything(ms.Reducer):
        def combine(self, a: Any, b: Any) -> Any:
            return sorted(a + b)

    large = Large(Everything())
    with pytest.raises(DoesNotReduce, match=r"more than 65,536.*Everything"):
        large.change({f"o{at}": [["x" * 40]] for at in range(5_000)})


def test_leaves_are_filled_evenly_and_hashes_are_the_same_everywhere() -> None:
    assert hashed("a") == 3523655507  # it is part of the checkpoint's format
    sizes = [0] * 1000
    for at in range(8000):
        sizes[leaf_of(hashed(f"\0i{at}"), 1000)] += 1
    assert max(sizes) < 40
