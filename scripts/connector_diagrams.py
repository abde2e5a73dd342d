"""Draws the state diagrams of the connector from the tables that the sessions look things up in, and puts them into docs/connector.md and
docs/pushing.md.

`python scripts/connector_diagrams.py` rewrites them; `tests/connector/test_connector_docs.py` checks that they are up to date.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from millstream.connector.sink.protocol import session as sink_session
from millstream.connector.sink.protocol import worker_session
from millstream.connector.source.protocol import push_session
from millstream.connector.source.protocol import session as source_session
from millstream.connector.wire.messages import Error, Frame

DOCS = Path(__file__).parent.parent / "docs"

#: How the wire calls what the code calls by the name of a class.
NAMES = {
    "Hello": "HELLO",
    "Ok": "OK",
    "Error": "ERROR",
    "Notify": "NOTIFY",
    "NotifyAck": "NOTIFY_ACK",
    "Message": "MESSAGE",
    "Ack": "ACK",
    "Restart": "RESTART",
    "Eos": "EOS",
    "ListUncommitted": "LIST_UNCOMMITTED",
    "ReplyUncommitted": "REPLY_UNCOMMITTED",
    "Phase1": "PHASE1",
    "Vote": "REPLY",
    "Phase2": "PHASE2",
    "WorkersLeft": "WORKERS_LEFT",
}


def named(kind: type[Frame]) -> str:
    return NAMES[kind.__name__]


def diagram(arrows: list[tuple[str, str, str]]) -> str:
    """Arrows between the same two states share a line."""
    together: dict[tuple[str, str], list[str]] = {}
    for start, end, label in arrows:
        together.setdefault((start, end), []).append(label)
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> Initial"]
    lines += [f"    {start} --> {end}: {', '.join(labels)}" for (start, end), labels in together.items()]
    return "\n".join([*lines, "```"])


def sink() -> str:
    return diagram(
        [
            (state.value, end.value, named(kind) + (f" ({outcome})" if len(cell) > 1 else ""))
            for state, row in sink_session.TABLE.items()
            for kind, cell in row.items()
            for outcome, end in cell.items()
            if kind is not Error
        ]
    )


def worker() -> str:
    sent = [(state.value, end.value, f"send {named(kind)}") for state, row in worker_session.SENT.items() for kind, end in row.items()]
    received = [
        (state.value, end.value, named(kind) + (f" ({outcome})" if len(cell) > 1 else ""))
        for state, row in worker_session.RECEIVED.items()
        for kind, cell in row.items()
        for outcome, end in cell.items()
        if end is not worker_session.WorkerState.CLOSED
    ]
    return diagram(sent + received)


def each(*tables: tuple[str, Mapping[Enum, Mapping[Any, Any]]]) -> str:
    """An arrow a line, of tables that share their states; each comes with a sign to put before its messages."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {next(iter(tables[0][1])).value}"]
    for sign, table in tables:
        for state, cells in table.items():
            for kind, outcomes in cells.items():
                named_outcomes = outcomes if isinstance(outcomes, dict) else {kind: outcomes}
                label = named(kind) if isinstance(kind, type) else ""
                for outcome, after in named_outcomes.items():
                    said = " ".join(part for part in (sign, label, f"({outcome})" if sign or label else outcome) if part)
                    lines.append(f"    {state.value} --> {after.value}: {said}")
    return "\n".join([*lines, "```"])


#: page -> diagram -> picture
PICTURES: dict[str, dict[str, str]] = {
    "connector.md": {"sink": sink(), "worker": worker()},
    "pushing.md": {
        "server": each(("", source_session.SERVER)),
        "server-stream": each(("", source_session.SERVER_STREAM), ("commit", source_session.COMMITTED)),
        "client": each(("send", push_session.CLIENT_SENT), ("hear", push_session.CLIENT_RECEIVED)),
        "client-stream": each(("send", push_session.CLIENT_STREAM_SENT), ("hear", push_session.CLIENT_STREAM_RECEIVED)),
    },
}


def drawn(page: str, name: str) -> str:
    """The page of this name with its diagrams drawn anew."""
    for diagram_name, picture in PICTURES[name].items():
        place = rf"(<!-- diagram: {diagram_name} -->\n).*?(?=<!-- end -->)"
        page, count = re.subn(place, lambda found, p=picture: f"{found[1]}{p}\n", page, flags=re.DOTALL)  # type: ignore[misc]
        assert count == 1, f"{name} has no place for the diagram {diagram_name}"
    return page


if __name__ == "__main__":
    for page in PICTURES:
        (DOCS / page).write_text(drawn((DOCS / page).read_text(), page))
