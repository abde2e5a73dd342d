"""The latest manifest and a pipeline that may have changed since: renames are applied, and what could lose state by accident is refused. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.core.backfill import begun
from millstream.core.topology import INTERVAL_JOIN, ComputationSpec
from millstream.engine.program import Program
from millstream.errors import CheckpointError
from millstream.sinks.base import Sink
from millstream.state.manifest import ComputationState, Manifest


def reconciled(latest: Manifest, program: Program, drop: Sequence[str] = ()) -> Manifest:
    """The manifest that a run of a program goes on from. drop: computations whose state may go although others are new."""
    renamed = _renamed(latest, program)
    _check_missing(renamed, program, drop)
    _check_codecs(renamed, program)
    _check_operators(renamed, program)
    names = {spec.name for spec in program.topology.computations}
    found = msgspec.structs.replace(renamed, pending=[stored_ref for stored_ref in renamed.pending if stored_ref.computation in names])
    _check_ways(found, program)
    _check_waiting(found, program, drop)
    present = [name for name, state in found.computations.items() if _has_state(state)]
    builds = begun(program.topology.derived, found.builds, present, found.now, found.epoch)
    filled = not any(build.is_filling for build in builds.values())
    return msgspec.structs.replace(found, builds=builds, drained=found.drained and filled)  # what is new is still to be filled


def _renamed(latest: Manifest, program: Program) -> Manifest:
    names = {spec.name for spec in program.topology.computations}
    old_to_new: dict[str, str] = {}
    for spec in program.topology.computations:
        old = spec.renamed_from
        if old and old in latest.computations and spec.name not in latest.computations:
            if old in names:
                raise CheckpointError(f"computation {spec.name!r} says renamed_from={old!r}, but {old!r} is still there")
            if old in old_to_new:
                raise CheckpointError(
                    f"computations {old_to_new[old]!r} and {spec.name!r} both say renamed_from={old!r}: only one can take over its state"
                )
            old_to_new[old] = spec.name
    return msgspec.structs.replace(
        latest,
        computations={old_to_new.get(name, name): state for name, state in latest.computations.items()},
        builds={
            old_to_new.get(name, name): msgspec.structs.replace(state, senders=tuple(old_to_new.get(one, one) for one in state.senders))
            for name, state in latest.builds.items()
        },
        pending=[
            msgspec.structs.replace(stored_ref, computation=old_to_new.get(stored_ref.computation, stored_ref.computation))
            for stored_ref in latest.pending
        ],
    )


def _check_missing(latest: Manifest, program: Program, drop: Sequence[str]) -> None:
    specs = {spec.name: spec for spec in program.topology.computations}
    known = {name for name, state in latest.computations.items() if not state.hidden}
    gone = sorted(name for name in known - set(specs) if name not in drop)
    new = sorted(name for name, spec in specs.items() if name not in known and not spec.hidden)
    if gone and new:
        raise CheckpointError(
            f"the checkpoint has state of {', '.join(map(repr, gone))}, which the pipeline no longer has, and the pipeline has "
            f"{', '.join(map(repr, new))}, which the checkpoint does not know. If one was renamed, say compute(..., name=new, renamed_from=old); "
            f"if its state may go, run(..., drop={gone!r})."
        )
    spread = [name for name in gone if latest.computations[name].about.get("joined by") in specs and _has_state(latest.computations[name])]
    if spread:
        raise CheckpointError(
            f"open windows have their records in {', '.join(map(repr, spread))}, and the pipeline no longer says spread=. Say it until they have ended, or "
            f"let them go: run(..., drop={spread!r})."
        )


def _has_state(state: ComputationState) -> bool:
    return any(shard.keys for shard in state.shards)


def _check_codecs(latest: Manifest, program: Program) -> None:
    for spec in program.topology.computations:
        state = latest.computations.get(spec.name)
        codec = program.codec_of(spec.name).name
        if state is not None and state.codec != codec and _has_state(state):
            raise CheckpointError(
                f"the state of computation {spec.name!r} was written with codec {state.codec!r}, and the pipeline says {codec!r}. "
                f"Keep the codec, or rename the computation and drop its state."
            )


def _check_operators(latest: Manifest, program: Program) -> None:
    """What an operator keeps means something else to another window, other reducers or another interval."""
    for spec in program.topology.computations:
        state = latest.computations.get(spec.name)
        if state is None or not _has_state(state):
            continue
        was, now = (_layout(one) for one in (state, spec))
        if was != now:
            raise CheckpointError(
                f"operator {spec.name!r} has state that was made as {was or 'a computation of hooks'}, and the pipeline says {now or 'hooks'}. Put it back, or "
                f"give the operator another name= and let the old state go: run(..., drop=[{spec.name!r}])."
            )


def _layout(of: ComputationState | ComputationSpec) -> str:
    """What the state of an operator depends on; nothing, of computations."""
    about = of.about
    if "window" in about:
        kinds = [about["parts"]] if of.window is None else [kind or "its own" for kind in of.window.reducers.values()]
        return f"{about['window']}{' that change' if 'changes' in about else ''} of {', '.join(kinds)}"
    return f"join({about['join'].partition(', how=')[0]})" if of.kind == INTERVAL_JOIN else ""


def _check_waiting(latest: Manifest, program: Program, drop: Sequence[str]) -> None:
    known = {e.name: e.sink for e in program.topology.emissions if type(e.sink).encode_part is not Sink.encode_part}
    lost = sorted(
        name
        for name, waiting in latest.waiting.items()
        if name not in drop and (name not in known or not all(known[name].takes(part.own.get("form", "")) for part in waiting.parts))
    )
    if lost:
        rows = sum(part.rows for name in lost for part in latest.waiting[name].parts)
        raise CheckpointError(
            f"{rows} committed rows wait in the checkpoint to be published for {', '.join(map(repr, lost))}, which the pipeline no longer sends to that sink, "
            f"or in another form. Run once more with that sink, so that they are; if they may go, run(..., drop={lost!r})."
        )


def _check_ways(latest: Manifest, program: Program) -> None:
    ways = {(route.stream, route.computation) for route in program.topology.routes}
    lost = sorted({f"{p.stream!r} into {p.computation!r}" for p in latest.pending if (p.stream, p.computation) not in ways})
    if lost:
        raise CheckpointError(
            f"stored productions wait in the checkpoint for a way that the pipeline no longer has: {', '.join(lost)}. Run once more with that edge as it "
            f"was (strong or adaptive), so that they are consumed, and then change it."
        )
