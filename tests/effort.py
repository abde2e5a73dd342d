"""How much a test tries: a quarter of it with `make test`, about a tenth with `make quick` (MILLSTREAM_QUICK), all with `make soak` (MILLSTREAM_FULL). And
with which seeds.

Seeds begin where the commit's hash says, so that every commit tries others. A failing run prints how to repeat its seeds: MILLSTREAM_SEED=N.
"""

from __future__ import annotations

import os
import subprocess
from functools import lru_cache
from pathlib import Path

QUICK = bool(os.environ.get("MILLSTREAM_QUICK"))
FULL = bool(os.environ.get("MILLSTREAM_FULL"))
_MANY = 1_000_000


def some(count: int, least: int = 10) -> int:
    """How many seeds, examples or rounds to try of so many; `least` of them with `make quick` too."""
    return min(count, max(least if QUICK else 10, count // (10 if QUICK else 1 if FULL else 4)))


@lru_cache
def first_seed() -> int:
    """Where the seeds of this run begin."""
    given = os.environ.get("MILLSTREAM_SEED")
    if given:
        return int(given)
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False).stdout
    return int(found[:12] or "0", 16) % _MANY


def seeds(count: int) -> range:
    """So many seeds, others at every commit."""
    return range(first_seed(), first_seed() + some(count))
