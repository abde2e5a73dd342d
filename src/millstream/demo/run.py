"""The demo from nothing to the picture: traffic, pipeline, report.

Rules
1. A run on a directory where another was killed goes on from there: traffic that is complete is kept, the pipeline resumes from its
   checkpoint, and report and picture are made anew from the output. A run that has ended is only reported again.
2. `fresh` removes what the demo made in the directory, by name, and nothing else. A kill in the midst of it leaves no traffic that
   looks complete and is not.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import msgspec
from rich.console import Console

from millstream.demo import picture, report
from millstream.demo.traffic import Traffic, write
from millstream.demo.zeitgeist import build

FULL = Traffic()
SMALL = Traffic(terms=200, seconds=300, rate=300.0, spikes=12, dips=4, files=20)

_ENDED = ".ended"
_MADE = (_ENDED, "checkpoint", "anomalies", "forecasts", "zeitgeist.png", ".queries.unfinished", "truth.json", ".truth.json.unfinished")


def run(output: Path, seed: int = 7, small: bool = False, fresh: bool = False, console: Console | None = None) -> int:
    """Runs the demo in a directory. Returns 0, or 1 if the directory holds another demo's traffic."""
    console = console or Console()
    output.mkdir(parents=True, exist_ok=True)
    if fresh:
        _clear(output)
    traffic = msgspec.structs.replace(SMALL if small else FULL, seed=seed)
    started = time.monotonic()
    try:
        truth = write(traffic, output / "queries", output / "truth.json")
    except ValueError as error:
        console.print(f"{error}", style="red", highlight=False, markup=False)
        return 1
    _say(console, f"{truth.queries:,} queries of {traffic.terms:,} terms are in {output / 'queries'}", started)

    if not (output / _ENDED).exists():
        started = time.monotonic()
        pipeline = build(output / "queries", output, tracked=picture.tracked(truth), until=traffic.end)
        pipeline.run(checkpoint=str(output / "checkpoint"), available_now=True).await_termination()
        (output / _ENDED).touch()
        _say(console, "the pipeline has processed them", started)

    found = report.make(output, truth)
    report.show(found, truth, console)
    try:
        drawn = picture.draw(output, truth, found, output / "zeitgeist.png")
        console.print(f"The picture is {drawn}; what was found is in {output / 'anomalies'}.", highlight=False)
    except ImportError as error:
        console.print(f"No picture: {error}", style="yellow", highlight=False, markup=False)
    return 0


def _clear(output: Path) -> None:
    if (output / "queries").is_dir():
        shutil.rmtree(output / ".queries.unfinished", ignore_errors=True)
        (output / "queries").rename(output / ".queries.unfinished")
    for name in _MADE:
        path = output / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _say(console: Console, what: str, started: float) -> None:
    console.print(f"{what} ({time.monotonic() - started:.1f} s)", style="dim", highlight=False)
