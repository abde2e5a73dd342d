"""Tables, views and joins for a terminal. Rendered from data (`relations.py`, `tables.py`), with the rules of `view.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from millstream.readable.relations import ShownRow
from millstream.status.render import columns, size
from millstream.status.report import FillStatus, Relations, RelationStatus
from millstream.views.dsl import JOIN, TABLE, VIEW


def listed(found: Relations) -> RenderableType:
    """All of a checkpoint, a line each."""
    if not found.relations:
        return Text(f"epoch {found.epoch}: no table, view or join")
    table = columns("name", "kind", numbers=["rows", "contributions", "generation", "log"])
    table.add_column("  what", overflow="fold")
    for one in found.relations:
        contributions = "" if one.contributions is None else f"{one.contributions:,}"
        table.add_row(
            escape(one.name),
            one.kind,
            f"{one.rows:,}",
            contributions,
            str(one.generation) if one.generation else "-",
            size(one.log_bytes),
            Text(f"  {said(one)}"),
        )
    filling = [Text(f"{one.name}: {progress(one.fill, one.senders)}") for one in found.relations if one.fill is not None]
    return Group(Text(f"epoch {found.epoch}"), "", table, *([""] if filling else []), *filling)


def said(one: RelationStatus) -> str:
    """What was defined, in a line.

    >>> said(RelationStatus("names", "view", 1, 1, about={"of": "users", "by": "'name'", "reducer": "count()"}))
    "users by 'name': count()"
    """
    about = one.about
    if one.kind == TABLE:
        return f"{about.get('reads', '')} by {about.get('key', '')}"
    if one.kind == JOIN:
        return f"{about.get('of', '')} with {about.get('with', '')}, {about.get('how', '')}"
    return f"{about.get('of', '')} by {about.get('by', '')}: {about.get('reducer', '')}"


def progress(fill: FillStatus, senders: Sequence[str]) -> str:
    """How far a fill is, in words."""
    if fill.waits_for:
        return f"generation {fill.generation} is being filled when {', '.join(fill.waits_for)} is complete"
    if fill.what == "cutting over":
        return f"generation {fill.generation} is complete, and is cut over to in the next epoch"
    share = f" ({100 * fill.rows / fill.of:.0f} %)" if fill.of else ""
    rows = f"{fill.rows:,} of {fill.of:,} rows of {', '.join(senders)}{share}, {fill.rows_per_second:,.0f} rows/s"
    return f"generation {fill.generation} is being filled: {rows}"


def explained(found: Sequence[RelationStatus]) -> RenderableType:
    """How tables, views and joins are laid out, and what an update of them costs."""
    parts: list[RenderableType] = []
    for one in found:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, text in facts(one):
            grid.add_row(name, Text(text))
        parts += [*([""] if parts else []), Text(f"{one.kind} {one.name}", style="bold"), grid]
    return Group(*parts)


def facts(one: RelationStatus) -> list[tuple[str, str]]:
    """What there is to say of one, by topic."""
    about, found = one.about, list[tuple[str, str]]()
    if one.kind == TABLE:
        found.append(("reads", f"{about.get('reads', '')}, by {about.get('key', '')}; versions: {about.get('versions', '')}"))
        found += [("columns", about["columns"])] if "columns" in about else []
        found.append(("rows", f"{one.rows:,} documents, {one.changes:,} changes, {one.stale:,} stale versions"))
    elif one.kind == JOIN:
        found.append(("derives from", f"{about.get('of', '')}, with {about.get('with', '')} ({about.get('how', '')})"))
        found.append(("rows", f"{one.rows:,} keys of the right side, {one.changes:,} changes"))
    else:
        found.append(("derives from", f"{about.get('of', '')}, by {about.get('by', '')}"))
        found.append(("reducer", f"{about.get('reducer', '')}; nodes above the leaves: {about.get('nodes', '')}"))
        found.append(
            ("origins", f"{about.get('origins', '')}: {one.contributions:,} contributions in {one.rows:,} groups, {one.changes:,} changes")
        )
        found.append(("layout", _layout(one)))
    if one.kind != TABLE:
        found.append(("per update", _per_update(one)))
    found.append(("stage", f"{one.stage} of an epoch's job" + (", in the epoch after its senders'" if one.is_strong else "")))
    found.append(("generation", str(one.generation) if one.generation else "none is complete yet"))
    found += [("fill", progress(one.fill, one.senders))] if one.fill is not None else []
    found += [("mismatches", f"{one.mismatches:,}: `millstream check-view` says whether anything is wrong")] if one.mismatches else []
    return found


def _layout(one: RelationStatus) -> str:
    large = sum(one.depths.values())
    text = f"{max(0, one.rows - large):,} groups in one row each (up to {one.about.get('inline', '?')} bytes)"
    deep = ", ".join(f"{count:,} of depth {depth}" for depth, count in one.depths.items())
    return f"{text}; {large:,} with leaves: {deep}" if large else text


def _per_update(one: RelationStatus) -> str:
    text = f"{one.messages:,} messages" + (
        "" if one.messages_per_change is None else f", {one.messages_per_change:.2f} per change of {', '.join(one.senders)}"
    )
    if one.kind != VIEW:
        return text
    if one.most_entries == 1:
        return f"{text}; each reads and writes one entry"
    return f"{text}; each reads and writes one entry in a group of one row, and per document at most {one.most_entries} in the deepest"


def rows(name: str, epoch: int, found: Sequence[ShownRow], versions: bool, more: str = "") -> RenderableType:
    """Rows of a table, view or join."""
    table = columns("key", "value", *(["version"] if versions else []))
    for row in found:
        table.add_row(Text(repr(row.key)), Text(repr(row.value)), *([Text(repr(row.version))] if versions else []))
    end = f"{name}, epoch {epoch}: {len(found):,} {'row' if len(found) == 1 else 'rows'}{more}"
    return Group(table, "", Text(end)) if found else Text(end)


def contributions(view: str, group: Any, epoch: int, found: Mapping[Any, Sequence[Any]], limit: int) -> RenderableType:
    """What each document gives to a group."""
    table = columns("document", "gives")
    for origin, parts in list(found.items())[:limit]:
        table.add_row(Text(repr(origin)), Text(", ".join(map(repr, parts))))
    more = f", the first {limit:,} of them here" if len(found) > limit else ""
    return Group(table, "", Text(f"{view}, group {group!r}, epoch {epoch}: {len(found):,} documents{more}"))
