"""The demo from nothing to the picture: traffic, a pipeline whose drivers are killed, an undisturbed run, the comparison, the report.

Rules
1. A demo that was interrupted goes on: traffic that is complete is kept, the pipeline resumes from its checkpoint, and the kills so far count.
   A demo that is complete begins anew, and says so.
2. Beginning anew removes what the demo made in the directory, by name, and nothing else; a directory that has one of these names and is
   not a demo's is refused. The story is there first and goes last, so a kill in the midst of it leaves nothing that is taken for a whole.
3. One demo at a time runs in a directory.
4. The last line says whether what was found is what an undisturbed run finds. If not, the exit code is 1, whatever else is well.
5. However the demo ends, none of its processes is left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from demos import picture, report, undisturbed
from demos.commands import pasteable
from demos.driver import CHECKPOINT, LATENCY, Latency
from demos.drivers import LOG, SCRATCH, STORY, DriverFailed, Drivers, Story, plan
from demos.live import Show
from demos.look import UNDISTURBED_LOG, Onlooker
from demos.processes import Child
from demos.traffic import QUERIES, TRUTH, Traffic, Truth, read_truth, write
from demos.zeitgeist import STREAMS
from millstream.errors import MissingExtra
from millstream.monitoring.observer import Observer
from millstream.monitoring.web_server import PageServer
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import open_storage

FULL = Traffic(terms=1_000, rate=800.0, spikes=30, dips=12, files=48)
SMALL = Traffic(terms=200, seconds=300, rate=300.0, spikes=12, dips=4, files=20)
KILLS, KILLS_OF_SMALL = 2, 1

_PICTURE = "zeitgeist.png"
_LOCK = ".lock"
_MADE = (
    QUERIES,
    f".{QUERIES}.unfinished",
    CHECKPOINT,
    *STREAMS,
    undisturbed.FOLDER,
    f".{undisturbed.FOLDER}.unfinished",
    _PICTURE,
    LOG,
    UNDISTURBED_LOG,
    SCRATCH,
    LATENCY,
    TRUTH,
    f".{TRUTH}.unfinished",
    f"{STORY}.unfinished",
    STORY,
)


class Refused(Exception):
    """The directory cannot be used as it is. The text says why, and what to do."""


def run(output: Path, seed: int = 7, small: bool = False, fresh: bool = False, console: Console | None = None) -> int:
    """Runs the demo in a directory. Returns 0; 1 if something differs, fails, or is another demo's; 130 if it was interrupted."""
    console = console or Console()
    output.mkdir(parents=True, exist_ok=True)
    traffic = msgspec.structs.replace(SMALL if small else FULL, seed=seed)
    try:
        with _terminated_as_interrupted(), _alone(output):
            return _run(output, traffic, KILLS_OF_SMALL if small else KILLS, fresh, console)
    except (Refused, DriverFailed) as error:
        console.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):  # the terminal may be gone
            console.print(
                "interrupted: its processes are killed, and nothing that was committed is lost. The same command goes on from here.",
                highlight=False,
            )
        return 130


def _run(output: Path, traffic: Traffic, kills: int, fresh: bool, console: Console) -> int:
    with Show(console) as show:
        _make_room(output, traffic, fresh, show)
        show.doing("making the queries")
        truth = write(traffic, output)
        show.about(truth)
        show.event(
            f"{truth.queries:,} queries of {traffic.terms:,} terms are in {output / QUERIES}, with {len(truth.injected)} anomalies hidden in them"
        )
        onlooker = Onlooker(output, truth)
        drivers = Drivers(output, plan(traffic, kills), onlooker, show)
        with _page(output, show):
            _both(output, drivers, onlooker, show)
        show.doing("comparing, and drawing the picture")
        rows, differences = undisturbed.compare(output)
        found = report.make(output, truth)
        drawn = _draw(output, truth, found, drivers.story)
    drivers.story.complete = True
    drivers.story.note(output)
    shutil.rmtree(output / SCRATCH, ignore_errors=True)
    report.show(found, truth, console)
    console.print(drawn, highlight=False, markup=False, soft_wrap=True)
    took = Latency.noted(output)
    if took.epochs:
        console.print(
            f"Resident tasks: an epoch of {took.records // took.epochs:,} queries was read, committed and published in {took.median:,.0f} ms "
            f"(median of {took.epochs}; {took.longest:,.0f} ms at most).",
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"Look inside: {pasteable('status', output / CHECKPOINT)}", style="dim", highlight=False, markup=False, soft_wrap=True)
    return _verdict(len(drivers.story.kills), rows, differences, console)


