"""A part: what one task has staged at one sink, as the manifest remembers it until it is published.

Engine and checkpoint ask its fields; what only the sink understands is its own.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping
from typing import Any

import msgspec


class Part(msgspec.Struct):
    """rows: how many there are. staged: the object that holds them, if they are in one: `sweep` keeps it while a manifest names it. in_checkpoint: that object
    lies in the checkpoint, and its collection keeps it. own: whatever else the sink wants to find again.

    >>> part = Part(rows=2, staged="_staging/7", own={"final": "counts-7.jsonl"})
    >>> part.rows, part["final"]
    (2, 'counts-7.jsonl')
    """

    rows: int = 0
    staged: str | None = None
    in_checkpoint: bool = False
    own: dict[str, Any] = {}

    # What sinks of version 0.1 do with a dict they can do with a part.

    def _all(self) -> dict[str, Any]:
        fields = {"rows": self.rows, "staged": self.staged, "in_checkpoint": self.in_checkpoint}
        return {**{name: value for name, value in fields.items() if value}, **self.own}

    def __getitem__(self, name: str) -> Any:
        """Something of the sink's own, or a field."""
        return self.own[name] if name in self.own else self._all()[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The same, or the default."""
        return self._all().get(name, default)

    def keys(self) -> KeysView[str]:
        """The names of what it has."""
        return self._all().keys()

    def items(self) -> ItemsView[str, Any]:
        """What it has, by name."""
        return self._all().items()

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __bool__(self) -> bool:
        return True

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Part:
        """From a plain dict, as sinks and manifests of version 0.1 had it."""
        own = {name: value for name, value in given.items() if name not in ("rows", "staged", "in_checkpoint")}
        return cls(
            rows=int(given.get("rows", 0)), staged=given.get("staged"), in_checkpoint=bool(given.get("in_checkpoint", False)), own=own
        )
