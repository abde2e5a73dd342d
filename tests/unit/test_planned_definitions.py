"""What is refused of a run whose sources are planned, before anything is written."""

from __future__ import annotations

import pytest
from plannedkit import Passes

import millstream as ms
from millstream.engine.spark.planning import _reader
from millstream.errors import DefinitionError


def test_a_watermark_of_files_needs_files() -> None:
    p = ms.Pipeline("kit")
    stream = p.inject("in", ms.sources.rate(10), timestamp="timestamp", watermark=ms.watermarks.files(lambda path, modified: modified))
    p.compute(Passes, stream, key="value", produces="out")
    topology = p.program().topology
    with pytest.raises(DefinitionError, match=r"injected stream 'in': watermarks.files needs ms.sources.files"):
        _reader(topology.injectors["in"], topology)
