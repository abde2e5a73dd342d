"""What a person sees of committed rows: a table of the first, or single ones whole. Of a window operator, what it has open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.pretty import pretty_repr
from rich.table import Table
from rich.text import Text

from millstream.core.record import Timer
from millstream.core.time import LOW_WATERMARK
from millstream.operators.pane_rows import UnmergedParts
from millstream.readable.listing import Listing, MapView, Opaque, OpenWindows, RowView
from millstream.status.render import columns, counted, cut, moment

_FEW = 3


def listing(found: Listing) -> RenderableType:
    """Several rows, cut to what fits a table."""
    keys = len(found.rows) if found.keys is None else found.keys
    parts: list[RenderableType] = [Text(f"{found.computation}, epoch {found.epoch}: {counted(keys, 'key')}{_windows(found.windows)}")]
    if found.rows and found.windows is not None:
        parts += ["", _open_panes(found.rows, found.windows)]
    elif found.rows:
        parts.append("")
        table = columns("key", "state", "timers and holds" if any(row.hold is not None for row in found.rows) else "timers")
        for row in found.rows:
            state = [] if row.is_map else [cut(_shown(row.state))]
            maps = [cut(text) for view in row.maps for text in _map_lines(view)]
            timers = [_timer(timer) for timer in row.timers[:_FEW]]
            if len(row.timers) > _FEW:
                timers.append(f"and {len(row.timers) - _FEW:,} more")
            if row.hold is not None:
                timers.append(f"{moment(row.hold)} held")
            table.add_row(Text(cut(repr(row.key))), Text("\n".join(state + maps)), Text("\n".join(timers)))
        parts.append(table)
    hidden = keys - len(found.rows)
    if hidden > 0:
        parts.append(Text(f"\n{hidden:,} more: --limit N shows more of them, --key K one of them whole", style="dim"))
    return Group(*parts)


def rows(found: Listing) -> RenderableType:
    """Single rows, whole."""
    parts: list[RenderableType] = [Text(f"{found.computation}, epoch {found.epoch}")]
    for row in found.rows:
        parts += ["", _card(row) if found.windows is None else _open_card(row, found.windows)]
    return Group(*parts)


def _windows(found: OpenWindows | None) -> str:
    """What a window operator has open, behind the number of its keys."""
    if found is None:
        return ""
    said = "" if found.panes is None else f", {counted(found.panes, f'open {_pane(found)}')}"
    return f"{said} of {found.window}{'; a pane is a part of several windows' if found.is_hopping else ''}"


def _pane(found: OpenWindows) -> str:
    return "pane" if found.is_hopping else "window"


def _open_panes(found: Sequence[RowView], windows: OpenWindows) -> Table:
    table = columns("key", f"open {_pane(windows)}s", "so far")
    for row in found:
        for at, pane in enumerate(row.state[:_FEW]):
            table.add_row(Text("" if at else cut(repr(row.key))), Text(_span_of(pane)), Text(cut(_so_far(pane))))
        if len(row.state) > _FEW:
            table.add_row("", f"and {len(row.state) - _FEW:,} more", "")
    return table


def _open_card(row: RowView, windows: OpenWindows) -> RenderableType:
    card = Table.grid(padding=(0, 2))
    card.add_column(style="dim", no_wrap=True)
    card.add_column(overflow="fold")
    card.add_row("key", Text(f"{row.key!r}  ({type(row.key).__name__}, shard {row.shard})"))
    for pane in row.state:
        card.add_row(_pane(windows), Text(f"{_span_of(pane)}\n{_so_far(pane)}"))
    return card


def _span_of(pane: dict[str, Any]) -> str:
    return f"{moment(pane['start'])} to {moment(pane['end'])}"


def _so_far(pane: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_shown(value)}" for name, value in pane.items() if name not in ("start", "end"))


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
    if row.hold is not None:
        card.add_row("hold", moment(row.hold))
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
    held = "" if timer.hold is None else f", holds {moment(timer.hold)}"
    return f"{moment(timer.time)} {timer.tag!r} ({kind}{held})"


def _shown(value: Any, whole: bool = False) -> str:
    if isinstance(value, Opaque):
        return f"[{value}]"
    if isinstance(value, UnmergedParts):
        return f"[parts that only the pipeline can merge: {', '.join(map(_shown, value.parts))}]"
    try:
        return pretty_repr(value, max_width=88) if whole else repr(value)
    except Exception as error:
        return f"[a {type(value).__name__} whose repr raises {type(error).__name__}]"
