"""The documentation is true: its examples run, its links lead somewhere, the files and names it speaks of exist.

Every ```python block of a page is executed, in order, in one module per page, without Spark. A block after a line `<!-- not run -->` is
only compiled.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import millstream as ms
from millstream import faults

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

#: Files that the pages name and that are still being written.

_BLOCK = re.compile(r"(?P<mark><!-- not run -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PATH = re.compile(r"`((?:tests|src|docs|benchmarks|examples)/[\w./-]*)`")


def blocks(text: str, language: str) -> Iterator[tuple[int, str, bool]]:
    """(line, code, whether it is run) of every block of a language."""
    for found in _BLOCK.finditer(text):
        if found["language"] == language:
            yield text[: found.start("code")].count("\n") + 1, found["code"], found["mark"] is None


def prose(text: str) -> str:
    return _BLOCK.sub("", text)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture
def module() -> Iterator[ModuleType]:
    made = ModuleType("millstream_docs_example")
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def execute(page: Path, module: ModuleType) -> int:
    count = 0
    for line, code, is_run in blocks(page.read_text(), "python"):
        compiled = compile("\n" * (line - 1) + code, str(page), "exec")
        if is_run:
            exec(compiled, module.__dict__)
            count += 1
    return count


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name: str, module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    count = execute(ROOT / name, module)
    assert count or "```python" not in prose((ROOT / name).read_text()), "every example is marked as not run"
    assert not list(tmp_path.iterdir()), "examples leave nothing behind"


def test_the_first_program_puts_out_what_the_readme_shows(module: ModuleType) -> None:
    text = (ROOT / "README.md").read_text()
    execute(ROOT / "README.md", module)
    rows = [json.loads(line) for _, code, _ in blocks(text, "sh") for line in code.splitlines() if line.startswith("{")]
    shown = [json.loads(line) for _, code, _ in blocks(text, "json") for line in code.splitlines()]
    runner = ms.testing.LocalRunner(module.pipeline)
    runner.push("queries", *rows)
    runner.drain()
    made = [{"key": key, "timestamp": timestamp, "value": value} for key, value, timestamp in runner.output("counts")]
    assert rows and sorted(map(str, made)) == sorted(map(str, shown))


@pytest.mark.parametrize("name", NAMES)
def test_relative_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    for link in _LINK.findall(prose(page.read_text())):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{name} links to {link}, but {target.name} has no such heading"


@pytest.mark.parametrize("name", NAMES)
def test_files_that_are_named_exist(name: str) -> None:
    missing = {path for path in _PATH.findall((ROOT / name).read_text()) if not (ROOT / path).exists()}
    assert not missing


def test_every_page_of_docs_is_in_the_index_and_the_readme() -> None:
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages <= {link.partition("#")[0] for link in _LINK.findall((ROOT / "docs" / "index.md").read_text())}
    assert pages <= {Path(link.partition("#")[0]).name for link in _LINK.findall((ROOT / "README.md").read_text())}


def test_the_crash_table_has_every_crash_point_in_order() -> None:
    rows = re.findall(r"^\| `((?:epoch|task)\.[\w-]+)` \|", (ROOT / "docs" / "guarantees.md").read_text(), re.MULTILINE)
    assert rows == list(faults.POINTS)


def test_every_public_name_is_mentioned() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    assert [name for name in ms.__all__ if not re.search(rf"\bms\.{name}\b", text)] == []
    assert [name for name in ms.sinks.__all__ if name.islower() and f"ms.sinks.{name}" not in text] == []
    assert [name for name in ms.sources.__all__ if name.islower() and f"ms.sources.{name}" not in text] == []


def test_every_error_is_explained() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    assert [name for name in ms.errors.BY_NAME if f"| `{name}` |" not in text] == []


def test_every_command_and_make_target_exists() -> None:
    from millstream.cli.entry import parser

    text = "\n".join(page.read_text() for page in PAGES)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)\b(?=`|  | #)", text)) <= targets
    known = parser().format_help()
    for command in set(re.findall(r"`millstream ([a-z]+)", text)):
        assert re.search(rf"^\s+{command}\b", known, re.MULTILINE), command
