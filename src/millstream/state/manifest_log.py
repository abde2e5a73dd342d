"""The log of manifests, whose creation commits epochs; and what the checkpoint is a checkpoint of.

Rules
1. `manifests/<epoch>.json` is created exclusively. Two drivers may both believe that they own the checkpoint; only one can create it.
2. Its second line is a CRC-32 of the first: damage is told from absence.
3. `identity.json` is written once: the checkpoint's own id, the pipeline's name and the number of shards.
4. Who may write them is decided by claims (`state/fencing.py`).
"""

from __future__ import annotations

import secrets
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from millstream.errors import CheckpointError, DamageError
from millstream.state import formats
from millstream.state.fencing import Runs
from millstream.state.manifest import Manifest
from millstream.state.storage import Storage

IDENTITY_NAME = "identity.json"
KEEP = 10
_RESTORE = "Restore it from a copy, or start with a new checkpoint."

_T = TypeVar("_T", bound=msgspec.Struct)


class Identity(msgspec.Struct, frozen=True):
    """What a checkpoint is a checkpoint of."""

    id: str
    pipeline: str
    shards: int
    injectors: list[str]
    format: int = formats.IDENTITY.newest


def manifest_name(epoch: int) -> str:
    return f"manifests/{epoch:020d}.json"


def _seal(value: Any) -> bytes:
    body = msgspec.json.encode(value)
    return body + b"\n%08x\n" % crc32(body)


class Collection(msgspec.Struct):
    """What collection (`state/gc.py`) knows of the manifests that are kept: their times, and the objects that they name."""

    times: dict[int, int] = {}
    names: dict[int, frozenset[str]] = {}


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
            self.write_identity(Identity(secrets.token_hex(8), pipeline, shards or default_shards, injectors))
        return self.check_identity(pipeline, shards, injectors) or self.identity()

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
        return self._read(IDENTITY_NAME, Identity, formats.IDENTITY)

    def epochs(self) -> list[int]:
        return sorted(
            int(stem) for name in self.storage.list("manifests") if (stem := name.rsplit("/", 1)[-1].removesuffix(".json")).isdigit()
        )

    def latest(self) -> Manifest | None:
        """The newest manifest, also while older ones are collected."""
        epochs = self.epochs()
        while epochs:
            try:
                return self.read(epochs[-1])
            except DamageError:
                listed, epochs = epochs, self.epochs()
                if listed[-1:] == epochs[-1:]:
                    raise
        return None

    def read(self, epoch: int) -> Manifest:
        """One manifest, checked."""
        name = manifest_name(epoch)
        found = self._read(name, Manifest, formats.MANIFEST)
        if found.epoch != epoch:
            raise DamageError(f"{self.storage.url}/{name} says it is epoch {found.epoch}")
        return found

    def _read(self, name: str, type: type[_T], known: formats.Format) -> _T:
        body, _, rest = self.storage.read(name).partition(b"\n")
        name = f"{self.storage.url}/{name}"
        if rest.strip() != b"%08x" % crc32(body):
            raise DamageError(f"{name} is damaged: its checksum does not match. {_RESTORE}")
        known.check_json(name, body)
        try:
            return msgspec.structs.replace(msgspec.json.decode(body, type=type), format=known.newest)
        except msgspec.MsgspecError as error:
            raise DamageError(f"{name} is whole and says a format that is known, but it has another shape: {error}. {_RESTORE}") from error

    def exists(self, epoch: int) -> bool:
        return self.storage.exists(manifest_name(epoch))

    def commit(self, manifest: Manifest, exclusive: bool = True) -> bool:
        """Creates the manifest: the commit. False if somebody else committed that epoch. An object store may take the object and lose its answer; the retry
        then finds the name taken, by ourselves."""
        name, data = manifest_name(manifest.epoch), _seal(manifest)
        if not exclusive:
            self.storage.delete([name])
            self.collection.names.pop(manifest.epoch, None)
        done = self.storage.create(name, data) or self.storage.read(name) == data
        if done:
            self.collection.times[manifest.epoch] = manifest.now
        return done
