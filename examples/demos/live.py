"""What a person sees while the demo runs: a view that moves in a terminal, lines in a pipe or a file.

Rules
1. Events (a start, a kill, an end) are lines with the time since the demo began, in both.
2. A terminal has a view below the lines. It is drawn several times a second by a thread of its own, so it moves while the demo works.
3. Without a terminal, progress is a line: when there is some, and at least every `SILENCE` seconds.
4. Times of the traffic are seconds of the demo, as in the table and the picture.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from demos.look import Sighting
from demos.report import kind_text
from demos.traffic import Truth

SILENCE = 5.0

_EVERY = 2.0  # seconds between two lines of progress
_SHOWN = 4


class Show:
    """The view of one run of the demo. Enter it, tell it events, and what was seen."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._started = time.monotonic()
        self._doing = "beginning"
        self._doing_since = self._started
        self._truth: Truth | None = None
        self._seen = Sighting()
        self._said = self._started
        self._line = ""
        self._spinner = Spinner("dots", style="green")
        self._live = Live(self, console=console, refresh_per_second=8, transient=True) if console.is_terminal else None
        self._ended = threading.Event()
        self._teller = threading.Thread(target=self._tell, name="demo-lines", daemon=True)

    def __enter__(self) -> Show:
        self._started = self._doing_since = self._said = time.monotonic()
        if self._live is not None:
            self._live.start()
        else:
            self._teller.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
        else:
            self._ended.set()
            self._teller.join()

    def event(self, text: str, style: str = "") -> None:
        """Something has happened."""
        self._print(text, style)

    def doing(self, text: str) -> None:
        """What the demo does from now on, until told otherwise."""
        self._doing, self._doing_since = text, time.monotonic()

    def about(self, truth: Truth) -> None:
        """What the traffic is, as soon as it is known."""
        self._truth = truth

    def seen(self, seen: Sighting) -> None:
        """What was last seen of the run."""
        self._seen = seen

    def _print(self, text: str, style: str = "") -> None:
        self._said = time.monotonic()
        when = f"{self._said - self._started:4.0f} s"
        if self._live is None:
            self.console.print(f"{when}  {text}", style=style, highlight=False, markup=False, soft_wrap=True)
            return
        line = Table.grid(padding=(0, 2))
        line.add_row(Text(when, style="dim"), Text(text, style=style))
        self.console.print(line)

    # --- without a terminal

    def _tell(self) -> None:
        while not self._ended.wait(0.25):
            quiet = time.monotonic() - self._said
            line = self._progress()
            if line != self._line and quiet >= _EVERY:
                self._line = line
                self._print(line)
            elif quiet >= SILENCE:
                self._print(f"{self._doing} ({time.monotonic() - self._doing_since:.0f} s)")

    def _progress(self) -> str:
        seen, truth = self._seen, self._truth
        if truth is None or seen.epoch < 0:
            return ""
        return (
            f"epoch {seen.epoch} is committed, {seen.records:,} of {truth.queries:,} queries ({_share(seen, truth):.0%}), "
            f"counted up to second {seen.second} of {truth.traffic.seconds}, {len(seen.found)} of {len(truth.injected)} anomalies found"
        )

    # --- in a terminal

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("")
        yield self._head()
        if self._truth is not None:
            yield self._body(self._truth)

    def _head(self) -> RenderableType:
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column()
        grid.add_column(ratio=1)
        grid.add_column(justify="right")
        waited = time.monotonic() - self._doing_since
        grid.add_row(
            self._spinner,
            Text.assemble(self._doing, (f"  {waited:.0f} s", "dim")),
            Text(f"{time.monotonic() - self._started:.0f} s", style="dim"),
        )
        return grid

    def _body(self, truth: Truth) -> RenderableType:
        seen, traffic = self._seen, truth.traffic
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(ratio=1)
        bar.add_column()
        speed = f", {seen.per_second:,.0f} a second" if seen.per_second else ""
        bar.add_row(
            ProgressBar(truth.queries, seen.records), f"{_share(seen, truth):4.0%}  {seen.records:,} of {truth.queries:,} queries{speed}"
        )
        facts = Table.grid(padding=(0, 2), expand=True)
        facts.add_column(style="dim", no_wrap=True)
        facts.add_column(overflow="ellipsis", no_wrap=True, ratio=1)
        facts.add_row("committed", f"{seen.epoch + 1} epochs: all is counted up to second {seen.second} of {traffic.seconds}")
        facts.add_row("state", f"{seen.terms:,} terms with a model each, {seen.fired:,} timers fired")
        facts.add_row("found", self._anomalies(len(truth.injected)))
        other = "has ended" if seen.undisturbed_ended else f"{min(1.0, seen.undisturbed / traffic.files):.0%}"
        facts.add_row("beside it", f"the same without Spark, for comparison: {other}")
        return Group(bar, facts)

    def _anomalies(self, injected: int) -> Text:
        text = Text(f"{len(self._seen.found)} of {injected} anomalies")
        for kind, term, at in reversed(self._seen.found[-_SHOWN:]):
            text.append("   ").append_text(kind_text(kind)).append(f" {term} {at:.0f}")
        return text


def _share(seen: Sighting, truth: Truth) -> float:
    return seen.records / truth.queries if truth.queries else 1.0
