"""How much a test tries: all of it, or with `make quick` (which sets MILLSTREAM_QUICK) about a tenth."""

from __future__ import annotations

import os

QUICK = bool(os.environ.get("MILLSTREAM_QUICK"))
_LEAST = 10


def some(count: int) -> int:
    """How many seeds, examples or rounds to try of so many."""
    return min(count, max(_LEAST, count // 10)) if QUICK else count
