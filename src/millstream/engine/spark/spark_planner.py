"""Where Spark plans: its own offset log, read where it is a local folder, says what a batch consists of, and whether there is anything in it.

This is the path of sources that only Spark can read. Nothing new is to depend on it.

Entry N is written before epoch N runs: a version, a line about the batch, then one line per source in the order of the plan; the ticking
source comes last. A source whose line equals that of entry N-1 has nothing new. Where the log cannot be read, the answer is
the safe one: assume that there are records, and do not compare.
"""

from __future__ import annotations

import hashlib
import json
import os
import urllib.parse
from collections.abc import Mapping, Sequence

from millstream.core.topology import Injector
from millstream.engine.plan import Range, Reading
from millstream.errors import CheckpointError
from millstream.state.heartbeat import Backlog
from millstream.state.manifest import Manifest, SourcePosition


class SparkOffsets:
    """The entries under one folder (None: out of reach)."""

    def __init__(self, folder: str | None, injectors: Sequence[str]) -> None:
        self._folder = folder
        self._injectors = list(injectors)

    def newest(self) -> int | None:
        """The last epoch that Spark has planned; None if there is none, or the log is out of reach."""
        if self._folder is None or not os.path.isdir(self._folder):
            return None
        return max((int(name) for name in os.listdir(self._folder) if name.isdigit()), default=None)

    def behind(self, epoch: int) -> bool:
        """Whether the log is in reach and yet does not know an epoch that was committed."""
        newest = self.newest()
        return self._folder is not None and (newest is None or newest < epoch)

    def _entry(self, epoch: int) -> list[str] | None:
        if self._folder is None:
            return None
        try:
            with open(os.path.join(self._folder, str(epoch)), encoding="utf-8") as handle:
                lines = handle.read().split("\n")
        except OSError:
            return None
        return lines if lines[0] == "v1" and len(lines) == len(self._injectors) + 3 else None

    def reading(self, number: int) -> Reading:
        """What a batch reads. The wall clock at which Spark planned it is the same for a driver that runs it again after a crash."""
        entry, before = self._entry(number), self._entry(number - 1)
        if entry is None:
            return Reading(batch=number)
        ends = entry[2:-1]
        starts = before[2:-1] if before is not None else [None] * len(ends)
        return Reading(
            batch=number,
            planned_at=_planned_at(entry[1]),
            ranges={name: Range(start, end) for name, start, end in zip(self._injectors, starts, ends, strict=True)},
            digest=hashlib.blake2b("\n".join(ends).encode(), digest_size=8).hexdigest(),
        )


def _planned_at(line: str) -> int | None:
    try:
        return int(json.loads(line)["batchTimestampMs"])
    except (ValueError, KeyError, TypeError):
        return None


class SparkPlanner:
    """What the driver asks of sources that Spark plans. files: of injectors whose watermark follows them."""

    is_ours = False

    def __init__(self, offsets: SparkOffsets, injectors: Mapping[str, Injector], files: Mapping[str, SourceFiles]) -> None:
        self.reading, self._injectors, self._files = offsets.reading, injectors, files

    def parts(self, injector: str) -> tuple[Mapping[str, int], set[str]]:
        return self._files[injector].now()

    def backlogs(self) -> Mapping[str, Backlog]:
        return {}  # Spark knows, and does not say

    def acknowledge(self, batch: int, positions: Mapping[str, SourcePosition]) -> None:
        told = [injector for injector in self._injectors.values() if injector.source.is_acknowledged]
        ranges = self.reading(batch).ranges if told else None
        for injector in told:
            if ranges is None:
                raise CheckpointError(
                    f"injected stream {injector.name!r}: {injector.source.describe()} must be told what is committed, and Spark's offset log cannot be "
                    f"read. Keep Spark's checkpoint in a local folder, with run(..., spark_checkpoint=...)."
                )
            injector.source.acknowledge(ranges[injector.name].end)

    def took_over(self, manifest: Manifest) -> None:
        """Spark's log says what was read."""

    def close(self) -> None:
        """Nothing is open."""


class SourceFiles:
    """The files of a file source, and those that Spark has read: from the log that the source keeps in Spark's checkpoint. Entries of that log hold a version
    and then one JSON object per file; every tenth is a compact one that repeats all before it."""

    def __init__(self, folder: str, log: str) -> None:
        self._folder, self._log = folder, log
        self._seen: set[str] = set()
        self._read: set[str] = set()

    def now(self) -> tuple[dict[str, int], set[str]]:
        """All files with their times of modification in milliseconds, and the set of those that some epoch has been planned with."""
        files: dict[str, int] = {}
        for entry in os.scandir(self._folder):
            if entry.is_file() and not entry.name.startswith((".", "_")):
                files[os.path.realpath(entry.path)] = int(entry.stat().st_mtime * 1000)
        for name in os.listdir(self._log) if os.path.isdir(self._log) else ():
            if name in self._seen or name.startswith("."):
                continue
            with open(os.path.join(self._log, name), encoding="utf-8") as handle:
                for line in handle.read().split("\n")[1:]:
                    if line:
                        path = urllib.parse.unquote(urllib.parse.urlparse(json.loads(line)["path"]).path)
                        self._read.add(os.path.realpath(path))
            self._seen.add(name)
        return files, self._read
