"""All benchmarks, each in a process of its own, one after the other. The last line is one JSON object with what all of them found.

Every module here that can be run is one of `PARTS`, but for `compare` (and `once`, a side of it): that needs another version to compare with.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

PARTS = (
    "throughput",
    "operators",
    "views",
    "epoch",
    "small_epochs",
    "hooks",
    "guarantees",
    "latency",
    "growth",
    "lookahead",
    "filters",
    "connector",
    "live",
    "service",
    "connections",
    "watched",
)


def main() -> None:
    found: dict[str, float] = {}
    for name in PARTS:
        print(f"== {name}", flush=True)
        found.update(run(name))
    print(json.dumps(found))


def run(name: str) -> dict[str, float]:
    """Runs one part, shows what it prints, and returns its last line."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{name}"], cwd=Path(__file__).parent.parent, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout is not None
        last = ""
        for last in process.stdout:
            print(last, end="", flush=True)
        if process.wait():
            errors.seek(0)
            sys.exit(f"benchmarks.{name} failed. The last of what it said:\n{errors.read()[-4000:]}")
    told: dict[str, float] = json.loads(last)
    return told


if __name__ == "__main__":
    main()
