"""A part: what one task has staged at one sink, as the manifest remembers it until it is published.

Engine and checkpoint ask its fields; what only the sink understands is its own.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Part(msgspec.Struct):
    """rows: how many there are. staged: the object that holds them, if they are in one: `sweep` keeps it while a manifest names it. in_checkpoint: that object
    lies in the checkpoint, and its collection keeps it. own: whatever else the sink wants to find again.

    >>> part = Part(rows=2, staged="_staging/7", own={"final": "counts-7.jsonl"})
    >>> part.rows, part.own["final"]
    (2, 'counts-7.jsonl')
    """

    rows: int = 0
    staged: str | None = None
    in_checkpoint: bool = False
    own: dict[str, Any] = {}
