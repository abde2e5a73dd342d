"""What can be seen of a run from outside, from one moment to the next: its checkpoint, its output, and how far the undisturbed run is.

Only what is committed and published is seen, so what is shown survives a kill. Speeds are over two commits of one driver, by
the onlooker's clock (an epoch that is run again has the time of its first plan), and nothing is said of them when the last commit is long ago.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from demos.driver import CHECKPOINT
from demos.traffic import Truth
from demos.undisturbed import FOLDER
from millstream.core.time import BEGINNING, END
from millstream.errors import CheckpointError
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import open_storage
from millstream.status.report import Status, overview

UNDISTURBED_LOG = "undisturbed.log"

_LONG_AGO = 5.0


class Sighting(msgspec.Struct, frozen=True):
    """A run at one moment. epoch: the last one committed, or -1. second: up to which of the traffic's all is counted.

    found: begins of anomalies, those found last at the end: kind, term, second. undisturbed: files that the other run is through with.
    """

    epoch: int = -1
    records: int = 0
    per_second: float = 0.0
    epoch_seconds: float = 0.0
    second: int = 0
    terms: int = 0
    fired: int = 0
    found: tuple[tuple[str, str, float], ...] = ()
    undisturbed: int = 0
    undisturbed_ended: bool = False


class Onlooker:
    """Looks at an output directory, and reads only what is new."""

    def __init__(self, output: Path, truth: Truth) -> None:
        self._output = output
        self._traffic = truth.traffic
        self._log = ManifestLog(open_storage(output / CHECKPOINT))
        self._latest: Status | None = None
        self._latest_at = 0.0
        self._speed = (0.0, 0.0)
        self._read: set[str] = set()
        self._found: list[tuple[str, str, float]] = []

    def look(self) -> Sighting:
        """What is there now."""
        self._look_at_checkpoint()
        self._look_at_anomalies()
        done, ended = self._undisturbed()
        status = self._latest
        if status is None:
            return Sighting(found=tuple(self._found), undisturbed=done, undisturbed_ended=ended)
        speed = self._speed if time.monotonic() - self._latest_at < _LONG_AGO else (0.0, 0.0)
        low = min((one.low_watermark for one in status.computations), default=BEGINNING)
        traffic = self._traffic
        return Sighting(
            epoch=status.epoch,
            records=status.records,
            per_second=speed[0],
            epoch_seconds=speed[1],
            second=0 if low == BEGINNING else traffic.seconds if low == END else max(0, (low - traffic.begin) // 1_000),
            terms=max((one.keys for one in status.computations), default=0),
            fired=sum(one.fired for one in status.computations),
            found=tuple(self._found),
            undisturbed=done,
            undisturbed_ended=ended,
        )

    def _look_at_checkpoint(self) -> None:
        before = self._latest
        epochs = self._log.epochs()
        if not epochs or (before is not None and epochs[-1] == before.epoch):
            return
        try:
            self._latest = now = overview(self._log).status
        except CheckpointError:
            return
        seconds, self._latest_at = time.monotonic() - self._latest_at, time.monotonic()
        if before is not None and before.run == now.run and before.epoch < now.epoch:
            self._speed = (now.records - before.records) / seconds, seconds / (now.epoch - before.epoch)
        else:
            self._speed = (0.0, 0.0)

    def _look_at_anomalies(self) -> None:
        new = [path for path in (self._output / "anomalies").glob("*.jsonl") if path.name not in self._read]
        self._read.update(path.name for path in new)
        rows: list[dict[str, Any]] = [msgspec.json.decode(line)["value"] for path in new for line in path.read_bytes().splitlines()]
        begins = sorted((row for row in rows if row["event"] == "begin"), key=lambda row: (row["at"], row["term"]))
        self._found += [(row["kind"], row["term"], (row["at"] - self._traffic.begin) / 1_000) for row in begins]

    def _undisturbed(self) -> tuple[int, bool]:
        try:
            lines = (self._output / UNDISTURBED_LOG).read_bytes().count(b"\n")
        except FileNotFoundError:
            lines = 0
        return lines, (self._output / FOLDER).is_dir()
