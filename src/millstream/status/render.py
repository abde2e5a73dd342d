"""What a person sees of a pipeline: tables for a terminal, and a plain line for a log.

Rules
1. Everything is rendered from data (`Status`, `Overview`; rows in `render_rows.py`) and nothing is read here.
2. Event time is shown in UTC. Keys are shown as Python writes them: the string '7' and the number 7 are two keys.
3. Numbers are never cut: where a table does not fit, there is a paragraph for each of its rows instead.
4. What is not there is not shown: no column of zeros for dead letters, no paragraph about late records where none was late.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from millstream.core.time import BEGINNING, END, describe
from millstream.state.heartbeat import RunMode
from millstream.status.report import ComputationStatus, InjectorStatus, Overview, Status, WindowStatus

_SHORT = 160
_NOTEBOOK = 160  # columns
_LONG = 10_000  # milliseconds at one key, after which that is worth a colour
_SHOWN = 0.05  # milliseconds
_SAME_CLOCK = 60_000  # milliseconds: an epoch takes some time from its plan to its commit


def overview(found: Overview) -> RenderableType:
    """A checkpoint: who wrote it and when, its injectors, its computations, what holds them back and what went astray."""
    status = found.status
    head = Text.assemble((status.pipeline, "bold"), f"  {found.checkpoint}", "\n")
    if found.token is None:
        return head.append("No epoch is committed yet.")
    head.append(
        f"epoch {status.epoch}, committed {moment(status.committed_at)} UTC ({_ago(status.committed_at)}) by run {found.token}{_clock(status)}\n"
    )
    head.append(f"{driver(found)}\n")
    drained = "drained: event time has ended" if status.drained else "not drained"
    head.append(f"{counted(status.records, 'record')} injected, {counted(found.shards, 'shard')}, {drained}{_refused(status)}")
    parts: list[RenderableType] = [head, "", _injectors(status.injectors), "", _computations(status.computations)]
    tasks = _mode_details(found.last_sign.mode) if found.alive and found.last_sign is not None and found.last_sign.mode.tasks else []
    return Group(*parts, *_details(status), *tasks, *_late_records(status.computations))


def _clock(status: Status) -> str:
    """The epoch's own clock, where it is not that of the commit."""
    if status.clock is None or status.committed_at is None or abs(status.committed_at - status.clock) < _SAME_CLOCK:
        return ""
    return f"; its clock (self.now) is {moment(status.clock)}"


def driver(found: Overview) -> str:
    """Whether a driver is at work on a checkpoint, as far as its last sign of life tells."""
    sign = found.last_sign
    if sign is None:
        return "driver: no sign of life"
    where = f"process {sign.pid} on {sign.host}"
    if found.alive:
        waits = f"; it waits for {sign.waits_for}" if sign.waits_for else ""
        speed = f"{sign.records_per_second:,.0f} records/s, {sign.epoch_millis:,.0f} ms per epoch"
        stuck = "".join(f"\n{text}" for text in _stuck(sign.mode))
        return f"driver: alive, {where}, last sign of life {_ago(sign.at)}; {mode_words(sign.mode)}, {speed}{waits}{stuck}"
    if sign.state == "running":
        return f"driver: silent, {where}, last sign of life {_ago(sign.at)}: it was killed, or its host is gone. The next run goes on from here"
    return f"driver: {sign.state} {_ago(sign.at)} ({where})"


def progress(status: Status) -> RenderableType:
    """A pipeline that runs, for a view that is drawn again and again."""
    head = Text.assemble((status.pipeline, "bold"), "  ", (status.state, "green" if status.state == "running" else "yellow"))
    if status.epoch < 0:
        return head.append("  waiting for the first epoch" + (f", for {status.waits_for}" if status.waits_for else ""))
    speed = f"{status.records_per_second:,.0f}/s  {status.epoch_millis:,.0f} ms per epoch"
    head.append(f"  epoch {status.epoch}  run {status.run}  {counted(status.records, 'record')}  {speed}{_refused(status)}")
    if status.mode.name == "resident":
        head.append(f"\n{mode_words(status.mode)}", style="dim")
    if status.waits_for:
        head.append(f"\nwaiting for {status.waits_for}", style="dim")
    return Group(head, "", _computations(status.computations), *_details(status), *_mode_details(status.mode))


