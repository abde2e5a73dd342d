"""Does a sink keep its contract? It is called as the engine calls it, and then as the engine's misfortunes have it: again, in a new process, by a run that has
been replaced, beside another pipeline, and by drivers that are killed with SIGKILL while they write.

Rule: what the engine guarantees a sink is kept here, too. An epoch that is committed has the same rows in every call, epochs are handed over in their order,
and the last one again at the start of the next run. An epoch that is not committed is staged, and planned anew with other rows.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.spawn import import_main_path
from pathlib import Path
from statistics import median
from typing import Any

from millstream.errors import Fenced, SinkError
from millstream.sinks.base import DriverContext, Part, Sink, SinkRow, TaskContext
from millstream.sinks.epoch_sink import EpochSink
from millstream.state.compaction import unit_name
from millstream.state.fencing import Runs
from millstream.state.manifest_log import Identity, ManifestLog
from millstream.state.storage import LocalStorage

_KEYS = 5
_SHARDS = 2
_ROWS = 4  # of an epoch in which a driver may be killed
_SILENT = 120.0  # seconds that a driver may take
_AT_MOST, _AT_LAST = 1_000, 3  # epochs of a driver that is killed, and of the one that is not

RowMaker = Callable[[int], SinkRow]


def default_row(n: int) -> SinkRow:
    return SinkRow(f"k{n % _KEYS}", 1_000 + n, {"n": n})


class Stage:
    """A pipeline and its checkpoint, as far as sinks see them. emission: the stream's name."""

    def __init__(self, folder: Path, row: RowMaker, emission: str = "rows") -> None:
        self.storage = LocalStorage(str(folder))
        self.row, self.emission, self.pipeline = row, emission, folder.name
        log = ManifestLog(self.storage)
        if not self.storage.exists("identity.json"):
            log.write_identity(Identity(secrets.token_hex(8), self.pipeline, _SHARDS, []))
        self.runs = Runs(self.storage)

    def run(self, sink: Sink) -> OneRun:
        return OneRun(self, sink, self.runs.claim(None))


class OneRun:
    """A run of it, with a sink of its own, as a process of its own would have."""

    def __init__(self, stage: Stage, sink: Sink, token: str) -> None:
        self.stage, self.token = stage, token
        self.sink: Sink = _other(sink)
        self.sink.check()

    def staged(self, epoch: int, numbers: Sequence[int]) -> list[Part]:
        """Tasks: a part for each shard, in units and in objects of their own by turns."""
        parts = []
        for shard in range(_SHARDS):
            rows = [self.stage.row(n) for n in numbers if n % _KEYS % _SHARDS == shard]
            if rows:
                parts.append(self._part(epoch, shard, rows))
        return parts

    def _part(self, epoch: int, shard: int, rows: list[SinkRow]) -> Part:
        sink, where = self.sink, self.stage
        label, attempt = f"{where.pipeline}-{where.emission}-{shard:04d}", f"1.{secrets.token_hex(4)}"
        context = TaskContext(where.storage, where.emission, epoch, label, attempt, self.token, where.pipeline, shard)
        if not sink.in_units:
            return sink.stage(context, rows)
        data = sink.encode_part(context, rows)
        if (epoch + shard) % 2:
            part = sink.stage_encoded(context, data, len(rows))
        else:
            name = unit_name(epoch, f"t{shard}", self.token)
            where.storage.put(name, data)
            part = Part(rows=len(rows), staged=name, in_checkpoint=True, own={"offset": 0, "length": len(data)})
        if sink.form:
            part.own["form"] = sink.form
        return part

    def _context(self, redo: bool) -> DriverContext:
        return DriverContext(self.stage.storage, self.stage.pipeline, self.stage.emission, None, redo, self.token)

    def prepare(self, epoch: int, parts: Sequence[Part]) -> None:
        self.sink.prepare(self._context(False), epoch, parts)

    def commit(self, epoch: int, parts: Sequence[Part], redo: bool = False) -> None:
        self.sink.commit(self._context(redo), epoch, parts)

    def publish(self, epoch: int, numbers: Sequence[int]) -> list[Part]:
        parts = self.staged(epoch, numbers)
        self.prepare(epoch, parts)
        self.commit(epoch, parts)
        return parts


def _other(sink: Sink) -> Sink:
    """The sink as another process has it."""
    found: Sink = pickle.loads(pickle.dumps(sink))
    return found


