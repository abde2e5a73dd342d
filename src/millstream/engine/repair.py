"""Repair by rebuild: views that differ from their documents are marked. The next run fills them anew beside what they show, and cuts over.

Rules
1. A mark is an epoch in which nothing happens: its manifest gives the build of each view the next generation (`core/backfill.py`). Sinks, and views on these
   views, hear of the cutover as of any other change. The epoch before is published first: sinks get epochs in their order.
2. A row that cannot be decoded could not be visited. It is deleted in that epoch, with all entries beside it. What it showed is not known, and so not told.
3. A join cannot be filled anew under its name, and views behind a join that differs would be filled from what is wrong. So nothing is marked then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from millstream.core.backfill import JOIN_ADVICE, rebuilt
from millstream.core.keys import shard_of
from millstream.core.keyspace import ROW, after, decode_row
from millstream.engine.evolution import reconciled
from millstream.engine.next_manifest import idle_after
from millstream.engine.program import Compiled, Program
from millstream.engine.publishing import Publishing
from millstream.errors import CheckpointError
from millstream.state.blocks import Chain, Segments
from millstream.state.compaction import unit_name
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog
from millstream.state.queries import maps_prefix
from millstream.state.segment import write_segment


def mark_for_rebuild(program: Program, log: ManifestLog, epoch: int, views: Mapping[str, Sequence[str]], spark: Any = None) -> Manifest:
    """Takes the checkpoint over and marks views. views: by name, the texts of the groups that cannot be read. epoch: the one that was checked; if another
    has been committed since, nothing is done. spark: for sinks that need a session. They are ready for use."""
    joins = [name for name in views if program.topology.derived[name].is_join]
    if joins:
        raise CheckpointError(
            f"join {joins[0]!r} differs, and a join cannot be filled anew under its name. {JOIN_ADVICE.format(name=joins[0])}"
        )
    before = log.latest()
    if before is not None:
        _check_unchanged(before, program)  # before another run is stopped
    token = log.runs.claim(before.token if before is not None else None)
    before = log.latest()  # a run that ends may have committed one more before it found the claim
    if before is None or before.epoch != epoch:
        raise CheckpointError(
            f"{log.storage.url}: an epoch was committed since {epoch}, which was checked. Check again when the pipeline does not run."
        )
    Publishing(program, log, token, lambda: spark, lambda name, at: None).publish(before, True, {})  # rule 1
    manifest = idle_after(before, token)
    manifest.builds = {
        name: rebuilt(build, name, before.now, before.epoch) if name in views else build for name, build in before.builds.items()
    }
    manifest.computations = dict(before.computations)
    compiled = Compiled(program)
    for name, groups in views.items():
        _delete_unreadable(manifest, log, compiled, name, groups)
    if not log.commit(manifest):
        raise CheckpointError(
            f"{log.storage.url}: another run has committed epoch {manifest.epoch}. Check again when the pipeline does not run."
        )
    return manifest


def _check_unchanged(before: Manifest, program: Program) -> None:
    """A repair is no occasion to drop state, or to fill a view that has changed: it takes the program that wrote the checkpoint."""
    after_it = reconciled(before, program)
    names = {spec.name for spec in program.topology.computations}
    changed = sorted(names ^ set(after_it.computations)) or sorted(
        name for name, build in after_it.builds.items() if name in before.builds and build.generation != before.builds[name].generation
    )
    if changed:
        raise CheckpointError(
            f"the pipeline is not the one that has last run: {', '.join(changed)} is new, gone or changed. Repair with the file that wrote the checkpoint, "
            f"or run the new one first."
        )


def _delete_unreadable(manifest: Manifest, log: ManifestLog, compiled: Compiled, name: str, groups: Sequence[str]) -> None:
    """Rule 2: one more segment for every shard with such groups."""
    kind = compiled.make(name)[1]
    state = manifest.computations[name]
    shards = list(state.shards)
    row_keys = [text.encode() for text in groups]
    for shard in {shard_of(row_key, len(shards)) for row_key in row_keys}:
        chain = Chain(Segments(log.storage), shards[shard].segments)
        entries: dict[bytes, None] = {}
        for row_key in (one for one in row_keys if shard_of(one, len(shards)) == shard):
            raw, start = chain.get(ROW + row_key), maps_prefix(row_key)
            entries.update(dict.fromkeys(key for key, _ in chain.scan(start, after(start))))
            try:
                if raw is not None:
                    kind.decode(decode_row(raw).state)
            except Exception:
                entries[ROW + row_key] = None
        unit = unit_name(manifest.epoch, "repair", manifest.token)
        written = write_segment(log.storage, unit, sorted(entries.items()), manifest.epoch, manifest.epoch)
        shards[shard] = msgspec.structs.replace(
            shards[shard],
            segments=[*shards[shard].segments, written],
            keys=shards[shard].keys - sum(key.startswith(ROW) for key in entries),
        )
    manifest.computations[name] = msgspec.structs.replace(state, shards=shards)