@contextlib.contextmanager
def _page(output: Path, show: Show) -> Iterator[None]:
    """A page that shows the pipeline, whichever of its drivers is alive: it reads the checkpoint."""
    (output / CHECKPOINT).mkdir(exist_ok=True)
    page = PageServer([Observer(ManifestLog(open_storage(str(output / CHECKPOINT))))], "127.0.0.1:0")
    show.event(f"look at it while it runs: {page.url}  (and later with {pasteable('ui', output / CHECKPOINT)})")
    try:
        yield
    finally:
        page.stop()


def _make_room(output: Path, traffic: Traffic, fresh: bool, show: Show) -> None:
    """Leaves the directory as a new demo needs it, or as the interrupted one left it, and says which. Raises Refused."""
    story, made = Story.of(output), _traffic_of(output)
    if story is None and made is None:
        strange = [name for name in _MADE if (output / name).exists()]
        if strange:
            raise Refused(
                f"{output} has {', '.join(strange)}, which the demo would overwrite and has not made. Give another directory with --output."
            )
    if story is not None and story.complete:
        show.event(f"the last demo in {output} is complete, so this one begins anew")
    elif made is not None and not fresh:
        if made != traffic:
            raise Refused(
                f"{output} has an unfinished demo of other traffic ({made}). Say --fresh to begin anew, or give another directory with --output."
            )
        show.event(f"the last demo in {output} was interrupted, so this one goes on with it")
        return
    show.doing("making room")
    clear(output)
    Story().note(output)


def _traffic_of(output: Path) -> Traffic | None:
    """The traffic that is complete in a directory."""
    try:
        return read_truth(output).traffic if (output / QUERIES).is_dir() else None
    except (OSError, msgspec.DecodeError):
        return None


def _both(output: Path, drivers: Drivers, onlooker: Onlooker, show: Show) -> None:
    """The drivers, and beside them the undisturbed run, until both have ended."""
    folder, log = output / undisturbed.FOLDER, output / UNDISTURBED_LOG
    if folder.is_dir():
        drivers.run(lambda: None)
        return
    log.unlink(missing_ok=True)
    other = Child("demos.undisturbed", str(output), log=log)

    def check() -> None:
        if other.code not in (None, 0):
            raise DriverFailed(f"the undisturbed run ended with {other.code}. The end of {log}:\n\n{other.tail()}")

    try:
        show.event(f"the same pipeline runs beside it without Spark, undisturbed, for comparison (process {other.pid})")
        drivers.run(check)
        show.doing("waiting for the undisturbed run")
        while other.code is None:
            show.seen(onlooker.look())
            time.sleep(0.1)
        check()
    finally:
        other.kill()


def _draw(output: Path, truth: Truth, found: report.Report, story: Story) -> str:
    try:
        drawn = picture.draw(output, truth, found, output / _PICTURE, [kill.second for kill in story.kills])
    except MissingExtra as error:
        return f"No picture: {error}"
    return f"The picture is {drawn}; what was found is in {output / 'anomalies'}."


def _verdict(kills: int, rows: int, differences: list[undisturbed.Difference], console: Console) -> int:
    """The last line, and the exit code."""
    times = f"{kills} time{'' if kills == 1 else 's'}"
    if not differences:
        console.print(f"killed {times}, the same anomalies as an undisturbed run", style="bold green", highlight=False, end=" ")
        console.print(f"({rows:,} rows compared)", style="dim", highlight=False)
        return 0
    console.print(f"killed {times}, and NOT the same as an undisturbed run:", style="bold red", highlight=False)
    for one in differences:
        console.print(f"  {one.stream}: {len(one.missing)} rows are missing, {len(one.extra)} are too many", style="red", highlight=False)
        for what, some in (("missing", one.missing), ("too many", one.extra)):
            for row in some[:3]:
                console.print(f"    {what}: {row.decode()}", style="red", highlight=False, markup=False, soft_wrap=True)
    return 1


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """While it lasts, SIGTERM and a closed terminal end the demo as Ctrl-C does."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextlib.contextmanager
def _alone(output: Path) -> Iterator[None]:
    """While it lasts, no other demo runs in the directory. Raises Refused if one does."""
    with (output / _LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Refused(f"another demo is running in {output}. Wait for it, or give another directory with --output.") from error
        yield


def clear(output: Path) -> None:
    """Removes what the demo made in a directory. The queries go at once, so what is left of them is never taken for all of them."""
    if (output / QUERIES).is_dir():
        shutil.rmtree(output / f".{QUERIES}.unfinished", ignore_errors=True)
        (output / QUERIES).rename(output / f".{QUERIES}.unfinished")
    for name in _MADE:
        path = output / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
