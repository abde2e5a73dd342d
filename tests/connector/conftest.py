"""Fixtures of the connector's tests. Everything stays on the loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sinkkit import Nursery, SinkProcess


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def sink(nursery: Nursery, tmp_path: Path) -> Iterator[SinkProcess]:
    """A sink in a process of its own, with files."""
    with SinkProcess(nursery, tmp_path / "sink") as process:
        yield process
