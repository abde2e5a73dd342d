"""Live state: every answer is what the reader says of that epoch, whatever is committed, folded, collected, renamed or removed meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from livekit import Checkpoint, got, header, run, scanned, served

from effort import some
from millstream.errors import DamageError, NotReady, RefusedRequest, Stale
from millstream.service.proto import service_pb2 as pb


def test_a_row_and_where_it_is_from(tmp_path):
    world = Checkpoint()
    world.tables["C"].low = 7
    world.put(C={"a": b"1"})

    async def main() -> None:
        async with served(world.storage, replicas=tmp_path) as live:
            found = await got(live, "a", "b")
            assert list(found.values) == [world.rows_at(0)[b"a"], b""] and list(found.versions) == [1, 0]
            assert (found.at.epoch, found.at.lsn, found.at.low_watermark) == (0, 0, 7)
            world.put(C={"a": b"2", "b": b"3"})
            found = await got(live, "a", "b", table="p/C")
            assert list(found.values) == [world.rows_at(1)[b"a"], world.rows_at(1)[b"b"]] and found.at.epoch == 1
            assert await scanned(live) == (1, world.rows_at(1))

    run(main)
