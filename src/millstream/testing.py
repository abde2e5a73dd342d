"""The user's test kit: a pipeline in one process, without Spark, on a hand-moved clock; under simulated faults; and under real kills.

runner = ms.testing.LocalRunner(pipeline)
runner.push("queries", {"term": "tea", "at": 1_000, "id": "q1"})
runner.run()                       # epochs until nothing is due
runner.drain()                     # the input ends, every window closes
assert runner.output("counts") == [("tea", 1, 2_000)]

ms.testing.assert_same_in_any_epochs(pipeline, records)                 # other epochs, shards, instances: the same outcome
ms.testing.assert_exactly_once(pipeline, records, seeds=range(200))     # crashes, zombies, repeated input as well

faults = ms.testing.SparkFaults("my_job.py", "checkpoint")              # kill -9 at a named point, on Spark
faults.kill_at("epoch.6-committed", epoch=3)

ms.testing.check_sink(sink, read)  # a sink of your own: called twice, by replaced runs, by drivers that are killed

ms.testing.check_store(open_store)                                      # the contracts of the state service, against your own store or log
asyncio.run(ms.testing.check_log(open_log))
"""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millstream import faults as _faults
from millstream.core.guards import ALL_GUARDS, Guards
from millstream.core.keys import check_shards
from millstream.core.record import Timer
from millstream.core.time import duration
from millstream.core.topology import ADAPTIVE
from millstream.engine.program import Compiled, Program, check
from millstream.errors import DefinitionError, InputWarning
from millstream.pipeline import Pipeline
from millstream.reducers.law_checks import assert_reducer
from millstream.simulation import view_checks
from millstream.simulation.local import Emitted, LocalEngine, SimulatedCrash
from millstream.simulation.sink_checks import check_sink

if TYPE_CHECKING:
    from millstream.service.conformance import check_log, check_store
    from millstream.service.node import serving

__all__ = [
    "Emitted",
    "LocalRunner",
    "SimulatedCrash",
    "SparkFaults",
    "assert_exactly_once",
    "assert_reducer",
    "assert_same_in_any_epochs",
    "check_log",
    "check_sink",
    "check_store",
    "serving",
]


Expressions = Mapping[str, Callable[[dict[str, Any]], Any]]  # by SQL text: what it means for a row
_CUTS = 25  # seeds of assert_exactly_once that are also cut in other ways


def __getattr__(name: str) -> Any:
    if name in ("check_log", "check_store"):  # contracts of the state service, for whoever writes a log or a store of its own
        from millstream.service import conformance

        return getattr(conformance, name)
    if name == "serving":  # a node of the state service, for whoever tests tables and functions
        from millstream.service import node

        return node.serving
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _program(pipeline: Pipeline, expressions: Expressions | None) -> Program:
    program = pipeline.program()
    program.expressions.update(expressions or {})
    check(Compiled(program))
    return program


