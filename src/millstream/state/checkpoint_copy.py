"""A copy of a checkpoint as of one epoch, made while its run goes on, that can be started under an identity of its own.

Rules
1. What a manifest names never changes, so copying all of it, and the manifest, is a consistent copy. If the run collects an object before it is copied, the
   newest manifest is taken instead. What is copied already need not be copied again, so each round is shorter than the one before.
2. The copy has an id of its own: a host keeps caches by that id, so original and copy can run side by side. Its runs are numbered anew.
3. The manifest comes first and the identity last: no run takes a copy that was interrupted for a checkpoint, nor for an empty folder.
4. Only what the checkpoint holds is copied. Offsets that Spark keeps beside it cannot be copied while a run goes on: such a checkpoint is refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import msgspec

from millstream.errors import CheckpointError, DamageError
from millstream.state.compaction import made_in
from millstream.state.gc import named_by
from millstream.state.manifest_log import ManifestLog, manifest_name
from millstream.state.storage import Storage

_ROUNDS = 30


class CopyProgress(msgspec.Struct):
    """How far a copy is."""

    epoch: int
    objects: int = 0
    of: int = 0
    bytes: int = 0


def copy_checkpoint(source: Storage, target: Storage, tell: Callable[[CopyProgress], None] = lambda progress: None) -> CopyProgress:
    """Copies the newest epoch that is committed. tell: called after every object."""
    log = ManifestLog(source)
    identity = log.identity()
    if any(target.list(folder) for folder in ("", "manifests", "units")) or target.folders(""):
        raise CheckpointError(f"{target.url} is not empty. A copy needs a folder or prefix of its own.")
    copied: set[str] = set()
    progress = CopyProgress(-1)
    chosen = None
    for _ in range(_ROUNDS):
        manifest = log.latest()
        if manifest is None:
            raise CheckpointError(f"{source.url} has no committed epoch yet: there is nothing to copy.")
        if identity.injectors and not manifest.sources:  # rule 4
            raise CheckpointError(
                f"{source.url}: Spark keeps how far the sources are read, in a log of its own, which cannot be copied while a run goes on. Stop the run, and "
                f"copy the whole directory."
            )
        data = _read(source, manifest_name(manifest.epoch), manifest.epoch)
        if data is None:
            continue
        target.put(manifest_name(manifest.epoch), data)
        if chosen is not None and chosen != manifest.epoch:
            target.delete([manifest_name(chosen)])
        chosen = progress.epoch = manifest.epoch
        if _copy_objects(source, target, sorted(named_by(manifest), key=made_in), copied, progress, tell):
            target.delete(copied - named_by(manifest))
            ManifestLog(target).write_identity(msgspec.structs.replace(identity, id=secrets.token_hex(8)))
            progress.objects = progress.of
            return progress
    raise CheckpointError(
        f"{source.url} changes faster than it can be copied: {_ROUNDS} times objects were collected before they were read. Copy to a faster place, or stop it."
    )


def _copy_objects(
    source: Storage, target: Storage, names: list[str], copied: set[str], progress: CopyProgress, tell: Callable[[CopyProgress], None]
) -> bool:
    """Oldest first: those last longest. Returns False if one is gone, because the run has collected it."""
    progress.of, progress.objects = len(names), len(copied.intersection(names))
    for name in names:
        if name in copied:
            continue
        data = _read(source, name, progress.epoch)
        if data is None:
            return False
        target.put(name, data)
        copied.add(name)
        progress.objects += 1
        progress.bytes += len(data)
        tell(progress)
    return True


def _read(source: Storage, name: str, epoch: int) -> bytes | None:
    """What an epoch needs; None if the run has gone on and collected it."""
    try:
        return source.read(name)
    except DamageError:
        if ManifestLog(source).latest().epoch == epoch:  # type: ignore[union-attr]
            raise  # nobody has collected it: it is missing
        return None
