"""Filters in front of the ids held: ours, on a whole column of hashes at once, against filters from PyPI.

Those that are installed: `pip install rbloom abloom`.

Each is asked about, and then given, 100,000 ids in a filter of a million; false positives are counted. Theirs get the ids as Python objects, one by one
or as a list, because that is what they take: making those objects from the column is part of their time. The last line is one JSON object: our
time over theirs, for those that are installed.
"""

from __future__ import annotations

import json
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


def main() -> dict[str, float]:
    result: dict[str, float] = {}
    dice = np.random.default_rng(1)
    old, new = dice.integers(0, 2**64, FULL, np.uint64), dice.integers(0, 2**64, COUNT, np.uint64)

    def report(name: str, ask: Callable[[], Any], add: Callable[[], Any], wrong: float) -> tuple[float, float]:
        found = best(ask), best(add)
        print(f"{name:14s} ask {found[0]:6.0f} ns   add {found[1]:6.0f} ns   false positives {wrong:.3%}", flush=True)
        return found

    ours = Filter(FULL)
    ours.add(old)
    wrong = float(ours.may_have(new).mean())
    ask, add = report("ours (numpy)", lambda: ours.may_have(new), lambda: ours.add(new), wrong)
    for name, make in (("rbloom", _rbloom), ("abloom", _abloom)):
        try:
            filter, put, has = make()
        except ImportError:
            print(f"{name:14s} not installed")
            continue
        for one in old.tolist():
            put(one)
        wrong = sum(has(one) for one in new.tolist()) / COUNT
        theirs = report(name, lambda has=has: [has(one) for one in new.tolist()], lambda put=put: [put(one) for one in new.tolist()], wrong)  # type: ignore[misc]
        result.update({f"filter_ask_vs_{name}": round(ask / theirs[0], 2), f"filter_add_vs_{name}": round(add / theirs[1], 2)})
        del filter
    print(json.dumps(result))
    return result


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