class LocalRunner:
    """Runs a pipeline in memory: push records, move time, read outputs, state and timers, crash and resume.

    It runs the same step as the Spark engine, so what holds here for the order of records and timers holds there. It does not model
    sinks (read `output`), shuffles or failing machines.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        shards: int = 2,
        now: int = 0,
        expressions: Expressions | None = None,
        guards: Guards = ALL_GUARDS,
    ) -> None:
        """expressions: by the SQL text of a key, timestamp or id, a function of the row that gives the same. guards: for tests that show what a guard does."""
        self._engine = LocalEngine(_program(pipeline, expressions), check_shards(shards), guards)
        self._engine.now = now
        self._engine.warn = lambda text: warnings.warn(text, InputWarning, stacklevel=5)  # who has called run

    @classmethod
    def _around(cls, engine: LocalEngine) -> LocalRunner:
        runner = cls.__new__(cls)
        runner._engine = engine
        return runner

    def push(self, stream: str, *rows: dict[str, Any]) -> None:
        """Lets rows arrive on an injected stream in the next epoch."""
        for row in rows:
            self._engine.push(stream, row)

    def epoch(self, *, crash: bool = False) -> None:
        """Runs one epoch. With crash=True it dies just before the commit (`SimulatedCrash`): nothing of it remains, what was pushed is still to come."""
        self._engine.run_epoch(crash)

    def run(self, limit: int = 1_000) -> None:
        """Runs epochs until nothing is pending or due."""
        for _ in range(limit):
            if not self._engine.due():
                return
            self._engine.run_epoch()
        raise DefinitionError(f"after {limit} epochs there is still something due: does a timer keep setting another?")

    def advance_watermark(self, stream: str, to: int) -> None:
        """Moves an injected stream's watermark forward to a time (milliseconds since 1970), as if its source had said so, and runs what is due. One that is
        further already stays."""
        if stream not in self._engine.injected:
            raise DefinitionError(f"no injected stream is called {stream!r}; there are: {', '.join(self._engine.injected)}")
        self._engine.progress[stream].watermark = max(self._engine.injected[stream], to)
        self._settle()

    def advance_clock(self, to: int | str | datetime.timedelta) -> None:
        """Moves the wall clock forward and runs what is due. to: a number is the time itself, in milliseconds since 1970, as hooks see it in `self.now`; a
        text such as "5s", or a timedelta, is a step from where the clock stands."""
        now = self._engine.now
        if isinstance(to, (str, datetime.timedelta)):
            step = duration(to)
            if step < 0:
                raise ValueError(f"advance_clock({to!r}): the clock does not go back")
            to = now + step
        if to.__class__ is not int:
            raise ValueError(f"advance_clock({to!r}): give a time as an int, milliseconds since 1970, or a step such as '5s'")
        if to < now:
            raise ValueError(
                f"advance_clock({to}): a number is a time, not a step, and the clock stands at {now} already: it does not go back. To move it on by {to} ms, "
                f"write advance_clock('{to}ms')."
            )
        self._engine.now = to
        self._settle()

    def _settle(self) -> None:
        self._engine.run_epoch()
        self.run()

    def drain(self) -> None:
        """Ends the input: every low-watermark timer fires."""
        self._engine.drain()

    def output(self, stream: str) -> list[tuple[Any, Any, int]]:
        """What a stream, or a published table or view, has carried so far: (key, value, timestamp), in order per key."""
        return [(e.key, e.value, e.timestamp) for e in self.records(stream)]

    def records(self, stream: str) -> list[Emitted]:
        """What `output` gives, with ids."""
        if stream not in self._engine.outputs:
            stream = next((one.stream for one in self._engine.topology.emissions if one.name == stream), stream)
        if stream not in self._engine.outputs:
            raise DefinitionError(f"no computation produces {stream!r}; streams: {', '.join(self._engine.outputs)}")
        return list(self._engine.outputs[stream])

    def state(self, computation: str, key: Any = None) -> Any:
        """A key's state (None if it has none), or with no key the states of all keys. Of a window operator that is a list of the key's open panes: dicts with
        `start`, `end`, and what the reducers show so far. A pane is a window; of hopping windows, a part of several."""
        found = self._engine.state(computation)
        return found if key is None else found.get(key)

    def view(self, name: str, key: Any = None) -> Any:
        """What a view shows, by group (of a table: its documents, by key); with a key, one of them, None if there is none."""
        return view_checks.shown(self._engine, name) if key is None else view_checks.shown(self._engine, name).get(key)

    def contributions(self, view: str, group: Any) -> dict[Any, list[Any]]:
        """What each document gives to a group of a view, by the document's key."""
        return view_checks.contributions(self._engine, view, group)

    def check(self) -> None:
        """Recomputes every view from its rows' senders, and raises AssertionError if anything is not as it should be, down to every node."""
        found = view_checks.differences(self._engine)
        if found:
            raise AssertionError(f"{len(found)} differences:\n" + "\n".join(f"  {one}" for one in found[:20]))

    def become(self, pipeline: Pipeline, *, expressions: Expressions | None = None, drop: Sequence[str] = ()) -> None:
        """Goes on as another version of the pipeline, as a restart with changed code would: state, timers and what was pushed stay. What a checkpoint would
        refuse is refused; drop: computations whose state may go."""
        self._engine.become(_program(pipeline, expressions), drop)

    def timers(self, computation: str, key: Any) -> list[Timer]:
        """A key's timers, in order of time."""
        return self._engine.timers(computation, key)

    def late(self, computation: str) -> int:
        """How many late records a computation has seen."""
        return self._engine.late[computation]

    def dead(self, computation: str) -> int:
        """How many dead letters a computation has written."""
        return self._engine.dead[computation]

    @property
    def duplicates(self) -> int:
        """How many repeated records were dropped."""
        return self._engine.duplicates

    def store(self, stream: str, computation: str, storing: bool = True) -> None:
        """Makes an adaptive edge store (or deliver at once again), as a slow consumer would."""
        edge = (stream, computation)
        if self._engine.topology.edges.get(edge) != ADAPTIVE:
            raise DefinitionError(f"the edge from {stream!r} into {computation!r} is not adaptive")
        (self._engine.storing.add if storing else self._engine.storing.discard)(edge)

    def low_watermark(self, computation: str) -> int:
        """A computation's low watermark after the last epoch."""
        return self._engine.low_watermarks[computation]


