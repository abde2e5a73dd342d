"""The page about the connector cannot drift from the code: its diagrams are drawn from the tables, its tags are the codec's."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from millstream.connector import SinkStats
from millstream.connector.wire import codec

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "connector.md"


def test_the_diagrams_are_those_of_the_tables() -> None:
    spec = importlib.util.spec_from_file_location("connector_diagrams", ROOT / "scripts" / "connector_diagrams.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for name in script.PICTURES:
        page = (ROOT / "docs" / name).read_text()
        assert script.drawn(page, name) == page, "run python scripts/connector_diagrams.py"
    assert "Prepared --> Ready: PHASE2 (committed)" in PAGE.read_text()
    assert set(script.PICTURES["pushing.md"]) == {"server", "server-stream", "client", "client-stream"}


def test_the_tables_of_the_page_have_every_tag() -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z0-9_]+) \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(int(tag) for tag, _ in rows) == sorted(codec._FORMS)


def test_the_page_explains_everything_that_a_sink_counts() -> None:
    section = PAGE.read_text().split("## What a sink counts")[1].split("\n## ")[0]
    assert [name for name in SinkStats.__struct_fields__ if f"`{name}`" not in section] == []
