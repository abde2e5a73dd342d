"""Manifests: the one small object whose creation commits an epoch.

Rules
1. `manifests/<epoch>.json` is created exclusively. Two drivers may both believe that they own the checkpoint; only one can create it.
2. A manifest is complete in itself: state (segments per computation and shard), low watermarks, earliest timers and holds, stored
   productions, what the sinks have still to publish, and which run wrote it. Recovery needs the newest one and nothing else.
3. Its second line is a CRC-32 of the first: damage is told from absence.
4. `identity.json` is written once: the checkpoint's own id, the pipeline's name and the number of shards.
5. Who may write them is decided by claims (`state/fencing.py`).
"""

from __future__ import annotations

import secrets
from typing import Any
from zlib import crc32

import msgspec

from millstream.core.adaptive import EdgeState
from millstream.core.backfill import BuildState
from millstream.core.dedup import DedupCounts
from millstream.core.outcome import LateRecord
from millstream.core.time import BEGINNING
from millstream.core.topology import RelationSpec
from millstream.core.watermark import Progress
from millstream.errors import CheckpointError, DamageError
from millstream.state import formats
from millstream.state.fencing import Runs
from millstream.state.segment import SegmentRef
from millstream.state.sink_part import Part
from millstream.state.storage import Storage

IDENTITY_NAME = "identity.json"
KEEP = 10


class ProductionsRef(msgspec.Struct):
    """Stored productions of one task over one edge. slices: by the consumer's shard, (offset, length, count) in the object."""

    stream: str
    computation: str
    name: str
    slices: dict[int, tuple[int, int, int]]
    oldest: int


class ShardState(msgspec.Struct):
    """One shard of one computation. held and holder: the oldest hold, and whose it is. ids: held by deduplication."""

    segments: list[SegmentRef] = []
    keys: int = 0
    timers: int = 0
    next_low: int | None = None
    next_wall: int | None = None
    held: int | None = None
    holder: str = ""
    ids: int = 0
    low_watermark: int = BEGINNING
    output: int = BEGINNING


class ComputationState(msgspec.Struct):
    """One computation: its low watermark in the epoch, its shards, and totals since the beginning."""

    low_watermark: int = BEGINNING
    shards: list[ShardState] = []
    codec: str = "msgpack"
    feeds: list[str] = []
    records: int = 0
    late: int = 0
    fired: int = 0
    produced: int = 0
    lineage: str = ""  # where this state began (epoch and run); survives renaming, and tells a successor of the same name from it
    streams: list[str] = []
    output: int = BEGINNING  # what its streams promise
    late_by: dict[str, int] = {}
    last_late: list[LateRecord] = []
    dead: int = 0
    dedup: DedupCounts = msgspec.field(default_factory=DedupCounts)
    hidden: bool = False  # a helper that the user has not written
    tallies: dict[str, int] = {}  # what its hooks have counted
    kind: str = ""  # "table", "view" or "join": whoever has no code can tell
    relation: RelationSpec | None = None  # of a table, view or join
    about: dict[str, str] = {}  # for people: what it was defined as


class SourcePosition(msgspec.Struct):
    """How far a planned source has been read: the offset in its own words. names: the files that were read, as a chain of segments of their own."""

    offset: str
    names: list[SegmentRef] = []


class WaitingParts(msgspec.Struct):
    """Parts of a sink that rolls, which are committed and wait to be published together. since: the wall clock of the epoch that had the first of them."""

    since: int
    parts: list[Part]


class Manifest(msgspec.Struct):
    """An epoch, committed. now: its clock, which hooks see as self.now. committed_at: the wall clock when it was committed; an epoch that settles has the
    clock of the last input."""

    epoch: int
    token: str
    now: int
    runs: list[tuple[int, str]]
    injectors: dict[str, Progress] = {}
    computations: dict[str, ComputationState] = {}
    sinks: dict[str, list[Part]] = {}
    drain: bool = False
    drained: bool = False
    ended: int | None = None  # the first epoch of the drain: from it on, no source may bring anything
    offsets: str | None = None
    pending: list[ProductionsRef] = []
    edges: dict[str, EdgeState] = {}
    refused: int = 0  # writes of runs that had been replaced
    outside: int = 0  # how many epochs up to this one were run outside the query, and so have no number in Spark's log
    settle: bool = False  # run outside the query, at the end of a bounded run: no input, and what the last input made due
    format: int = formats.MANIFEST.newest
    builds: dict[str, BuildState] = {}  # of computations that are derived from others
    sources: dict[str, SourcePosition] = {}  # by injector, of those whose epochs Millstream plans itself
    waiting: dict[str, WaitingParts] = {}  # by emission, of sinks that roll
    committed_at: int | None = None

    @property
    def batch(self) -> int | None:
        """The number that Spark's log has for this epoch; None for one that was run outside the query."""
        return None if self.drain or self.settle else self.epoch - self.outside

    @property
    def last_batch(self) -> int:
        """The last number of Spark's log that is committed."""
        return self.epoch - self.outside

    def token_at(self, epoch: int) -> str | None:
        """The run that committed an epoch."""
        found = None
        for first, token in self.runs:
            if first <= epoch:
                found = token
        return found


class Identity(msgspec.Struct, frozen=True):
    """What a checkpoint is a checkpoint of."""

    id: str
    pipeline: str
    shards: int
    injectors: list[str]
    format: int = formats.IDENTITY.newest