class Judge:
    """Compares what is there with what must be. latest: a target that has the last row of each key."""

    def __init__(self, read: Callable[[], Iterable[int]], row: RowMaker, latest: bool) -> None:
        self._read, self._row, self._latest = read, row, latest

    def expect(self, numbers: Iterable[int], when: str) -> None:
        wanted, found = self._by_key(numbers), self._by_key(self._read())
        if wanted != found:
            lost = {key: some for key, some in wanted.items() if found.get(key) != some}
            raise AssertionError(
                f"{when}: the target should have {lost or wanted}, by key, and has {({k: found.get(k) for k in lost}) or found}"
            )

    def _by_key(self, numbers: Iterable[int]) -> dict[Any, list[int]]:
        found: dict[Any, list[int]] = {}
        for n in numbers:
            found.setdefault(self._row(n).key, []).append(n)
        return {key: some[-1:] for key, some in found.items()} if self._latest else found


def check_sink(
    sink: Sink,
    read: Callable[[], Iterable[int]],
    *,
    row: RowMaker = default_row,
    latest: bool = False,
    kills: int = 6,
    seed: int | None = None,
) -> None:
    """Raises AssertionError if a sink loses, repeats or reorders rows, or shows some that were never committed.

    The target must be empty, and the sink one that can be pickled. `row` makes row number n (by default key "k0" to "k4", value {"n": n}). `read` gives the
    numbers of the rows that are in the target, those of one key in their order. latest: the target keeps the last row of each key. kills: how many drivers
    are killed while they publish.
    """
    judge = Judge(read, row, latest)
    seed = random.randrange(1 << 30) if seed is None else seed
    with tempfile.TemporaryDirectory(prefix="millstream-check-") as folder:
        there = _call(sink, judge, row, Path(folder))
        there = _replace(sink, judge, row, Path(folder), there)
        there = _share(sink, judge, row, Path(folder), there)
        _kill(sink, judge, row, Path(folder), there, kills, seed)
    sink.close()


def _call(sink: Sink, judge: Judge, row: RowMaker, folder: Path) -> list[int]:
    """One run after the other."""
    stage = Stage(folder / "calls", row)
    run = stage.run(sink)
    parts = run.staged(0, range(7))
    run.prepare(0, parts)
    judge.expect([], "an epoch was staged, and not committed")
    run.commit(0, parts)
    there = list(range(7))
    judge.expect(there, "an epoch was committed")
    run.commit(0, parts, redo=True)
    judge.expect(there, "an epoch was handed over twice")
    run.staged(1, range(100, 103))
    run.sink.close()
    run = stage.run(sink)
    run.commit(0, parts, redo=True)
    judge.expect(there, "an epoch was handed over again by the next run")
    parts = run.publish(1, range(7, 12))
    there += range(7, 12)
    judge.expect(there, "an epoch was planned anew, with other rows, after the run that had staged it before had ended")
    run.publish(4, [])
    run.publish(5, [12])
    there.append(12)
    judge.expect(there, "an epoch followed some that had no rows")
    run.sink.sweep(run._context(False), 5, [])
    judge.expect(there, "leftovers were swept")
    run.sink.close()
    return there


def _call_late(run: OneRun, epoch: int, parts: Sequence[Part]) -> None:
    """A run that has been replaced may be told so, or have nothing to do."""
    with contextlib.suppress(Fenced, SinkError):
        run.commit(epoch, parts)


def _replace(sink: Sink, judge: Judge, row: RowMaker, folder: Path, there: list[int]) -> list[int]:
    """A driver that was stopped wakes up when another one has its place."""
    stage = Stage(folder / "replaced", row)
    old = stage.run(sink)
    parts = old.publish(0, range(200, 203))
    late = old.staged(1, range(203, 206))
    stale = old.staged(2, range(300, 303))
    new = stage.run(sink)
    new.commit(0, parts, redo=True)
    new.commit(1, late)
    there = [*there, *range(200, 206)]
    judge.expect(there, "a new run published what an old one had committed")
    _call_late(old, 1, late)
    judge.expect(there, "a run that had been replaced published its last epoch late")
    if isinstance(sink, EpochSink):
        _call_late(old, 2, stale)
        judge.expect(there, "a run that had been replaced wrote an epoch of its own")
    new.publish(2, range(206, 209))
    there += range(206, 209)
    judge.expect(there, "the new run went on, after the old one had tried to write")
    old.sink.close()
    new.sink.close()
    return there


def _share(sink: Sink, judge: Judge, row: RowMaker, folder: Path, there: list[int]) -> list[int]:
    """Two pipelines, with epochs of the same numbers, and keys of their own."""
    one, two = Stage(folder / "one", row, "one").run(sink), Stage(folder / "two", row, "two").run(sink)
    for epoch in range(3):
        one.publish(epoch, [400 + epoch * _KEYS])
        two.publish(epoch, [401 + epoch * _KEYS])
        there = [*there, 400 + epoch * _KEYS, 401 + epoch * _KEYS]
    judge.expect(there, "two pipelines wrote to one target")
    one.sink.close()
    two.sink.close()
    return there


