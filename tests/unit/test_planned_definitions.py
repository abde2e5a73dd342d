"""What is refused of a run whose sources are planned, before anything is written."""

from __future__ import annotations

import pytest
from plannedkit import Passes

import millstream as ms
from millstream.engine.spark.run_builder import MOST, _limit, _reader
from millstream.errors import DefinitionError


def test_a_watermark_of_files_needs_files() -> None:
    p = ms.Pipeline("kit")
    stream = p.inject("in", ms.sources.rate(10), timestamp="timestamp", watermark=ms.watermarks.files(lambda path, modified: modified))
    p.compute(Passes, stream, key="value", produces="out")
    topology = p.program().topology
    with pytest.raises(DefinitionError, match=r"injected stream 'in': watermarks.files needs ms.sources.files"):
        _reader(topology.injectors["in"], topology)


@pytest.mark.parametrize("limited", [True, False])
def test_a_source_that_declares_its_watermark_to_a_callable_is_read_to_its_end_in_every_epoch(limited: bool) -> None:
    """Else what it had delivered when it spoke would be late, in a backlog of more than one epoch."""
    p = ms.Pipeline("kit")
    policy = ms.watermarks.bounded("1s") if limited else ms.watermarks.declared(lambda: 5)
    p.compute(Passes, p.inject("in", ms.sources.rate(10), timestamp="timestamp", watermark=policy), key="value", produces="out")
    topology = p.program().topology
    planned = {"in": _reader(topology.injectors["in"], topology)}
    _limit(planned, topology)
    assert planned["in"].reader.most == (MOST if limited else None)