def assert_same_in_any_epochs(
    pipeline: Pipeline,
    records: Iterable[Any] | Mapping[str, Iterable[dict[str, Any]]],
    seeds: Iterable[int] = range(_CUTS),
    *,
    shards: int = 2,
    compare: Callable[[LocalRunner], Any] | None = None,
    ignore: Collection[str] = (),
    watermarks: str = "known",
    expressions: Expressions | None = None,
) -> None:
    """Runs a pipeline on the same records in other epochs, on other numbers of shards and with other instances, and compares outputs, state and timers.

    records: as in `assert_exactly_once`. They are run one by one, all in one epoch, and in random portions, one way per seed. No
    record is late, the clock stands still, and the order of a key's rows is not compared: what is left must be equal. compare: a function of
    the `LocalRunner` at the end that gives what must be equal instead. ignore: streams and computations (their state) that may differ.
    watermarks="own": those of the pipeline, by which some records may be late in one way and on time in another.
    Raises AssertionError with the kind of mistake, the first difference, and the fewest records that show it.

    >>> import millstream as ms
    >>> class Count(ms.Computation):
    ...     State = int
    ...     seen = 0
    ...     def process_record(self, record):
    ...         self.seen += 1
    ...         self.produce(self.seen)
    >>> pipeline = ms.Pipeline("words")
    >>> words = pipeline.inject("words", ms.sources.files("in/", schema="word string, at long, id string"), timestamp="at", id="id")
    >>> counts = pipeline.compute(Count, words, key="word")
    >>> ms.testing.assert_same_in_any_epochs(pipeline, [{"word": "tea", "at": at, "id": str(at)} for at in range(10)])
    Traceback (most recent call last):
    AssertionError: pipeline 'words': not in the state: `self.seen`, of computation 'Count'
    stream 'Count', key 'tea': 1 at 2 instead of 2 at 2
      with a new instance for each shard and epoch, instead of one instance for all keys and epochs
    The records that show it, in order of arrival:
      words: {'word': 'tea', 'at': 1, 'id': '1'}
      words: {'word': 'tea', 'at': 2, 'id': '2'}
    An instance serves many keys, and is gone after its epoch. Keep in self.state what is to last.
    """
    from millstream.simulation.diagnosis import find
    from millstream.simulation.epoch_cuts import KNOWN, OWN, Trials

    rows, numbers, program = _rows(pipeline, records), _seeds(seeds), _program(pipeline, expressions)
    names = [name for spec in program.topology.computations for name in (spec.name, *spec.streams)]
    ignored = [ignore] if isinstance(ignore, str) else list(ignore)
    unknown = [name for name in ignored if name not in names]
    if unknown:
        raise DefinitionError(
            f"ignore={unknown}: no computation and none of its streams is called that; there are: {', '.join(dict.fromkeys(names))}"
        )
    if compare is not None and (not callable(compare) or ignored):
        raise DefinitionError(
            "compare= is a function of the LocalRunner at the end. It says all that is compared, so ignore= has no place beside it."
        )
    if watermarks not in (KNOWN, OWN):
        raise DefinitionError(f"watermarks={watermarks!r}: there are {KNOWN!r} (nothing is late) and {OWN!r} (those of the pipeline)")
    chosen = None if compare is None else lambda engine: compare(LocalRunner._around(engine))
    found = find(Trials(program, rows, chosen, ignored, watermarks), check_shards(shards), numbers)
    if found is not None:
        raise AssertionError(f"pipeline {pipeline.name!r}: {found}")