# --- kills


def _kill(sink: Sink, judge: Judge, row: RowMaker, folder: Path, there: list[int], kills: int, seed: int) -> None:
    """Drivers are killed while they publish, until one is left alone."""
    rng, place = random.Random(seed), folder / "killed"
    place.mkdir()
    (place / "given").write_bytes(pickle.dumps((sink, row)))
    command = [
        sys.executable,
        "-c",
        "import sys; from millstream.simulation import sink_checks as s; s.fork_drivers(*sys.argv[1:])",
        str(place),
        *([str(sys.modules["__main__"].__file__)] if "__main__" in (type(sink).__module__, row.__module__) else []),
    ]
    told: list[float] = []  # how long a call took
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, **pipes, env=_environment(), start_new_session=True) as forks:  # type: ignore[call-overload]
        for kill in range(kills + 1):
            _one_driver(forks, rng, kill, kill < kills, told, seed)
        forks.stdin.close()  # type: ignore[union-attr]
    epochs = len(list((place / "checkpoint").glob("committed-*")))
    there = [*there, *range(500, 500 + _ROWS * epochs)]
    judge.expect(there, f"drivers were killed {kills} times while they published {epochs} epochs (seed {seed})")


def _one_driver(forks: Any, rng: random.Random, kills: int, kill: bool, told: list[float], seed: int) -> None:
    lines: list[bytes] = []

    def goes_on() -> bool:
        """Reads a line that it says. One that fails ends before it is killed."""
        line: bytes = forks.stdout.readline()
        lines.append(line)
        return bool(line) and not line.startswith(b"ended")

    silence = threading.Timer(_SILENT, os.killpg, (forks.pid, signal.SIGKILL))  # what hangs ends
    silence.start()
    forks.stdin.write(b"%d\n" % (_AT_MOST if kill else _AT_LAST))
    forks.stdin.flush()
    alive = goes_on() and lines[0].startswith(b"driver")
    process = int(lines[0].split()[-1]) if alive else 0
    for _ in range(rng.randint(1, _AT_LAST) if kill else 0):
        alive = alive and goes_on()
        began = time.monotonic()
        alive = alive and goes_on()
        told.append(time.monotonic() - began)
    if kill and alive and goes_on():
        time.sleep(rng.uniform(0, median(told)))
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    while lines[-1] and not lines[-1].startswith(b"ended"):
        goes_on()
    silence.cancel()
    if lines[-1].split()[-1:] not in ([b"0"], [b"-9"]):
        said = b"".join(lines)[-2000:].decode(errors="replace")
        raise AssertionError(f"a driver that was started after {kills} kills (seed {seed}) failed: {said}")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH", "")]))}


def fork_drivers(folder: str, main: str | None = None) -> None:
    """A process that has all modules, and forks a driver for each line on its stdin: for how many epochs. main: the program in which the sink is written."""
    if main is not None:
        import_main_path(main)
    pickle.loads((Path(folder) / "given").read_bytes())  # for the modules that it imports
    for line in sys.stdin:
        process = os.fork()
        if not process:
            code = 1
            try:
                _drive(Path(folder), int(line))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _say(f"ended {os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])}")


def _say(text: str) -> None:
    """A line, whole or not at all: whoever says it may be killed meanwhile."""
    os.write(1, f"{text}\n".encode())


def _drive(place: Path, epochs: int) -> None:
    """A driver's process: commits and publishes so many epochs, from where the last one was. Says a line before and behind each call of the sink."""
    _say(f"driver {os.getpid()}")
    sink, row = pickle.loads((place / "given").read_bytes())
    stage = Stage(place / "checkpoint", row)
    run = stage.run(sink)
    latest = sorted((place / "checkpoint").glob("committed-*"))
    epoch = -1
    if latest:
        epoch, parts = pickle.loads(latest[-1].read_bytes())
        run.commit(epoch, parts, redo=True)
    for number in range(epoch + 1, epoch + 1 + epochs):
        parts = run.staged(number, range(500 + _ROWS * number, 500 + _ROWS * (number + 1)))
        run.prepare(number, parts)
        stage.storage.create(f"committed-{number:04d}", pickle.dumps((number, parts)))
        _say("publishing")
        run.commit(number, parts)
        _say("published")
    run.sink.close()
