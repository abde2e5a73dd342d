"""The undisturbed run of a plan on the local engine, which knows nothing of faults; and what a simulated run must have in common with it.

Rules
1. The same rows come in the same epochs, with the same clock. So everything must be equal: streams row by row with their ids, low watermarks, and every
   entry of every state.
2. Where records came again that nobody drops as repeats, epochs have other rows. Then what tables, views and joins say must be equal.
3. If somebody is to judge them, views must be right after every epoch, not only at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream.core.guards import ALL_GUARDS, Guards
from millstream.core.keys import key_of, key_text
from millstream.engine.program import Program
from millstream.simulation.diff import OutRow, first_entry, first_row
from millstream.simulation.fakes import Violation
from millstream.simulation.local import LocalEngine
from millstream.simulation.simulated_run import AFTER_THE_END, InputPlan, Simulation
from millstream.simulation.view_checks import EpochJudge, first_of_state, first_of_streams, outputs, read
from millstream.state.manifest import Manifest
from millstream.state.segment import merge


def compare(simulation: Simulation, manifest: Manifest, oracle: LocalEngine, exact: bool = True) -> str | None:
    """The first difference between a run and the undisturbed one; None if there is none. exact: in every byte; else in what tables, views and joins say,
    for a run in which records came again that nobody drops as repeats."""
    if not exact:
        return _compare_refined(simulation, manifest, oracle)
    for spec in oracle.topology.computations:
        for stream in spec.streams:
            got = _per_key(simulation.ledgers[stream].rows(stream))
            expected = _per_key([(e.key, e.timestamp, e.value, e.id) for e in oracle.outputs[stream]])
            for text in sorted(got.keys() | expected.keys(), key=lambda text: text or ""):
                where = f"stream {stream!r}, key {None if text is None else key_of(text)!r}"
                found = first_row(where, got.get(text, []), expected.get(text, []))
                if found is not None:
                    return found
        name, state = spec.name, manifest.computations[spec.name]
        if state.low_watermark != oracle.standings[name].low:
            return f"low watermark of {name!r}: {state.low_watermark} instead of {oracle.standings[name].low}"
        for shard, one in enumerate(state.shards):
            entries = {
                k: v for k, v in merge(simulation.storage, one.segments, drop_deleted=True) if v is not None and not k.startswith(b"D")
            }
            wanted = oracle.stores[name, shard].entries
            if entries != wanted:
                return first_entry(name, simulation.compiled.make(name)[1], entries, wanted, exact=True)
    return None


def _compare_refined(simulation: Simulation, manifest: Manifest, oracle: LocalEngine) -> str | None:
    got, expected = simulation.epoch_read(simulation.compiled, manifest), read(oracle)
    rows = {stream: [(row[0], row[2]) for row in ledger.rows(stream)] for stream, ledger in simulation.ledgers.items()}
    for spec in oracle.topology.computations:
        found = first_of_streams(expected.sender(spec.name), rows, outputs(oracle)) or first_of_state(spec.name, got, expected)
        if found is not None:
            return found
    return None


def _per_key(rows: Sequence[tuple[Any, int, Any, str]]) -> dict[str | None, list[OutRow]]:
    found: dict[str | None, list[OutRow]] = {}
    for key, timestamp, value, id in rows:
        found.setdefault(None if key is None else key_text(key), []).append(OutRow(timestamp, value, b"", id))
    return found


def undisturbed(
    program: Program,
    plan: InputPlan,
    shards: int,
    guards: Guards = ALL_GUARDS,
    then: tuple[int, Program] | None = None,
    judge: EpochJudge | None = None,
) -> LocalEngine:
    """A plan, undisturbed, on the local engine. judge: raises Violation if a view is wrong after any epoch."""
    engine = LocalEngine(program, shards, guards)

    def look(engine: LocalEngine) -> None:
        found = judge.first(read(engine)) if judge is not None else None
        if found is not None:
            raise Violation(f"after epoch {engine.epoch}: {found}")

    engine.look = look
    for epoch, (rows, now) in enumerate(zip(plan.epochs, plan.clock, strict=True)):
        if then is not None and epoch == then[0]:
            engine.become(then[1])
        engine.epoch += plan.idle.get(epoch, 0)
        engine.now = now
        for stream, row in rows:
            engine.push(stream, row)
        engine.run_epoch()
    engine.epoch += plan.idle.get(len(plan.epochs), 0)
    engine.drain()
    engine.now += AFTER_THE_END
    while engine.due():
        engine.run_epoch()
    return engine
