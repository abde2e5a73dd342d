"""A thousand seeds of resident faults over programs of one to three levels."""

from __future__ import annotations

from typing import Any

import pytest
from residentkit import ROWS, one_level, three_levels, two_levels

import millstream as ms
from computations import Sum
from effort import seeds


def exact(pipeline: ms.Pipeline, seeds: range, **options: Any) -> None:
    ms.testing.assert_exactly_once(pipeline, ROWS, seeds=seeds, epochs="same", resident=True, **options)


@pytest.mark.parametrize(
    ("pipeline", "count", "shards"),
    [
        (one_level(), 90, 3),
        (two_levels(), 75, 2),
        (two_levels(ms.STRONG), 40, 2),
        (two_levels(ms.ADAPTIVE), 25, 2),
        (three_levels(), 15, 2),
        (three_levels(Sum, ms.STRONG), 15, 2),
    ],
    ids=["one level", "weak", "strong", "adaptive", "dead letters", "three levels"],
)
def test_seeds_pass(pipeline: ms.Pipeline, count: int, shards: int) -> None:
    exact(pipeline, seeds(count), shards=shards)


@pytest.mark.soak
@pytest.mark.parametrize("pipeline", [two_levels(), three_levels(), three_levels(Sum, ms.ADAPTIVE)], ids=["two", "three", "adaptive"])
def test_many_more_seeds_pass(pipeline: ms.Pipeline) -> None:
    exact(pipeline, range(1_000, 11_000), shards=3)


def test_a_pipeline_may_be_restarted_as_another_version() -> None:
    exact(two_levels(), seeds(20), then=two_levels(ms.STRONG))