def html(what: RenderableType) -> str:
    """What a notebook shows: the same as a terminal. Everything that comes from outside is escaped."""
    console = Console(record=True, file=io.StringIO(), width=_NOTEBOOK, highlight=False, force_jupyter=False)
    console.print(what)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def line(status: Status) -> str:
    """A pipeline that runs, in one line for a log."""
    if status.epoch < 0:
        return f"{status.pipeline}: waiting for {status.waits_for or 'the first epoch'}"
    if status.waits_for:
        return f"{status.pipeline}: epoch {status.epoch}, {counted(status.records, 'record')} so far, waiting for {status.waits_for}"
    low = min((c.low_watermark for c in status.computations), default=BEGINNING)
    lag = max((c.lag for c in status.computations if c.lag is not None), default=None)
    parts = [
        f"epoch {status.epoch}",
        counted(status.records, "record"),
        f"{status.records_per_second:,.0f}/s",
        f"{status.epoch_millis:,.0f} ms per epoch",
        f"low watermark {describe(low)}" + ("" if lag is None else f" (lag {span(lag)})"),
    ]
    if any(c.windows is None and c.kept is None for c in status.computations):
        parts += [counted(sum(c.keys for c in status.computations), "key"), counted(sum(c.timers for c in status.computations), "timer")]
    if any(c.windows is not None for c in status.computations):
        parts.append(counted(sum(c.windows.partial_results for c in status.computations if c.windows is not None), "partial result"))
    if any(c.kept is not None for c in status.computations):
        parts.append(counted(sum(c.kept for c in status.computations if c.kept is not None), "record") + " kept for a join")
    late = sum(c.late for c in status.computations)
    waiting = sum(c.waiting for c in status.computations)
    dead = sum(c.dead_letters for c in status.computations)
    dropped = sum(c.dedup.dropped for c in status.computations if c.dedup is not None)
    parts += [f"{late:,} late"] if late else []
    parts += [counted(dropped, "duplicate") + " dropped"] if dropped else []
    parts += [f"{waiting:,} waiting"] if waiting else []
    parts += [counted(dead, "dead letter")] if dead else []
    parts += [str(one) for one in status.fills]
    parts += [mode_words(status.mode)] if status.mode.losses or status.mode.missing else []
    parts += _stuck(status.mode)
    parts += [f"stored: {name}" for name, edge in status.edges.items() if edge.stored]
    return f"{status.pipeline}: " + ", ".join(parts)


def changes(status: Status) -> tuple[Any, ...]:
    """What makes a new line worth printing: two idle epochs give the same."""
    return (
        status.epoch < 0,
        status.waits_for,
        status.records,
        tuple(
            (c.low_watermark, c.keys, c.timers, c.records, c.fired, c.produced, c.waiting, c.windows, c.kept) for c in status.computations
        ),
        tuple(name for name, edge in status.edges.items() if edge.stored),
        tuple((one.name, one.what, one.rows) for one in status.fills),
        (status.mode.generation, status.mode.losses, tuple(status.mode.missing), tuple(_stuck(status.mode))),
    )


def _details(status: Status) -> list[RenderableType]:
    """Which windows are open, what joins keep, what holds time back, what deduplication did, what adaptive edges do."""
    parts: list[RenderableType] = []
    windows = [(c.name, _oldest(c.windows)) for c in status.computations if c.windows is not None]
    if windows:
        parts += ["", _pairs("window operator", "open windows", windows)]
    joins = [(c.name, counted(c.kept, "record")) for c in status.computations if c.kept is not None]
    if joins:
        parts += ["", _pairs("join", "kept for partners to come", joins)]
    waiting = [(c.name, str(c.held_back_by)) for c in status.computations if c.held_back_by.text and c.low_watermark < END]
    if waiting:
        parts += ["", _pairs("computation", "held back by", waiting)]
    if any(c.dedup is not None for c in status.computations):
        parts += ["", _deduplication(status.computations)]
    if status.fills:
        rows = [
            (one.name, f"{one.what} build {one.generation}: {one.rows:,} of {one.of:,} rows, {one.rows_per_second:,.0f} rows/s")
            for one in status.fills
        ]
        parts += ["", _pairs("view", "being filled", rows)]
    tallied = [(c.name, ", ".join(f"{name} {n:,}" for name, n in sorted(c.tallies.items()))) for c in status.computations if c.tallies]
    if tallied:
        parts += ["", _pairs("computation", "counted", tallied)]
    if status.edges:
        parts += [
            "",
            _pairs(
                "adaptive edge",
                "delivery",
                [(name, f"stored: {edge.why}" if edge.stored else "weak") for name, edge in status.edges.items()],
            ),
        ]
    return parts


