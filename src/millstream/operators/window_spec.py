"""What a window operator is to do, as plain data."""

from __future__ import annotations

import msgspec

from millstream.core.links import Link
from millstream.operators.windows import WindowKind
from millstream.reducers.base import Reducer


class WindowSpec(msgspec.Struct, frozen=True):
    """fields: the names of what the key is made of; None: it is made by a function, and shown as `key`. links: by stream, what comes before."""

    kind: WindowKind
    reducers: dict[str, Reducer]
    fields: tuple[str, ...] | None = None
    links: dict[str, tuple[Link, ...]] = {}