def assert_exactly_once(
    pipeline: Pipeline,
    records: Iterable[Any] | Mapping[str, Iterable[dict[str, Any]]],
    seeds: Iterable[int] = range(200),
    *,
    shards: int = 2,
    faults: Collection[str] | None = None,
    guards: Guards = ALL_GUARDS,
    epochs: str = "any",
    expressions: Expressions | None = None,
    then: Pipeline | None = None,
    resident: bool = False,
    schedule: str | None = None,
) -> None:
    """Runs a pipeline under simulated faults, once per seed, and compares outputs, state, timers and low watermarks with an undisturbed run.

    records: rows of the one injected stream; or (stream, row) pairs in order of arrival; or a dict of rows by stream. faults: some of
    "crash", "pause", "retry", "recompute", "zombie", "repeat", "compact", "forget", "replan"; all by default, "repeat" only on streams whose ids are
    deduplicated and whose watermark is bounded without an idle time, or that only tables with versions read (others may rightly take note of a repeated
    record), and never of records that are rejected: they go to the dead letters without deduplication. Hooks must be
    deterministic: a pipeline that rolls dice differs from its undisturbed run without any fault.
    epochs: "any" first does what `assert_same_in_any_epochs` does, with the first seeds; "same" does not, for a pipeline whose result may depend
    on how input falls into epochs. Of tables, views and joins, after every committed epoch each view is also compared with a recomputation, as `check`
    does. then: another version of the pipeline, as which it is restarted in the middle of the records: a view may be new in it, or changed.
    resident: as `run(resident=True)` would, with tasks that stay. The faults are then "crash", "pause", "repeat", "compact", "forget", "lose", "stale",
    "rejoin" and "replan". After "replan" an epoch has other rows, so the undisturbed run is one of the epochs that were committed.
    schedule: the text of a schedule that was printed: its faults are tried, with the seeds given, instead of ones that are drawn.
    Raises AssertionError with the seed, the shortest schedule that fails, and the first difference.

    >>> import millstream as ms
    >>> class Count(ms.Computation):
    ...     State = int
    ...     def process_record(self, record):
    ...         self.state += 1
    ...         self.produce(self.state)
    >>> pipeline = ms.Pipeline("words")
    >>> words = pipeline.inject("words", ms.sources.files("in/", schema="word string, at long, id string"), timestamp="at", id="id")
    >>> counts = pipeline.compute(Count, words, key="word")
    >>> rows = [{"word": "tea", "at": at, "id": str(at)} for at in range(10)]
    >>> ms.testing.assert_exactly_once(pipeline, rows, seeds=range(5))
    >>> ms.testing.assert_exactly_once(pipeline, rows, seeds=range(5), resident=True)
    """
    from millstream.simulation.diagnosis import find
    from millstream.simulation.epoch_cuts import Trials
    from millstream.simulation.fault import read_schedule
    from millstream.simulation.schedules import may_repeat, trial  # they load pyarrow and lmdb
    from millstream.simulation.simulated_run import MICRO_BATCH_KINDS, RESIDENT_KINDS

    program = _program(pipeline, expressions)
    rows = _rows(pipeline, records)
    numbers = _seeds(seeds)
    check_shards(shards)
    known = RESIDENT_KINDS if resident else MICRO_BATCH_KINDS
    kinds = tuple(faults) if faults is not None else known
    unknown = sorted(set(kinds) - set(known))
    if unknown:
        hint = "; the others are for resident=True" if not resident and set(unknown) <= set(RESIDENT_KINDS) else ""
        raise DefinitionError(f"faults={unknown}: there are {', '.join(known)}{hint}")
    if epochs not in ("any", "same"):
        raise DefinitionError(
            f"epochs={epochs!r}: there are 'any' (the result must not depend on how input falls into epochs) and 'same' (it may)"
        )
    if epochs == "any":
        differs = find(Trials(_program(pipeline, expressions), rows), shards, numbers[:_CUTS])
        if differs is not None:
            raise AssertionError(f"pipeline {pipeline.name!r} is not exactly once: {differs}")
    if faults is None and not any(may_repeat(program, stream) for stream in program.topology.injectors):
        kinds = tuple(kind for kind in kinds if kind != "repeat")
    forced = None if schedule is None else read_schedule(schedule)
    for seed in numbers:
        after = None if then is None else _program(then, expressions)
        found = trial(program, rows, seed, kinds, shards, guards, after, resident, schedule=forced)
        if found is not None:
            raise AssertionError(f"pipeline {pipeline.name!r} is not exactly once. {found}")


def _seeds(seeds: Iterable[int]) -> list[int]:
    if isinstance(seeds, (str, bytes)) or not isinstance(seeds, Iterable):
        raise DefinitionError(f"seeds={seeds!r}: give several numbers, such as range(20) or [17]")
    return list(seeds)