def _oldest(found: WindowStatus) -> str:
    """What a window operator has open.

    >>> _oldest(WindowStatus("tumbling('1m')", 60_000, 3)), _oldest(WindowStatus("tumbling('1m')", None, 0))
    ("tumbling('1m'): the oldest ends at 1970-01-01 00:01:00.000; 3 partial results", "tumbling('1m'): none")
    """
    if found.next_end is None:
        return f"{found.window}: none"
    return f"{found.window}: the oldest ends at {moment(found.next_end)}; {counted(found.partial_results, 'partial result')}"


def _late_records(found: Sequence[ComputationStatus]) -> list[RenderableType]:
    """Per computation with late records: how many by input, and the last of them."""
    parts: list[RenderableType] = []
    for one in found:
        if one.late:
            counts = ", ".join(f"{count:,} of {stream!r}" for stream, count in one.late_by.items())
            last = [
                f"{moment(late.timestamp)}, low watermark {moment(late.low_watermark)}, {late.stream!r}, key {late.key}: {cut(late.value)}"
                for late in one.last_late
            ]
            parts += ["", Text.assemble(("late in ", "dim"), one.name, f": {counts}" + (", the last of them:" if last else ""))]
            parts += [Padding(Text("\n".join(last)), (0, 0, 0, 2))] if last else []
    return parts


def _refused(status: Status) -> str:
    return f", {counted(status.refused, 'write')} of replaced runs refused" if status.refused else ""


def moment(at: int | None) -> str:
    """A point in time for a table, in UTC.

    >>> moment(1_500), moment(None), moment(BEGINNING)
    ('1970-01-01 00:00:01.500', '-', 'beginning')
    """
    text = describe(at)
    return text.replace("T", " ").removesuffix("Z") if text.endswith("Z") else text


def span(millis: int | None) -> str:
    """A length of time for people.

    >>> span(450), span(2_500), span(90_000), span(7_200_000), span(None)
    ('450 ms', '2.5 s', '1.5 min', '2.0 h', '-')
    """
    if millis is None:
        return "-"
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if millis >= size:
            return f"{millis / size:,.1f} {unit}"
    return f"{millis} ms"


