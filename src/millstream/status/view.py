"""What a person sees of a pipeline: tables for a terminal, and a plain line for a log.

Rules
1. Everything is rendered from data (`Status`, `Overview`, `Listing`) and nothing is read here.
2. Event time is shown in UTC. Keys are shown as Python writes them: the string '7' and the number 7 are two keys.
3. Numbers are never cut: where a table does not fit, there is a paragraph for each of its rows instead.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.padding import Padding
from rich.pretty import pretty_repr
from rich.table import Table
from rich.text import Text

from millstream.core.record import Timer
from millstream.core.time import BEGINNING, LOW_WATERMARK, describe
from millstream.status.inspect import Listing, MapView, Opaque, Overview, RowView
from millstream.status.report import ComputationStatus, InjectorStatus, Status

_FEW = 3
_SHORT = 160


def overview(found: Overview) -> RenderableType:
    """A checkpoint: who wrote it and when, its injectors, its computations."""
    status = found.status
    head = Text.assemble((status.pipeline, "bold"), f"  {found.checkpoint}", "\n")
    if found.token is None:
        return head.append("No epoch is committed yet.")
    head.append(f"epoch {status.epoch}, committed {moment(status.committed_at)} UTC ({_ago(status.committed_at)}) by run {found.token}\n")
    drained = "drained: event time has ended" if status.drained else "not drained"
    head.append(f"{_count(status.records, 'record')} injected, {_count(found.shards, 'shard')}, {drained}")
    return Group(head, "", _Injectors(status.injectors), "", _Computations(status.computations))


def progress(status: Status) -> RenderableType:
    """A pipeline that runs, for a view that is drawn again and again."""
    head = Text.assemble((status.pipeline, "bold"), "  ", (status.state, "green" if status.state == "running" else "yellow"))
    if status.epoch < 0:
        return head.append("  waiting for the first epoch")
    speed = f"{status.records_per_second:,.0f}/s  {status.epoch_millis:,.0f} ms per epoch"
    head.append(f"  epoch {status.epoch}  {_count(status.records, 'record')}  {speed}")
    return Group(head, "", _Computations(status.computations))


def line(status: Status) -> str:
    """A pipeline that runs, in one line for a log."""
    if status.epoch < 0:
        return f"{status.pipeline}: waiting for the first epoch"
    low = min((c.low_watermark for c in status.computations), default=BEGINNING)
    lag = max((c.lag for c in status.computations if c.lag is not None), default=None)
    parts = [
        f"epoch {status.epoch}",
        _count(status.records, "record"),
        f"{status.records_per_second:,.0f}/s",
        f"{status.epoch_millis:,.0f} ms per epoch",
        f"low watermark {describe(low)}" + ("" if lag is None else f" (lag {span(lag)})"),
        _count(sum(c.keys for c in status.computations), "key"),
        _count(sum(c.timers for c in status.computations), "timer"),
    ]
    late = sum(c.late for c in status.computations)
    return f"{status.pipeline}: " + ", ".join(parts + ([f"{late:,} late"] if late else []))


def changes(status: Status) -> tuple[Any, ...]:
    """What makes a new line worth printing: two idle epochs give the same."""
    return (
        status.epoch < 0,
        status.records,
        tuple((c.low_watermark, c.keys, c.timers, c.records, c.fired, c.produced) for c in status.computations),
    )


def listing(found: Listing) -> RenderableType:
    """Several rows, cut to what fits a table."""
    parts: list[RenderableType] = [Text(f"{found.computation}, epoch {found.epoch}: {_count(found.keys, 'key')}")]
    if found.rows:
        parts.append("")
        table = _table("key", "state", "timers")
        for row in found.rows:
            state = [] if row.is_map else [_cut(_shown(row.state))]
            maps = [_cut(text) for view in row.maps for text in _map_lines(view)]
            timers = [_timer(timer) for timer in row.timers[:_FEW]]
            if len(row.timers) > _FEW:
                timers.append(f"and {len(row.timers) - _FEW:,} more")
            table.add_row(Text(_cut(repr(row.key))), Text("\n".join(state + maps)), Text("\n".join(timers)))
        parts.append(table)
    hidden = found.keys - len(found.rows)
    if hidden > 0:
        parts.append(Text(f"\n{hidden:,} more: --limit N shows more of them, --key K one of them whole", style="dim"))
    return Group(*parts)


def rows(found: Listing) -> RenderableType:
    """Single rows, whole."""
    parts: list[RenderableType] = [Text(f"{found.computation}, epoch {found.epoch}")]
    for row in found.rows:
        parts += ["", _card(row)]
    return Group(*parts)


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


def _table(*columns: str, numbers: Iterable[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), collapse_padding=True, header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    return table


class _Fitting:
    """A table where it fits, else a paragraph per row."""

    def table(self) -> Table:
        raise NotImplementedError

    def paragraphs(self) -> Iterable[tuple[str, str]]:
        raise NotImplementedError

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self.table()
        if console.measure(table, options=options.update(width=10_000)).maximum <= options.max_width:
            yield table
            return
        for name, text in self.paragraphs():
            yield Text(name, style="bold")
            yield Padding(Text(text), (0, 0, 0, 2))


class _Injectors(_Fitting):
    def __init__(self, found: Sequence[InjectorStatus]) -> None:
        self.found = found

    def table(self) -> Table:
        table = _table("injector", "watermark", "newest timestamp", numbers=["records"])
        for one in self.found:
            table.add_row(escape(one.name), moment(one.watermark), moment(one.newest), f"{one.records:,}")
        return table

    def paragraphs(self) -> Iterable[tuple[str, str]]:
        for one in self.found:
            yield one.name, f"watermark {moment(one.watermark)}, newest timestamp {moment(one.newest)}, {_count(one.records, 'record')}"


class _Computations(_Fitting):
    def __init__(self, found: Sequence[ComputationStatus]) -> None:
        self.found = found

    def table(self) -> Table:
        table = _table("computation", "low watermark", numbers=["lag", "keys", "timers", "records", "late", "fired", "produced", "log"])
        for one in self.found:
            counts = [f"{n:,}" for n in (one.keys, one.timers, one.records, one.late, one.fired, one.produced)]
            table.add_row(escape(one.name), moment(one.low_watermark), span(one.lag), *counts, size(one.log_bytes))
        return table

    def paragraphs(self) -> Iterable[tuple[str, str]]:
        for one in self.found:
            lag = "" if one.lag is None else f", lag {span(one.lag)}"
            parts = [
                _count(one.keys, "key"), _count(one.timers, "timer"), _count(one.records, "record"),
                f"{one.late:,} late", f"{one.fired:,} fired", f"{one.produced:,} produced", f"log {size(one.log_bytes)}",
            ]  # fmt: skip
            yield one.name, f"low watermark {moment(one.low_watermark)}{lag}\n" + ", ".join(parts)


def _card(row: RowView) -> RenderableType:
    card = Table.grid(padding=(0, 2))
    card.add_column(style="dim", no_wrap=True)
    card.add_column(overflow="fold")
    card.add_row("key", Text(f"{row.key!r}  ({type(row.key).__name__}, shard {row.shard})"))
    if not row.is_map:
        card.add_row("state", Text(_shown(row.state, whole=True)))
    for view in row.maps:
        card.add_row(escape(view.field) or "state", Text("\n".join(_map_lines(view, named=False))))
    if row.is_map and not row.maps:
        card.add_row("state", "an empty map")
    card.add_row("timers", Text("\n".join(map(_timer, row.timers)) or "none"))
    return card


def _map_lines(view: MapView, named: bool = True) -> list[str]:
    name = f"{view.field}: " if named and view.field else ""
    some = "" if view.entries == len(view.first) else f", the first {len(view.first)}:"
    return [
        f"{name}{view.entries:,} map {'entry' if view.entries == 1 else 'entries'}{some}",
        *(f"  {key!r}: {_shown(value)}" for key, value in view.first),
    ]


def _timer(timer: Timer) -> str:
    kind = "low watermark" if timer.kind == LOW_WATERMARK else "wall clock"
    return f"{moment(timer.time)} {timer.tag!r} ({kind})"


def _shown(value: Any, whole: bool = False) -> str:
    if isinstance(value, Opaque):
        return f"[{value}]"
    try:
        return pretty_repr(value, max_width=88) if whole else repr(value)
    except Exception as error:
        return f"[a {type(value).__name__} whose repr raises {type(error).__name__}]"


def _ago(at: int | None) -> str:
    return "never" if at is None else f"{span(max(0, int(time.time() * 1000) - at))} ago"


def _cut(text: str) -> str:
    return text if len(text) <= _SHORT else text[: _SHORT - 1] + "…"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
