"""What parts of the state say of themselves, where whoever hears it need not know the part."""

from __future__ import annotations

import msgspec


class StateCacheStats(msgspec.Struct, frozen=True):
    """A state cache: its size on disk, its entries, and how often this process loaded it anew, brought it up to date, and applied a segment."""

    bytes: int
    entries: int
    loads: int
    catch_ups: int
    segments: int
