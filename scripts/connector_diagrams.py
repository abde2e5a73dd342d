"""Draws the state diagrams of the connector from the tables that the sessions look things up in, and puts them into docs/connector.md.

`python scripts/connector_diagrams.py` rewrites them; `tests/connector/test_connector_docs.py` checks that they are up to date.
"""

from __future__ import annotations

import re
from pathlib import Path

from millstream.connector.sink.protocol import session as sink_session
from millstream.connector.sink.protocol import worker_session
from millstream.connector.wire.messages import Error, Frame

PAGE = Path(__file__).parent.parent / "docs" / "connector.md"

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
        if end is not worker_session.State.CLOSED
    ]
    return diagram(sent + received)


def drawn(page: str) -> str:
    """The page with its diagrams drawn anew."""
    for name, picture in (("sink", sink()), ("worker", worker())):
        page, count = re.subn(
            rf"(<!-- diagram: {name} -->\n).*?(?=<!-- end -->)", lambda found, p=picture: f"{found[1]}{p}\n", page, flags=re.DOTALL
        )  # type: ignore[misc]
        assert count == 1, f"the page has no place for the diagram of the {name}"
    return page


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
