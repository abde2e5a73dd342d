"""All benchmarks, each in a process of its own, one after the other. The last line is one JSON object with the ratios."""

from __future__ import annotations

import json
import subprocess
import sys


def main() -> None:
    ratios: dict[str, float] = {}
    for name in ("throughput", "guarantees", "latency", "growth"):
        print(f"== {name}", flush=True)
        process = subprocess.Popen([sys.executable, "-m", f"benchmarks.{name}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line
        if process.wait():
            sys.exit(f"benchmarks.{name} failed; run it by itself to see why")
        ratios.update(json.loads(last))
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
