"""The conversation in the docs is one that the server really has."""

from __future__ import annotations

import re
from pathlib import Path

from sourcekit import RawPusher
from waiting import until

from millstream.connector.intake import reader as intake_reader
from millstream.connector.source.server import SourceServer
from millstream.connector.wire.codec import decode, encode

PAGE = Path(__file__).parent.parent.parent / "docs" / "pushing.md"


def test_the_conversation_of_the_docs_is_what_the_server_says_byte_for_byte(tmp_path: Path) -> None:
    found = re.search(r"```frames\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    lines = [line.split() for line in found[1].splitlines()]
    with SourceServer(tmp_path, cookie="secret") as server, RawPusher(server.address) as raw:
        stored = 0
        for at, (side, name, frame) in enumerate(lines):
            wire = bytes.fromhex(frame)
            assert type(decode(wire[4:], two_phase=False)).__name__.upper() == name.replace("_", "")
            if side == ">":
                raw.send(wire)
                stored += name in ("MESSAGE", "EOS")
                continue
            if name == "ACK" and lines[at - 1][0] == ">":
                until(lambda: server.stats().received == stored)  # noqa: B023
                server.acknowledge(intake_reader.durable_end(tmp_path) or 0)
            heard = raw.hear()
            assert heard is not None and encode(heard) == wire, (name, heard)
