"""Records, cut into epochs in many ways: a program's result must not depend on how they fall.

Epochs follow from when the source delivers, how long the last one took, and what crashed. So a program is run with its records one by one, all at once and
in random portions, on other numbers of shards, and with instances shared in another way (`simulation/instance_sharing.py`). Every run must end as the first
does; `simulation/diagnosis.py` finds out what kind of mistake it is if one does not.

What may differ for a program that is right is kept out of it:
1. *Nothing is late*, because lateness depends on the cuts. A stream's watermark is the oldest timestamp still to come on it, or lags behind that. (With
   `watermarks="own"` the pipeline's policies say it.)
2. *The clock stands still* until all records are there. Then it moves on to the next wall-clock timers, a few times, before event time ends.
3. *Rows of a key are compared as a bag*, by timestamp and value: their order depends on the cuts, and the id of what a timer produces names its epoch. State
   and timers are compared at the end of event time, dicts without their order, floats to nine digits; dead letters without their traceback and id.
4. *Tables, views and joins* merge what an epoch brings. Of them is compared what they say in the end (`simulation/view_checks.py`), and every view must be
   what a recomputation gives.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from millstream.core.keys import key_of, key_text
from millstream.core.keyspace import ROW, SUB
from millstream.core.outcome import DROP, HOOK
from millstream.core.time import BEGINNING
from millstream.core.topology import ComputationSpec, Injector, Topology
from millstream.core.watermark import Policy, Progress, Seen
from millstream.engine.program import Program
from millstream.errors import HookError
from millstream.simulation.diff import OutRow, cut_short, first_entry, first_of_bag, same, short
from millstream.simulation.instance_sharing import EPOCH, ONE, SHARINGS, SharedCompiled
from millstream.simulation.local import LocalEngine
from millstream.simulation.view_checks import EpochJudge, by_arrival, first_of_state, first_of_streams, has_documents, outputs, read

KNOWN = "known"
OWN = "own"
START = 1_700_000_000_000
SINGLY = 200  # at most so many epochs for "one record per epoch"
_SETTLED = 50  # epochs between two portions, until nothing is due
_WALL = 5  # times that the clock moves on before the end of event time

Rows = Sequence[tuple[str, dict[str, Any]]]


class Cut(msgspec.Struct, frozen=True):
    """One way to run some records. Portion i is rows[bounds[i]:bounds[i+1]]; an empty one is an epoch without records.

    settled: between portions, epochs are run until nothing is due. behind: by how many portions told watermarks lag.
    """

    bounds: tuple[int, ...]
    shards: int
    settled: bool = False
    behind: int = 0
    sharing: str = EPOCH

    def without(self, gone: Collection[int]) -> Cut:
        """This trial with fewer rows."""
        return msgspec.structs.replace(self, bounds=tuple(bound - sum(1 for row in gone if row < bound) for bound in self.bounds))

    def portions(self) -> str:
        """How the input falls into epochs, in words."""
        sizes = [b - a for a, b in zip(self.bounds, self.bounds[1:], strict=False)]
        if len(sizes) == 1 and not self.settled:
            return "all records in one epoch"
        each = f"{sizes[0]} records" if sizes[0] > 1 else "one record"
        if len(set(sizes[:-1])) <= 1 and 0 < sizes[-1] <= sizes[0]:
            return f"{each} per epoch" + (", and epochs in between until nothing is due" if self.settled else "")
        return f"epochs of {', '.join(map(str, sizes[:12]))}{', …' if len(sizes) > 12 else ''} records"


def singly(count: int, shards: int) -> Cut:
    """One record at a time, and all that it makes due before the next: what every other cut is compared with."""
    size = -(-count // SINGLY) or 1
    return Cut((*range(0, count, size), count) if count else (0, 0), shards, settled=True)


def cuts(count: int, shards: int, seeds: Iterable[int]) -> Iterator[Cut]:
    """The ways to try: those in which most mistakes show, then one per seed."""
    first = singly(count, shards)
    yield Cut((0, count), shards)
    yield Cut(first.bounds, shards + 1)
    yield msgspec.structs.replace(first, shards=1, sharing=ONE)
    for seed in seeds:
        dice = random.Random(f"cut {seed}")
        inner = [dice.randrange(count + 1) for _ in range(dice.choice([1, 2, 3, 5, 8]))]
        empty = dice.choices(inner, k=dice.randint(0, 3))
        yield Cut(
            (0, *sorted(inner + empty), count), dice.randint(1, 5), dice.random() < 0.3, dice.choice([0, 0, 1, 3]), dice.choice(SHARINGS)
        )


# --- one run


class Told(Policy, frozen=True):
    """A watermark that the check tells."""

    stream: str
    told: dict[str, int]

    def value(self, progress: Progress, seen: Seen, now: int) -> tuple[int, str]:
        return self.told.get(self.stream, BEGINNING), "what the check knows"


class Ran(msgspec.Struct):
    """A run that has ended: the engine, or the error of a hook; and what the user compares, if they say it."""

    engine: LocalEngine
    compiled: SharedCompiled
    error: HookError | None = None
    chosen: Any = None
    wrong: str | None = None  # a view that is not what a recomputation gives


class Trials:
    """A program with its records, to be run in many ways and compared."""

    def __init__(
        self,
        program: Program,
        rows: Rows,
        compare: Callable[[LocalEngine], Any] | None = None,
        ignore: Collection[str] = (),
        watermarks: str = KNOWN,
    ) -> None:
        self.program = program
        self.rows = rows
        self.compare = compare
        self.ignore = frozenset(ignore)
        self.watermarks = watermarks
        self.told: dict[str, int] = {}
        topology = program.topology
        injectors = list(topology.injectors.values())
        if watermarks == KNOWN:
            injectors = [msgspec.structs.replace(i, watermark=Told(stream=i.name, told=self.told)) for i in injectors]
        self.told_program = Program(program.name, Topology(injectors, topology.computations, topology.emissions), program.codec)
        self.told_program.expressions = program.expressions

    def of(self, rows: Rows) -> Trials:
        """This trial with other rows."""
        return Trials(self.program, rows, self.compare, self.ignore, self.watermarks)

    def run(self, cut: Cut, renewed: Collection[str] = ()) -> Ran:
        """One run. renewed: attributes that start anew for each visit of a key, on an instance that is otherwise kept."""
        engine = LocalEngine(self.told_program, cut.shards)
        compiled = SharedCompiled(self.told_program, cut.sharing, renewed)
        engine.compiled = compiled
        engine.now = START
        self.told.clear()
        ran = Ran(engine, compiled)
        try:
            self._feed(engine, cut)
            self._wall_clock(engine)
            engine.drain()
        except HookError as error:
            ran.error = error
            return ran
        wrong = EpochJudge().first(read(engine))
        ran.wrong = None if wrong is None else str(wrong)
        if self.compare is not None:
            ran.chosen = self.compare(engine)
        return ran

    def _feed(self, engine: LocalEngine, cut: Cut) -> None:
        still = _still_to_come(engine.topology.injectors, self.rows)
        for at, (begin, end) in enumerate(zip(cut.bounds, cut.bounds[1:], strict=False)):
            for stream, row in self.rows[begin:end]:
                engine.push(stream, row)
            self.told.update(still[cut.bounds[max(0, at + 1 - cut.behind)]])
            engine.run_epoch()
            if cut.settled:
                _settle(engine)
        self.told.update(still[-1])
        engine.run_epoch()

    def _wall_clock(self, engine: LocalEngine) -> None:
        _settle(engine)
        for _ in range(_WALL):
            due = [counts.next_wall for counts in engine.marks.values() if counts.next_wall is not None]
            if not due:
                return
            engine.now = max(engine.now, min(due))
            _settle(engine)

    # --- two runs

    def difference(self, got: Ran, expected: Ran) -> str | None:
        """The first difference of two runs, in words; None if there is none."""
        if got.error is not None and expected.error is not None:
            return None
        if got.error is not None:
            return f"the run ended with HookError: {short_error(got.error)}"
        if expected.error is not None:
            return f"the run ended without error instead of with HookError: {short_error(expected.error)}"
        if got.wrong is not None and expected.wrong is None:
            return got.wrong
        if self.compare is not None:
            if same(got.chosen, expected.chosen):
                return None
            return f"what compare= gives: {_chosen(got.chosen, expected.chosen)}"
        arrivals = by_arrival(read(expected.engine))
        for spec in got.engine.topology.computations:
            if spec.refines:
                found = None if spec.name in arrivals else self._of_refined(spec, got.engine, expected.engine)
                if found is not None:
                    return found
                continue
            found = self._of_streams(spec, got.engine, expected.engine) or self._of_state(spec, got.engine, expected.engine)
            if found is not None:
                return found
        return None

    def _of_refined(self, spec: ComputationSpec, got: LocalEngine, expected: LocalEngine) -> str | None:
        if not has_documents(spec):  # its changes are looked at where they are published
            return self._of_streams(spec, got, expected, [one for one in spec.streams if one not in spec.produces])
        sender = read(expected).sender(spec.name)
        if spec.dead_letters is not None:
            found = self._of_streams(spec, got, expected, [spec.dead_letters])
            if found is not None:
                return found
        if self.ignore:
            shown = tuple(one for one in sender.sending.shown if one.stream not in self.ignore)
            sender.sending = msgspec.structs.replace(sender.sending, shown=shown)
        found = first_of_streams(sender, outputs(got), outputs(expected))
        if found is None and spec.name not in self.ignore:
            found = first_of_state(spec.name, read(got), read(expected))
        return found

    def _of_streams(
        self, spec: ComputationSpec, got: LocalEngine, expected: LocalEngine, streams: Sequence[str] | None = None
    ) -> str | None:
        for stream in spec.streams if streams is None else streams:
            if stream in self.ignore:
                continue
            dull = ("traceback", "id") if stream == spec.dead_letters else ("low_watermark", "id") if stream in _late_streams(spec) else ()
            ones, others = (_by_key(engine, stream, dull, of_records=streams is not None) for engine in (got, expected))
            for text in sorted(ones.keys() | others.keys(), key=lambda text: text or ""):
                key = None if text is None else key_of(text)
                found = first_of_bag(f"stream {stream!r}, key {key!r}", ones.get(text, []), others.get(text, []))
                if found is not None:
                    return found
        return None

    def _of_state(self, spec: ComputationSpec, got: LocalEngine, expected: LocalEngine) -> str | None:
        if spec.name in self.ignore:
            return None
        ones, others = (
            {
                entry: raw
                for shard in range(engine.shards)
                for entry, raw in engine.stores[spec.name, shard].entries.items()
                if entry.startswith((ROW, SUB))
            }
            for engine in (got, expected)
        )
        if ones == others:
            return None
        return first_entry(spec.name, expected.compiled.make(spec.name)[1], ones, others, exact=False)


def _settle(engine: LocalEngine) -> None:
    """Epochs until nothing is due and time stands in every computation where it can be."""
    for _ in range(_SETTLED):
        before = engine.low_watermarks
        engine.run_epoch()
        if not engine.due() and engine.low_watermarks == before:
            return


def short_error(error: HookError) -> str:
    """The first line of an error, cut short."""
    return cut_short(str(error).splitlines()[0], 300)


def _late_streams(spec: ComputationSpec) -> set[str]:
    return set(spec.late_streams.values()) - {DROP, HOOK}


def _by_key(engine: LocalEngine, stream: str, dull: Sequence[str], of_records: bool = False) -> dict[str | None, list[OutRow]]:
    """of_records: dead letters of anything else are left out."""
    found: dict[str | None, list[OutRow]] = {}
    encode = engine.compiled.encode_value
    for row in engine.outputs[stream]:
        if of_records and row.value["stream"] is None:
            continue
        value = row.value if not dull else {name: field for name, field in row.value.items() if name not in dull}
        text = None if row.key is None else key_text(row.key)
        found.setdefault(text, []).append(OutRow(row.timestamp, value, encode(value)))
    return found


def _chosen(got: Any, expected: Any) -> str:
    """The first part of what a user compares that differs."""
    if isinstance(got, Mapping) and isinstance(expected, Mapping):
        for key in [*expected, *[key for key in got if key not in expected]]:
            if key not in got or key not in expected or not same(got[key], expected[key]):
                texts = [short(of[key]) if key in of else "nothing" for of in (got, expected)]
                return f"under {key!r}, {texts[0]} instead of {texts[1]}"
    if isinstance(got, (list, tuple)) and isinstance(expected, (list, tuple)):
        for at in range(max(len(got), len(expected))):
            if at >= len(got) or at >= len(expected) or not same(got[at], expected[at]):
                texts = [short(of[at]) if at < len(of) else "nothing" for of in (got, expected)]
                return f"at {at}, {texts[0]} instead of {texts[1]}"
    return f"{short(got)} instead of {short(expected)}"


def time_of(injector: Injector, row: Mapping[str, Any]) -> int | None:
    """A row's event time; None if it has none that can be used, of which the engine will complain."""
    time = START if injector.timestamp is None else row.get(injector.timestamp) if isinstance(injector.timestamp, str) else None
    return time if time.__class__ is int else None


def _still_to_come(injectors: Mapping[str, Injector], rows: Rows) -> list[dict[str, int]]:
    """For every position: the oldest timestamp that is to come on each stream from there on. A stream on which nothing is to come waits for nobody."""
    times = [time_of(injectors[stream], row) for stream, row in rows]
    newest = max((time for time in times if time is not None), default=BEGINNING)
    oldest: dict[str, int] = {}
    found = [dict.fromkeys(injectors, newest)]
    for (stream, _), time in zip(reversed(rows), reversed(times), strict=True):
        if time is not None:
            oldest[stream] = min(time, oldest.get(stream, time))
        least = min(oldest.values(), default=newest)
        found.append({name: oldest.get(name, least) for name in injectors})
    return found[::-1]
