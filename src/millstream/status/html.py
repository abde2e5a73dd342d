"""What a notebook shows of a pipeline: the tables of `render`, as HTML. Everything that comes from outside is escaped."""

from __future__ import annotations

from html import escape
from typing import Any

from millstream.status import modes
from millstream.status.render import moment, span
from millstream.status.report import Status


def _table(titles: list[str], rows: list[list[Any]]) -> str:
    head = "".join(f"<th style='text-align:left'>{escape(title)}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td style='text-align:left'>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def status(found: Status) -> str:
    """A status."""
    head = f"<b>{escape(found.pipeline)}</b> {escape(found.state)}"
    if found.epoch < 0:
        return f"<div>{head}: no epoch is committed yet</div>"
    speed = f"{found.records_per_second:,.0f} records/s, {found.epoch_millis:,.0f} ms per epoch"
    mode = f"<br>{escape(modes.words(found.mode))}; {escape(modes.phases(found.mode))}" if found.mode.name == "resident" else ""
    waits = mode + f"<br>waiting for {escape(found.waits_for)}" * bool(found.waits_for)
    rows = [
        [
            c.name,
            moment(c.low_watermark),
            span(c.lag),
            f"{c.keys:,}",
            f"{c.timers:,}",
            f"{c.records:,}",
            f"{c.late:,}",
            f"{c.produced:,}",
            str(c.held_back_by),
        ]
        for c in found.computations
    ]
    table = _table(["computation", "low watermark", "lag", "keys", "timers", "records", "late", "produced", "held back by"], rows)
    return f"<div>{head}, epoch {found.epoch}, {found.records:,} records, {speed}{waits}{table}</div>"
