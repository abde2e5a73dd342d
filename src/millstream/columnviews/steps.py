"""Which step runs a table or a view. Whoever only looks at pipelines needs no Arrow: it is imported when the first step is made."""

from __future__ import annotations

from typing import Any

KINDS = frozenset(["table", "view"])


def step_of(kind: str) -> Any:
    """The step of a table or a view; None for what is neither."""
    if kind not in KINDS:
        return None
    from millstream.columnviews.table_step import TableStep
    from millstream.columnviews.view_step import ViewStep

    return TableStep if kind == "table" else ViewStep
