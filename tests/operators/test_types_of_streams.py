"""What a type checker, and so an editor, knows of a stream's values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROGRAM = """
from dataclasses import dataclass
from typing import Any, assert_type

import millstream as ms
from millstream.operators.streams import Keyed, Stream


@dataclass
class Click:
    page: str
    price: int


class Told(ms.Computation):
    def process_record(self, record: ms.Record[Click]) -> None:
        self.produce(record.value.price)


p = ms.Pipeline("typed")
source = ms.sources.files("clicks/", schema="page string, price long, at long")
clicks = p.inject("clicks", source, timestamp="at", value=Click)
assert_type(clicks, Stream[Click])
assert_type(clicks.filter(lambda r: r.value.price > 3), Stream[Click])
assert_type(clicks.filter("price > 3"), Stream[Click])
assert_type(clicks.map(lambda r: r.value.price), Stream[int])
assert_type(clicks.flat_map(lambda r: r.value.page.split("/")), Stream[str])
assert_type(clicks.map(lambda r: r.value.page).merge(clicks.map(lambda r: r.value.price)), Stream[str | int])
assert_type(clicks.by("page").filter(lambda r: r.value.price > 3), Keyed[Click])
assert_type(clicks.by("page").deduplicate(within="1m", name="first"), Stream[Click])
assert_type(clicks.by(lambda r: r.value.page).in_order(name="ordered"), Stream[Click])
assert_type(p.inject("rows", source, timestamp="at"), Stream[Any])
assert_type(clicks.map({"twice": "price * 2"}), Stream[Any])
p.compute(Told, clicks, key="page")
"""


def errors(program: str, tmp_path: Path) -> list[tuple[int, str]]:
    from mypy import api

    file = tmp_path / "program.py"
    file.write_text(program)
    printed, trouble, _ = api.run(["--strict", "--cache-dir", str(tmp_path / "cache"), "--follow-imports=silent", str(file)])
    assert not trouble
    return [(int(line), text) for line, text in re.findall(r"program\.py:(\d+): error: (.*)", printed)]


@pytest.mark.slow
def test_types_go_from_inject_to_where_records_are_used_and_wrong_fields_are_found(tmp_path: Path) -> None:
    wrong = "clicks.filter(lambda r: r.value.prise > 3)\nclicks.by('page').map(lambda r: r.value.pages)\n"
    found = errors(PROGRAM + wrong, tmp_path)
    lines = len(PROGRAM.splitlines())
    assert [line for line, _ in found if line <= lines] == []
    assert {line: text for line, text in found if "has no attribute" in text}.keys() == {lines + 1, lines + 2}, found