def edge_name(stream: str, computation: str) -> str:
    """How a manifest calls an edge."""
    return f"{stream} → {computation}"


def manifest_name(epoch: int) -> str:
    """The object that commits an epoch."""
    return f"manifests/{epoch:020d}.json"


def _seal(value: Any) -> bytes:
    body = msgspec.json.encode(value)
    return body + b"\n%08x\n" % crc32(body)


def _open(data: bytes, name: str, type: Any, known: formats.Format) -> Any:
    body, _, rest = data.partition(b"\n")
    if rest.strip() != b"%08x" % crc32(body):
        raise DamageError(f"{name} is damaged: its checksum does not match. Restore it from a copy, or start with a new checkpoint.")
    said = formats.check_json(body, name, known)
    try:
        found = msgspec.json.decode(body, type=type)
    except msgspec.MsgspecError as error:
        raise DamageError(
            f"{name} is whole and says a format that is known, but it has another shape: {error}. Restore it from a copy, or start with a new checkpoint."
        ) from error
    return msgspec.structs.replace(found, format=known.newest) if said != known.newest else found


class Collection(msgspec.Struct):
    """What collection (`state/compaction.py`) knows of the manifests that are kept, their times and the objects that they name, and what it has done:
    how often it ran, and how many objects and manifests it removed."""

    times: dict[int, int] = {}
    names: dict[int, frozenset[str]] = {}
    rounds: int = 0
    objects: int = 0
    manifests: int = 0


class ManifestLog:
    """The manifests of a checkpoint."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.runs = Runs(storage)
        self.collection = Collection()

    def identify(self, pipeline: str, shards: int | None, default_shards: int, injectors: list[str]) -> Identity:
        """The checkpoint's identity, written now if it is new. Says no to another pipeline or shard count."""
        if not self.storage.exists(IDENTITY_NAME):
            if self.epochs():
                raise DamageError(f"{self.storage.url} has manifests but no identity.json. Restore it from a copy.")
            fresh = Identity(secrets.token_hex(8), pipeline, shards or default_shards, injectors)
            self.write_identity(fresh)
        found = self.check_identity(pipeline, shards, injectors)
        assert found is not None
        return found

    def write_identity(self, identity: Identity) -> None:
        """Makes a folder a checkpoint, if it is none yet."""
        self.storage.create(IDENTITY_NAME, _seal(identity))

    def check_identity(self, pipeline: str, shards: int | None, injectors: list[str]) -> Identity | None:
        """The checkpoint's identity, if there is one. Says no to another pipeline or shard count."""
        if not self.storage.exists(IDENTITY_NAME):
            return None
        found = self.identity()
        if found.pipeline != pipeline:
            raise CheckpointError(
                f"{self.storage.url} is a checkpoint of pipeline {found.pipeline!r}, not of {pipeline!r}. Use another checkpoint directory."
            )
        if shards is not None and shards != found.shards:
            raise CheckpointError(
                f"{self.storage.url} has {found.shards} shards, and the run asks for {shards}. The number of shards is fixed when a checkpoint is made: "
                f"leave shards out, or start with a new checkpoint."
            )
        if injectors != found.injectors:
            raise CheckpointError(
                f"{self.storage.url} was made with the injectors {found.injectors}, and the pipeline has {injectors}. It keeps a position "
                f"per source, so injectors cannot be added, removed, renamed or reordered: start with a new checkpoint."
            )
        return found

    def identity(self) -> Identity:
        """What the checkpoint says of itself."""
        if not self.storage.exists(IDENTITY_NAME):
            raise CheckpointError(f"{self.storage.url} is not a checkpoint of Millstream: it has no identity.json.")
        found: Identity = _open(self.storage.read(IDENTITY_NAME), f"{self.storage.url}/{IDENTITY_NAME}", Identity, formats.IDENTITY)
        return found

    def epochs(self) -> list[int]:
        """The epochs whose manifests are kept, ascending."""
        return sorted(
            int(stem) for name in self.storage.list("manifests") if (stem := name.rsplit("/", 1)[-1].removesuffix(".json")).isdigit()
        )

    def latest(self) -> Manifest | None:
        """The newest committed epoch."""
        epochs = self.epochs()
        return self.read(epochs[-1]) if epochs else None

    def read(self, epoch: int) -> Manifest:
        """One manifest, checked."""
        name = manifest_name(epoch)
        found: Manifest = _open(self.storage.read(name), f"{self.storage.url}/{name}", Manifest, formats.MANIFEST)
        if found.epoch != epoch:
            raise DamageError(f"{self.storage.url}/{name} says it is epoch {found.epoch}")
        return found

    def exists(self, epoch: int) -> bool:
        """Whether an epoch is committed."""
        return self.storage.exists(manifest_name(epoch))

    def commit(self, manifest: Manifest, exclusive: bool = True) -> bool:
        """Creates the manifest: the commit. False if somebody else committed that epoch.

        An object store may take the object and lose its answer; the retry then finds the name taken, by ourselves.
        """
        name, data = manifest_name(manifest.epoch), _seal(manifest)
        if not exclusive:
            self.storage.delete([name])
            self.collection.names.pop(manifest.epoch, None)
        done = self.storage.create(name, data) or self.storage.read(name) == data
        if done:
            self.collection.times[manifest.epoch] = manifest.now
        return done
