"""Plans and schedules from a seed, and the shortest schedule that fails."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from millstream.core.guards import ALL_GUARDS, Guards
from millstream.engine.program import Compiled, Program
from millstream.errors import MillstreamError
from millstream.faults import POINTS
from millstream.simulation.comparison import compare, undisturbed
from millstream.simulation.diagnosis import WRONG
from millstream.simulation.diff import cut_short
from millstream.simulation.epoch_cuts import Rows
from millstream.simulation.fakes import Violation
from millstream.simulation.fault import Fault
from millstream.simulation.list_inputs import is_rejected
from millstream.simulation.simulated_run import BEFORE_COMMIT, MICRO_BATCH_KINDS, InputPlan, Simulation
from millstream.simulation.view_checks import EpochJudge, only_refined

START = 1_700_000_000_000
_STEPS = 14  # of a task in one epoch, about
_MOST = 5  # faults in one schedule


def make_plan(records: Rows, seed: int) -> InputPlan:
    """The records, cut into epochs with a clock; a few empty epochs in between and at the end."""
    dice = random.Random(f"plan {seed}")
    wanted = dice.randint(2, 6)
    cuts = sorted(dice.randrange(len(records) + 1) for _ in range(wanted - 1)) if records else [0] * (wanted - 1)
    bounds = [0, *cuts, len(records)]
    epochs = [list(records[a:b]) for a, b in pairwise(bounds)] + [[] for _ in range(dice.randint(1, 3))]
    clock, now = [], START
    for _ in epochs:
        now += dice.choice([50, 500, 1000, 5000])
        clock.append(now)
    return InputPlan(epochs, clock)


def make_schedule(
    program: Program,
    plan: InputPlan,
    seed: int,
    kinds: Collection[str],
    shards: int,
    then: Program | None = None,
    pauses: Sequence[str] = Simulation.pauses,
) -> list[Fault]:
    """One to five faults. then: what the program is restarted as, which may have more tasks."""
    dice = random.Random(f"schedule {seed}")
    tasks = shards * max(sum(len(groups) for groups in one.topology.levels) for one in (program, then or program))
    streams = {stream for stream in program.topology.injectors if may_repeat(program, stream)} if "repeat" in kinds else set()
    rejecting = any(map(program.topology.takes_rejected, program.topology.by_name))
    compiled = Compiled(program, all_ids=True) if streams and rejecting else None
    repeatable = [
        at
        for at, (stream, row) in enumerate(_flat(plan))
        if not streams or (stream in streams and (compiled is None or not is_rejected(compiled, stream, row)))
    ]  # who asks for it all the same, where ids are not held, gets it
    found: list[Fault] = []
    for _ in range(dice.randint(1, _MOST)):
        kind, epoch = dice.choice(sorted(kinds)), dice.randrange(len(plan.epochs))
        if kind == "crash":
            point = dice.choice(POINTS)
            found.append(Fault(kind, epoch, point, task=dice.randrange(tasks) if point.startswith("task.") else 0))
        elif kind == "pause":
            found.append(Fault(kind, epoch, dice.choice(pauses), later=dice.randint(0, 3)))
        elif kind == "replan":
            point = dice.choice(BEFORE_COMMIT)
            found.append(Fault(kind, epoch, point, dice.randrange(tasks) if point.startswith("task.") else 0, dice.randint(0, 1)))
        elif kind in ("lose", "stale", "rejoin"):
            found.append(Fault(kind, epoch, task=dice.randrange(3), later=dice.randint(0, _STEPS)))
        elif kind == "repeat":
            if repeatable:
                found.append(Fault(kind, epoch, later=dice.choice(repeatable)))
        else:
            task, later = dice.randrange(tasks), dice.randint(0, 3)
            found.append(Fault(kind, epoch, task=0 if kind in ("compact", "forget") else task, later=later if kind == "zombie" else 0))
    return list(dict.fromkeys(found))


def _flat(plan: InputPlan) -> list[tuple[str, dict[str, Any]]]:
    return [row for rows in plan.epochs for row in rows]


def may_repeat(program: Program, stream: str) -> bool:
    """Whether a repeated record of a stream should change nothing: its ids are held, and its watermark does not ask when it was last heard; or there are
    only tables that go by versions, and what derives from them."""
    injector = program.topology.injectors[stream]
    return (injector.dedup is not None and not injector.watermark.repeats_matter) or only_refined(program)


class Counterexample(msgspec.Struct):
    """What came of one seed: the difference, and the shortest schedule that shows it. wrong: a view is wrong in the undisturbed run."""

    seed: int
    schedule: Sequence[Fault]
    difference: str
    wrong: bool = False

    def __str__(self) -> str:
        if self.wrong:
            return (
                f"seed {self.seed}: {WRONG}: no fault was needed to see it\n{self.difference}\n"
                f"Maps and reducers must repeat themselves, and reducers must not depend on the order of values (ms.testing.assert_reducer)."
            )
        if not self.schedule:
            return (
                f"seed {self.seed}: not deterministic: no fault was needed to see it\n{self.difference}\n"
                f"Use self.now for the clock, and seed randomness by self.key; keep what outside calls said in the state, behind a strong edge."
            )
        steps = "\n".join(f"  {number}. {fault}" for number, fault in enumerate(self.schedule, 1))
        return f"seed {self.seed}. The shortest schedule that shows it:\n{steps}\n{self.difference}"


def trial(
    program: Program,
    records: Rows,
    seed: int,
    kinds: Collection[str] = MICRO_BATCH_KINDS,
    shards: int = 2,
    guards: Guards = ALL_GUARDS,
    then: Program | None = None,
    resident: bool = False,
    schedule: Sequence[Fault] | None = None,
    simulate: type[Simulation] = Simulation,
) -> Counterexample | None:
    """Runs one seed; None if the run ends as the undisturbed one does. then: what it is restarted as in the middle. resident: with tasks that stay.

    Epochs are planned as production plans them, so the undisturbed run is one of the epochs that were committed. schedule: these faults, not ones that are
    drawn.
    """
    plan = make_plan(records, seed)
    after = None if then is None else (random.Random(f"then {seed}").randrange(1, len(plan.epochs)), then)
    judge = EpochJudge()
    try:
        undisturbed(program, plan, shards, then=after, judge=judge)
    except Violation as violation:
        return Counterexample(seed, (), str(violation), wrong=True)
    if schedule is None:
        schedule = make_schedule(program, plan, seed, kinds, shards, then, simulate.pauses)

    def differs(faults: Sequence[Fault]) -> str | None:
        simulation = simulate(program, plan, faults, seed, shards, guards, then=after, judge=judge, resident=resident)
        dropped = all(injector.dedup is not None for injector in program.topology.injectors.values())
        try:
            exact = dropped or not any(fault.kind == "repeat" for fault in faults) or not only_refined(program)
            end = simulation.run()
            return compare(simulation, end, undisturbed(program, simulation.committed_plan(), shards, then=after), exact)
        except Violation as violation:
            return str(violation)
        except MillstreamError as error:
            return f"the run ended with {type(error).__name__}: {cut_short(str(error).splitlines()[0], 300)}"

    difference = differs(schedule)
    if difference is None:
        return None
    shortest = shrink(schedule, differs)
    return Counterexample(seed, shortest, differs(shortest) or difference)


def shrink(schedule: Sequence[Fault], differs: Callable[[Sequence[Fault]], str | None]) -> list[Fault]:
    """Takes out fault after fault as long as the run still fails."""
    kept = list(schedule)
    at = 0
    while at < len(kept):
        without = kept[:at] + kept[at + 1 :]
        if differs(without) is not None:
            kept, at = without, 0
        else:
            at += 1
    return kept
