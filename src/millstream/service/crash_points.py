"""The crash points of a request's life, counted."""

from __future__ import annotations

from millstream import faults


class RequestPoints:
    """Counts the passages of each point, and has the process killed where a test wants it (`millstream.faults`)."""

    def __init__(self, spec: str) -> None:
        self._spec = spec
        self._seen: dict[str, int] = {}

    def __call__(self, name: str) -> None:
        if self._spec:
            self._seen[name] = count = self._seen.get(name, 0) + 1
            faults.point(name, count, self._spec)
