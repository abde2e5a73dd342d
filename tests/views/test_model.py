"""Tables and views against plain recomputation, after every epoch: what they show, every published chain of changes, every contribution and node."""

from __future__ import annotations

import pytest
from viewmodel import play

from effort import some


@pytest.mark.parametrize("inline", [1024, 0, 60])
@pytest.mark.parametrize("origins", [True, False])
@pytest.mark.parametrize("seed", range(some(9, least=3)))
def test_views_are_what_recomputation_gives_after_every_epoch(seed: int, origins: bool, inline: int) -> None:
    play(seed, origins, inline)


@pytest.mark.slow
@pytest.mark.parametrize("origins", [True, False])
@pytest.mark.parametrize("seed", range(some(1)))
def test_large_groups_are_right_while_they_grow_and_shrink(seed: int, origins: bool) -> None:
    play(seed, origins, 60, ids=900, names=3, epochs=8, each=700)
