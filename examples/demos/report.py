"""What was found against what was injected.

Rules
1. A found anomaly matches an injected one of the same term and kind if it begins within it, or at most `GRACE` after its end.
2. Each matches at most one: a second alarm in the same period is a false one.
3. The delay is the event time from the injected begin to the end of the bucket at which the detector was sure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from demos import DAY
from demos.traffic import HiddenAnomaly, Truth

GRACE = 3_000


class Found(msgspec.Struct, frozen=True):
    """An anomaly that the pipeline found: when the detector was sure, since when, and when it saw the end (None if it never did).

    `actual` and `expected` are the queries from the first suspicion until the detector was sure.
    """

    term: str
    kind: str
    at: int
    since: int
    end: int | None
    actual: int
    expected: float


class Report(msgspec.Struct, frozen=True):
    """The matching. `matched` pairs every injected anomaly with what was found of it, or None."""

    matched: list[tuple[HiddenAnomaly, Found | None]]
    false: list[Found]

    @property
    def hits(self) -> int:
        """How many injected anomalies were found."""
        return sum(found is not None for _, found in self.matched)

    @property
    def recall(self) -> float:
        """The share of the injected that was found. 1 if nothing was injected."""
        return self.hits / len(self.matched) if self.matched else 1.0

    @property
    def precision(self) -> float:
        """The share of the found that was injected. 1 if nothing was found."""
        raised = self.hits + len(self.false)
        return self.hits / raised if raised else 1.0

    @property
    def delays(self) -> list[int]:
        """The delays of what was found, in milliseconds of event time."""
        return [found.at - injected.begin for injected, found in self.matched if found is not None]


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a directory of JSON lines, in order of timestamp."""
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    rows = [decode(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().splitlines() if line]
    return sorted(rows, key=lambda row: row["timestamp"])


def pair(events: Iterable[dict[str, Any]]) -> list[Found]:
    """Joins each begin with the end that follows it. Events of one term must be in order of time."""
    open_at: dict[str, int] = {}
    found: list[Found] = []
    for event in events:
        term = event["term"]
        if event["event"] == "begin":
            open_at[term] = len(found)
            found.append(
                Found(
                    term=term,
                    kind=event["kind"],
                    at=event["at"],
                    since=event["since"],
                    end=None,
                    actual=event["actual"],
                    expected=event["expected"],
                )
            )
        elif term in open_at:
            index = open_at.pop(term)
            found[index] = msgspec.structs.replace(found[index], end=event["at"])
    return found


def match(injected: Sequence[HiddenAnomaly], found: Sequence[Found]) -> Report:
    """Holds the found against the injected, the earliest first."""
    left = sorted(found, key=lambda f: (f.at, f.term))
    matched: list[tuple[HiddenAnomaly, Found | None]] = []
    for wanted in sorted(injected, key=lambda i: (i.begin, i.term)):
        hit = next(
            (f for f in left if f.term == wanted.term and f.kind == wanted.kind and wanted.begin <= f.at <= wanted.end + GRACE), None
        )
        if hit is not None:
            left.remove(hit)
        matched.append((wanted, hit))
    return Report(matched, left)


def make(output: Path, truth: Truth) -> Report:
    """The report of a run's output directory."""
    events = sorted((row["value"] for row in read_rows(output / "anomalies")), key=lambda value: value["at"])
    return match(truth.injected, pair(events))


def show(report: Report, truth: Truth, console: Console, limit: int = 12) -> None:
    """Prints the first anomalies, all that was missed or false, and the figures. Times are seconds of the demo, as in the picture.

    The columns marked + say how long after the injected begin and end the detector had seen them.
    """
    start = truth.traffic.begin
    table = Table(
        title="Zeitgeist: what was injected, and when it was found",
        title_style="bold",
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for heading in ("term", "kind"):
        table.add_column(heading, no_wrap=True)
    for heading in ("injected", "lasts", "begin +", "end +", "queries", "usual"):
        table.add_column(heading, justify="right", no_wrap=True)
    shown = 0
    for injected, found in report.matched:
        if found is not None and shown >= limit:
            continue
        shown += found is not None
        table.add_row(*_cells(injected, found, start))
    for found in report.false:
        table.add_row(
            found.term,
            kind_text(found.kind),
            Text("never", style="red"),
            "",
            _seconds(found.at - start),
            "",
            str(found.actual),
            f"{found.expected:.0f}",
        )
    console.print(table)
    hidden = report.hits - shown
    if hidden > 0:
        console.print(f"… and {hidden} more that were found.", style="dim")
    console.print(
        f"Times are seconds of the demo. Its traffic lasts {truth.traffic.seconds} s, and a day of the demo is {DAY // 1_000} s: the rhythm of a term comes "
        f"again after {DAY // 1_000} s. Begin + and end + are how long after the injected begin and end the detector was sure; queries "
        f"and usual are those from the "
        f"first suspicion until then.",
        style="dim",
        highlight=False,
        soft_wrap=not console.is_terminal,
    )
    delays = report.delays
    delay = f", delay {_seconds(median(delays))} s in the median and {_seconds(max(delays))} s at most" if delays else ""
    console.print(
        f"{truth.queries:,} queries of {truth.traffic.terms:,} terms. {len(report.matched)} anomalies injected, {report.hits} found, "
        f"{len(report.false)} false: [bold]precision {report.precision:.2f}, recall {report.recall:.2f}[/bold]{delay}.",
        highlight=False,
        soft_wrap=not console.is_terminal,
    )


def _cells(injected: HiddenAnomaly, found: Found | None, start: int) -> list[str | Text]:
    left: list[str | Text] = [
        injected.term,
        kind_text(injected.kind),
        _seconds(injected.begin - start),
        _seconds(injected.end - injected.begin),
    ]
    if found is None:
        return [*left, Text("missed", style="red"), "", "", ""]
    end = "" if found.end is None else _seconds(found.end - injected.end)
    return [*left, _seconds(found.at - injected.begin), end, str(found.actual), f"{found.expected:.0f}"]


def kind_text(kind: str) -> Text:
    """The kind of an anomaly, with its sign and colour."""
    return Text("▲ spike", style="red") if kind == "spike" else Text("▼ dip", style="blue")


def _seconds(millis: float) -> str:
    return f"{millis / 1_000:.1f}"