def size(count: int) -> str:
    """A number of bytes for people.

    >>> size(800), size(2_048), size(5 << 20)
    ('800 B', '2.0 KiB', '5.0 MiB')
    """
    if count < 1024:
        return f"{count} B"
    power = min(4, (count.bit_length() - 1) // 10)
    return f"{count / 1024**power:,.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def columns(*columns: str, numbers: Iterable[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), collapse_padding=True, header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    return table


class _Fitting:
    """A table where it fits, else a paragraph per row. rows: the first cell names a row; one without further names belongs to the row above."""

    def __init__(self, titles: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[str]], last: str = "") -> None:
        self.titles, self.numbers, self.last = titles, numbers, last
        self.rows = list(rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = columns(*self.titles, numbers=self.numbers)
        if self.last:
            table.add_column(f"  {self.last}")
        for name, *cells in self.rows:
            table.add_row(
                Text(name),
                *map(Text, cells[: len(self.titles) + len(self.numbers) - 1]),
                *(Text(f"  {one}") for one in cells[-1:] if self.last),
            )
        if console.measure(table, options=options.update(width=10_000)).maximum <= options.max_width:
            yield table
            return
        titles = [*self.titles[1:], *self.numbers, *([self.last] if self.last else [])]
        for name, *cells in self.rows:
            yield Text(name, style="bold")
            told = ", ".join(f"{title} {cell}" for title, cell in zip(titles, cells, strict=True) if cell)
            yield Padding(Text(told), (0, 0, 0, 2))


def _injectors(found: Sequence[InjectorStatus]) -> _Fitting:
    rows = []
    for one in found:
        rows.append([one.name, moment(one.watermark), moment(one.newest), f"{one.records:,}", _holder(one)])
        rows += [[f"  {name!r}", moment(at), "", "", ""] for name, at in one.sub_sources.items()]
    return _Fitting(["injector", "watermark", "newest timestamp"], ["records"], rows, "held back by")


def _computations(found: Sequence[ComputationStatus]) -> _Fitting:
    rare = [field for field in ("waiting", "dead_letters") if any(getattr(one, field) for one in found)]
    counts = ["keys", "timers", "records", "late", "fired", "produced", *rare]
    rows = [
        [
            one.name,
            moment(one.low_watermark),
            span(one.lag),
            span(one.behind),
            *(
                "-" if (one.windows is not None or one.kept is not None) and field in ("keys", "timers") else f"{getattr(one, field):,}"
                for field in counts
            ),
            size(one.log_bytes),
        ]
        for one in found
    ]
    return _Fitting(["computation", "low watermark"], ["lag", "behind clock", *(field.replace("_", " ") for field in counts), "log"], rows)


def _deduplication(found: Sequence[ComputationStatus]) -> _Fitting:
    rows = [
        [c.name, *(f"{n:,}" for n in (c.dedup.checked, c.dedup.filtered, c.dedup.dropped, c.ids_held))]
        for c in found
        if c.dedup is not None
    ]
    return _Fitting(["deduplication"], ["ids checked", "by the filter alone", "dropped", "held"], rows)


def _pairs(what: str, title: str, found: Iterable[tuple[str, str]]) -> Table:
    """Names and a text each, which may wrap."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(what, no_wrap=True)
    table.add_column(title, overflow="fold")
    for name, text in found:
        table.add_row(escape(name), Text(text))
    return table


def _holder(one: InjectorStatus) -> str:
    return "" if one.watermark >= END else "nothing: it is idle" if one.idle else one.held_back_by


def _ago(at: int | None) -> str:
    return "never" if at is None else f"{span(max(0, int(time.time() * 1000) - at))} ago"


def cut(text: str) -> str:
    return text if len(text) <= _SHORT else text[: _SHORT - 1] + "…"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


# --- how epochs are run, and where their milliseconds go


def mode_words(mode: RunMode) -> str:
    """The mode in a few words.

    >>> from millstream.state.heartbeat import TaskSign
    >>> mode_words(RunMode("resident", generation=2, losses=1, tasks=[TaskSign(0, "host", 7, [0, 1])]))
    'resident, generation 2, 1 task, 1 loss'
    >>> mode_words(RunMode())
    'micro-batch'
    """
    if mode.name != "resident":
        return mode.name
    parts = [f"resident, generation {mode.generation}", f"{len(mode.tasks)} task{'' if len(mode.tasks) == 1 else 's'}"]
    if mode.missing:
        parts.append(f"waiting for task{'' if len(mode.missing) == 1 else 's'} {', '.join(map(str, mode.missing))}")
    if mode.losses:
        parts.append(f"{mode.losses:,} loss{'' if mode.losses == 1 else 'es'}")
    if mode.epochs_per_second:
        parts.append(f"{mode.epochs_per_second:,.1f} epochs/s")
    return ", ".join(parts)


def _phases(mode: RunMode) -> str:
    """Where the milliseconds of an epoch go; empty if that is not known.

    >>> _phases(RunMode(phases={"tasks": 3.256, "commit": 1.1, "upkeep": 0.001}))
    'an epoch: tasks 3.3 ms, commit 1.1 ms'
    """
    told = [f"{name} {millis:.1f} ms" for name, millis in mode.phases.items() if millis >= _SHOWN]
    return "an epoch: " + ", ".join(told) if told else ""


def _stuck(mode: RunMode) -> list[str]:
    """What tasks have been at for long: a hook that hangs shows here."""
    return [f"task {one.slot} has been at {one.at} for {one.millis / 1000:,.0f} s" for one in mode.tasks if one.at]


def _mode_details(mode: RunMode) -> list[RenderableType]:
    """Tasks and phases, for a view that is drawn again and again."""
    parts: list[RenderableType] = []
    if mode.tasks:
        table = columns("task", "host", "process", "shards", "memory", "at")
        for one in mode.tasks:
            at = Text(f"{one.at}, for {one.millis / 1000:,.0f} s" if one.at else "", style="yellow" if one.millis > _LONG else "")
            table.add_row(str(one.slot), one.host, str(one.pid), _ranges(one.shards), f"{one.memory >> 20:,} MB", at)
        parts += ["", table]
    where = _phases(mode)
    if where:
        parts += ["", Text(where, style="dim")]
    return parts


def _ranges(shards: list[int]) -> str:
    """Shards in few words.

    >>> _ranges([0, 2, 4, 6]), _ranges([1])
    ('0, 2, 4, 6', '1')
    >>> _ranges(list(range(0, 40, 2)))
    '0, 2, 4, ... 38 (20)'
    """
    if len(shards) <= 8:
        return ", ".join(map(str, shards))
    return f"{', '.join(map(str, shards[:3]))}, ... {shards[-1]} ({len(shards)})"
