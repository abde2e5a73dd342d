"""A checkpoint for people: what the latest manifest says. The rows behind it are made readable by `readable/listing.py`; `view` shows both.

Rules
1. Only the log is read, never a state cache. One look shows one epoch: it is begun anew if that is collected meanwhile (`steady`).
"""

from __future__ import annotations

import time

import msgspec

from millstream.readable.listing import Listing, MapView, Opaque, RowView, keys_of, listed, looked_up, plain, plain_listing
from millstream.state.heartbeat import Alive, last_sign
from millstream.state.manifest_log import ManifestLog
from millstream.state.reader import latest, steady
from millstream.status.report import Status, status_of

__all__ = [
    "Listing",
    "MapView",
    "Opaque",
    "Overview",
    "RowView",
    "keys_of",
    "latest",
    "listed",
    "looked_up",
    "now",
    "overview",
    "plain",
    "plain_listing",
    "steady",
]


class Overview(msgspec.Struct):
    """A checkpoint at a glance: its identity, the run that wrote the latest manifest, the status as of it, and its driver's last sign of life.

    alive: whether that sign is so young that the driver is at work.
    """

    checkpoint: str
    id: str
    shards: int
    token: str | None
    status: Status
    alive: bool = False
    last_sign: Alive | None = None


def overview(log: ManifestLog) -> Overview:
    """What the checkpoint says of itself and of its latest epoch."""
    identity = log.identity()
    manifest = latest(log)
    status = status_of(identity.pipeline, manifest)
    if manifest is not None:
        status.state = "drained" if manifest.drained else "committed"
    sign = last_sign(log.storage)
    if sign is not None:
        status.records_per_second, status.epoch_millis = sign.records_per_second, sign.epoch_millis
    return Overview(
        checkpoint=log.storage.url,
        id=identity.id,
        shards=identity.shards,
        token=None if manifest is None else manifest.token,
        status=status,
        alive=sign is not None and sign.is_alive(now()),
        last_sign=sign,
    )


def now() -> int:
    """The wall clock, in milliseconds."""
    return int(time.time() * 1000)