def _rows(pipeline: Pipeline, records: Any) -> Sequence[tuple[str, dict[str, Any]]]:
    injected = list(pipeline.topology().injectors)
    if isinstance(records, Mapping):
        given: list[Any] = [(stream, row) for stream, rows in records.items() for row in rows]
    else:
        given = list(records)
        if len(injected) > 1 and any(not isinstance(row, tuple) for row in given):
            raise DefinitionError(f"the pipeline has several injected streams ({', '.join(injected)}): give (stream, row) pairs, or a dict")
    pairs = [row if isinstance(row, tuple) and len(row) == 2 else (injected[0], row) for row in given]
    for stream, row in pairs:
        if stream not in injected:
            raise DefinitionError(f"no injected stream is called {stream!r}; there are: {', '.join(injected)}")
        if not isinstance(row, Mapping):
            raise DefinitionError(f"a record is a dict of the source's columns, not {row!r}")
    return [(stream, dict(row)) for stream, row in pairs]


class SparkFaults:
    """A pipeline on Spark in a child process that can be killed (SIGKILL) at a named point of an epoch, and started again.

    program: a Python file that runs the pipeline to its end, or a list of arguments for Python. `points` names the places, in the order of the
    epoch; they are explained in docs/guarantees.md.
    """

    points = _faults.POINTS

    def __init__(
        self, program: str | os.PathLike[str] | Sequence[str], *arguments: str, timeout: float = 300, env: Mapping[str, str] | None = None
    ) -> None:
        given = [os.fspath(program)] if isinstance(program, (str, os.PathLike)) else list(program)
        self.command = [sys.executable, *given, *arguments]
        self.timeout = timeout
        self.env = dict(env or {})

    def start(self, crash: str = "") -> subprocess.Popen[bytes]:
        """Starts the child, armed or not. The caller waits for it, or kills it with `kill`."""
        return subprocess.Popen(
            self.command,
            env={**os.environ, **self.env, _faults.VARIABLE: crash},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def kill_at(
        self,
        point: str,
        epoch: int,
        *,
        worker: bool = False,
        level: int | None = None,
        shard: int | None = None,
        also: Sequence[str] = (),
    ) -> str:
        """Runs the child until it kills itself there (worker: only the Python worker, and the child goes on to its end). Returns its output.

        level, shard: only in the tasks of this level of the graph (tables are on level 0, views on them on level 1), of this shard. also: further points
        that are armed, as `armed` gives them. Raises AssertionError if it ended before it got there.
        """
        code, output = self._wait(self.start(",".join([*also, self.armed(point, epoch, worker=worker, level=level, shard=shard)])))
        expected = 0 if worker else -signal.SIGKILL
        if code != expected:
            raise AssertionError(f"the child ended with {code} instead of {expected} at {point} of epoch {epoch}:\n{output[-4000:]}")
        return output

    @classmethod
    def armed(cls, point: str, epoch: int, *, worker: bool = False, level: int | None = None, shard: int | None = None) -> str:
        """A point as `start` and MILLSTREAM_CRASH take it; several with commas in between.

        >>> SparkFaults.armed("task.4-staging", 3, worker=True, level=1, shard=0)
        'worker:task.4-staging@3/1.0'
        """
        if point not in cls.points:
            raise ValueError(f"no crash point is called {point!r}; there are: {', '.join(cls.points)}")
        if (level is not None or shard is not None) and not point.startswith("task."):
            raise ValueError(f"{point!r} is a point of the driver, which has no level and no shard: only those of tasks do")
        return _faults.text_of(point, epoch, worker, level, shard)

    def run(self) -> str:
        """Runs the child to its end, undisturbed. Raises AssertionError if it fails."""
        code, output = self._wait(self.start())
        if code:
            raise AssertionError(f"the child ended with {code}:\n{output[-4000:]}")
        return output

    def kill_after(self, seconds: float) -> str:
        """Starts the child and kills it, with all its processes, after a time."""
        child = self.start()
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        self.kill(child)
        return child.communicate()[0].decode(errors="replace")

    @staticmethod
    def kill(child: subprocess.Popen[bytes]) -> None:
        """SIGKILL to the child and everything it started."""
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def _wait(self, child: subprocess.Popen[bytes]) -> tuple[int, str]:
        try:
            output = child.communicate(timeout=self.timeout)[0]
        except subprocess.TimeoutExpired:
            self.kill(child)
            output = child.communicate()[0]
            raise AssertionError(f"the child did not end within {self.timeout} s:\n{output.decode(errors='replace')[-4000:]}") from None
        finally:
            self.kill(child)  # Spark's JVM outlives a driver that was killed
        return child.returncode, output.decode(errors="replace")
