"""What follows from a manifest: sinks are told, and leftovers are removed. Driver.

Rules
1. A sink is prepared before the manifest, and commits after it, epoch after epoch in their order. Both may be repeated with the same parts.
2. Nothing here decides: whatever is done follows from a manifest, so it can be done again, or elsewhere than in the path of the epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from millstream.engine.program import Program
from millstream.sinks.base import DriverContext
from millstream.state.manifest import Manifest, Part
from millstream.state.manifest_log import KEEP, ManifestLog


class Published(msgspec.Struct):
    """What one sink got from this run. What may have been there before a crash is not counted again."""

    place: str
    rows: int = 0
    parts: int = 0
    epochs: int = 0


class Publishing:
    """The sinks of one run."""

    def __init__(
        self, program: Program, log: ManifestLog, token: str, session: Callable[[], Any], point: Callable[[str, int], None]
    ) -> None:
        self._program = program
        self.log = log
        self._token = token
        self._session = session
        self._point = point
        self._sinks = {emission.name: emission.sink for emission in program.topology.emissions}
        self.published = {name: Published(sink.place()) for name, sink in self._sinks.items()}

    def prepare(self, manifest: Manifest) -> None:
        """Before the manifest: the last moment at which a sink can say no."""
        for name, sink in self._sinks.items():
            parts = manifest.sinks.get(name)
            if parts:
                sink.prepare(self._context(name), manifest.epoch, parts)

    def publish(self, manifest: Manifest, redo: bool, instead: Mapping[str, Sequence[Part]]) -> None:
        """After it. redo: it may have been done before. instead: what this run staged for an epoch that an outgoing run has committed before it."""
        for at, (name, parts) in enumerate(manifest.sinks.items()):
            if at:
                self._point("epoch.7-publishing", manifest.epoch)
            if name in self._sinks:
                self._sinks[name].commit(self._context(name, redo, instead.get(name, ())), manifest.epoch, parts)
                if not redo:
                    count = self.published[name]
                    count.rows += sum(part.rows for part in parts)
                    count.parts += len(parts)
                    count.epochs += 1
        self._point("epoch.7-published", manifest.epoch)

    def sweep(self, manifest: Manifest) -> None:
        for name, sink in self._sinks.items():
            waiting = manifest.waiting[name].parts if name in manifest.waiting else ()
            keep = [part.staged for part in (*manifest.sinks.get(name, ()), *waiting) if part.staged is not None]
            sink.sweep(self._context(name), manifest.epoch - KEEP, keep)

    def _context(self, emission: str, redo: bool = False, instead: Sequence[Part] = ()) -> DriverContext:
        return DriverContext(
            checkpoint=self.log.storage,
            pipeline=self._program.name,
            emission=emission,
            spark=self._session(),
            redo=redo,
            token=self._token,
            instead=list(instead),
        )
