"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import millstream

ROOT = Path(millstream.__file__).parent
MODULES = sorted(
    ".".join(("millstream", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if ">>>" in path.read_text() and "engine/spark" not in path.as_posix()
)


def test_there_are_examples():
    assert "millstream.core.keys" in MODULES and len(MODULES) >= 8


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0
