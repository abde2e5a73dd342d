"""`millstream run`: executes the file that holds a pipeline, runs it on Spark, and shows how it is doing.

Rule: Ctrl-C and SIGTERM end a run between two epochs; a second one does not wait.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live

from millstream.cli.arguments import PAGE, Commands, a_duration, at_least_one, failed, metrics_option, setting, storage_option
from millstream.cli.files import file_and_name, load, pipeline_in
from millstream.handle import launch
from millstream.status import render
from millstream.status.narrator import Narrator, last_words

if TYPE_CHECKING:
    from millstream.handle import Handle

_DRAWN_EVERY = 0.25
_PATIENCE = 10.0  # seconds that an epoch has to end before somebody is told what it waits for
_STOPPING = "stopping when the epoch under way is committed; once more stops at once"


def add_command(commands: Commands) -> None:
    run = commands.add_parser("run", help="run the pipeline in a file", description="Runs the pipeline in a Python file on local Spark.")
    which = "the file, and the variable that holds the pipeline (by default 'pipeline', or the only one there is)"
    run.add_argument("file", metavar="FILE[:NAME]", help=which)
    run.add_argument("--checkpoint", metavar="DIR", help="a directory or object store's URL (by default PIPELINE-checkpoint, here)")
    when = run.add_mutually_exclusive_group()
    when.add_argument(
        "--trigger", metavar="TIME", type=a_duration, help="how often an epoch begins, such as 500ms or 2s (500ms; of a resident run 0)"
    )
    when.add_argument("--available-now", action="store_true", help="process what is there, close every window, and end")
    run.add_argument("--no-drain", action="store_true", help="with --available-now: leave windows open, because more input may follow")
    run.add_argument("--resident", action="store_true", help="keep tasks alive, so that epochs commit in tens of milliseconds")
    run.add_argument("--tasks", metavar="N", type=at_least_one, help="with --resident: how many tasks (by default one per slot)")
    run.add_argument("--shards", metavar="N", type=at_least_one, help="how many shards a new checkpoint gets (by default one per core)")
    run.add_argument("--master", metavar="URL", help="Spark's master, such as spark://host:7077 (by default local, with all cores)")
    run.add_argument("--conf", metavar="K=V", type=setting, action="append", default=[], help="a setting of Spark's; may be repeated")
    run.add_argument("--packages", metavar="G:A:V,...", help="Java packages that Spark fetches, such as a Kafka connector")
    run.add_argument("--py-files", metavar="PATH,...", help="Python files, .zip or .whl for the workers of a cluster")
    run.add_argument("--serve", metavar="HOST:PORT", help="serve the live state beside the run; its cookie is in MILLSTREAM_COOKIE")
    run.add_argument(
        "--ui", metavar="HOST:PORT", nargs="?", const=PAGE, help=f"show the run on a page ({PAGE} if nothing else is said); behind FILE"
    )
    metrics_option(run)
    run.add_argument("--explain", action="store_true", help="print the plan (stages, tasks, what works on columns and why not), and end")
    run.add_argument("--quiet", action="store_true", help="say nothing but errors")
    run.add_argument(
        "--drop", metavar="NAME", action="append", default=[], help="a computation that is gone and whose state may go; may be repeated"
    )
    storage_option(run)
    run.set_defaults(command=_run)


def _run(args: argparse.Namespace) -> int:
    file, name = file_and_name(args.file)
    if not file.is_file():
        return failed(f"there is no file {file}", 2)
    pipeline = pipeline_in(load(file), name, file)
    if args.explain:
        print(pipeline.explain())
        return 0
    checkpoint = args.checkpoint or f"{pipeline.name}-checkpoint"
    console = Console(highlight=False, quiet=args.quiet)
    _say_warnings()
    stopping = threading.Event()
    settings = dict(args.conf)
    if args.packages:
        settings["spark.jars.packages"] = args.packages
    if args.py_files:
        settings["spark.submit.pyFiles"] = args.py_files
    try:
        handle = launch(
            pipeline.program(),
            Narrator(pipeline.name, args.quiet, sys.stdout, drawn=console.is_terminal),
            spark=_session(pipeline.name, args.master, settings, args.resident),
            spark_checkpoint=None,
            checkpoint=checkpoint,
            trigger=args.trigger,
            available_now=args.available_now,
            drain=not args.no_drain,
            shards=args.shards,
            storage_options=dict(args.storage_option) or None,
            drop=args.drop,
            resident=args.resident,
            tasks=args.tasks,
            serve=args.serve,
            ui=args.ui,
            metrics=args.metrics,
        )
        with _signals(stopping):
            watch(handle, stopping, console)
    finally:
        _end_spark()
    return 0


def _say_warnings() -> None:
    """What Millstream warns of goes to stderr, with the time where that is no terminal."""
    logger = logging.getLogger("millstream")
    if logger.handlers:
        return
    handler = logging.StreamHandler()
    formatter = logging.Formatter("%(message)s" if sys.stderr.isatty() else "%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    handler.setLevel(logging.WARNING)
    logger.addHandler(handler)


def _session(name: str, master: str | None, settings: dict[str, str], resident: bool) -> Callable[[], Any] | None:
    """What makes the session that the options ask for; None leaves it to the run."""
    if not master and not settings:
        return None
    from millstream.engine.spark.session import local_session

    return partial(local_session, name, master=master, settings=settings, resident=resident)


def watch(handle: Handle, stopping: threading.Event, console: Console) -> None:
    """Waits until a run ends, or is to stop, and raises what it ended with. Draws in a terminal how it is doing; elsewhere its narrator tells."""
    with Live(console=console, auto_refresh=False) if console.is_terminal and not console.quiet else contextlib.nullcontext() as live:
        is_told = over = False
        while not over:
            if stopping.is_set():
                if not is_told:
                    handle.say(_STOPPING)
                is_told = True
                handle.stop(_PATIENCE if live is None else _DRAWN_EVERY)
            over = handle.await_termination(_DRAWN_EVERY)
            if live is not None:
                live.update(render.progress(handle.status()), refresh=True)
            elif is_told and not over:
                handle.say(f"still stopping; {render.line(handle.status()).partition(': ')[2]}")
    if live is not None:
        status = handle.status()
        console.print(f"{status.pipeline}: {last_words(status, is_told, handle.published)}", markup=False)


@contextlib.contextmanager
def _signals(stopping: threading.Event) -> Iterator[None]:
    """While it lasts, the first Ctrl-C or SIGTERM asks for a stop and the second interrupts. Spark's own handler would cancel the epoch under way."""

    def handler(number: int, frame: Any) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _end_spark() -> None:
    """Ends the session of a run, if there is one, and Java still answers."""
    with contextlib.suppress(Exception):
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        if session is not None:
            session.stop()
