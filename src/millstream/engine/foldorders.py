"""Which chains are due to be folded, as orders for whoever folds them. Pure."""

from __future__ import annotations

import msgspec

from millstream.state.folding import to_fold
from millstream.state.manifest import Manifest
from millstream.state.segment import SegmentRef


class FoldOrder(msgspec.Struct):
    """One chain to fold, and what came of it."""

    computation: str
    shard: int
    epoch: int
    chosen: list[SegmentRef]
    is_base: bool
    token: str
    made: list[SegmentRef] = []


def due(manifest: Manifest, token: str) -> list[FoldOrder]:
    """The chains that have grown too long."""
    return [
        FoldOrder(
            computation=name, shard=shard, epoch=manifest.epoch, chosen=list(chosen), is_base=chosen[0] == one.segments[0], token=token
        )
        for name, state in manifest.computations.items()
        for shard, one in enumerate(state.shards)
        if (chosen := to_fold(one.segments))
    ]
