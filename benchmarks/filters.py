"""Filters in front of the ids held: ours, on a whole column of hashes at once, against filters from PyPI (those that are installed: `pip install rbloom abloom`).

Each is asked about, and then given, 100,000 ids in a filter of a million; false positives are counted. Theirs get the ids as Python objects, one by one
or as a list, because that is what they take: making those objects from the column is part of their time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from millstream.core.dedup import Filter

COUNT, FULL = 100_000, 1_000_000


def best(function: Callable[[], Any]) -> float:
    """Nanoseconds per id, the best of five."""
    found = []
    for _ in range(5):
        began = time.perf_counter()
        function()
        found.append((time.perf_counter() - began) / COUNT * 1e9)
    return min(found)


def main() -> None:
    dice = np.random.default_rng(1)
    old, new = dice.integers(0, 2**64, FULL, np.uint64), dice.integers(0, 2**64, COUNT, np.uint64)

    def report(name: str, ask: Callable[[], Any], add: Callable[[], Any], wrong: float) -> None:
        print(f"{name:14s} ask {best(ask):6.0f} ns   add {best(add):6.0f} ns   false positives {wrong:.3%}")

    ours = Filter(FULL)
    ours.add(old)
    wrong = float(ours.may_have(new).mean())
    report("ours (numpy)", lambda: ours.may_have(new), lambda: ours.add(new), wrong)
    for name, make in (("rbloom", _rbloom), ("abloom", _abloom)):
        try:
            filter, add, has = make()
        except ImportError:
            print(f"{name:14s} not installed")
            continue
        for one in old.tolist():
            add(one)
        wrong = sum(has(one) for one in new.tolist()) / COUNT
        report(name, lambda has=has: [has(one) for one in new.tolist()], lambda add=add: [add(one) for one in new.tolist()], wrong)  # type: ignore[misc]
        del filter


def _rbloom() -> tuple[Any, Any, Any]:
    import rbloom

    filter = rbloom.Bloom(FULL * 2, 0.001)
    return filter, filter.add, filter.__contains__


def _abloom() -> tuple[Any, Any, Any]:
    import abloom

    filter = abloom.BloomFilter(FULL * 2, 0.001)
    return filter, filter.add, filter.__contains__


if __name__ == "__main__":
    main()
