"""The command line: run a pipeline, watch it, look into its checkpoint.

Rules
1. An error that Millstream raises on purpose is one message on stderr and exit code 1; a wrong call of a command is exit code 2.
2. `run` executes the file once, here. Its classes and functions travel to the workers by value, so the workers never execute
   it; modules beside it are imported by the workers, which get its folder as a path.
3. Ctrl-C and SIGTERM end a run between two epochs; a second one does not wait.
4. `status` and `state` read the log and change nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console, RenderableType
from rich.live import Live

from millstream import __version__
from millstream.connector import commands as connector
from millstream.connector import push_command
from millstream.core.time import duration
from millstream.errors import CheckpointError, DefinitionError, MillstreamError
from millstream.pipeline import Pipeline
from millstream.state.manifest import ManifestLog
from millstream.state.storage import open_storage
from millstream.status import inspect, view
from millstream.status.narrator import last_words

if TYPE_CHECKING:
    from millstream.handle import Handle

MODULE = "__millstream_main__"
_DRAWN_EVERY = 0.25
_LINE_EVERY = 1.0
_WIDE = 240
_NO_SESSION = (
    '\nThere is no Spark session yet when the file is executed. Give keys, timestamps and ids as SQL text (key="lower(user)") instead of '
    "Columns, and a source of "
    'Spark\'s as a function of the session (inject("in", lambda spark: spark.readStream...)).'
)
_STOPPING = "stopping when the epoch under way is committed; once more stops at once"


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    parser = _parser()
    try:
        args = parser.parse_args(argv)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 2
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        code: int = args.command(args)
        sys.stdout.flush()
        return code
    except MillstreamError as error:
        return _failed(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _failed("interrupted; nothing that was committed is lost", 130)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="millstream", description="MillWheel's model of stream processing on Spark.")
    parser.add_argument("--version", action="version", version=f"millstream {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    run = commands.add_parser("run", help="run the pipeline in a file", description="Runs the pipeline in a Python file on local Spark.")
    which = "the file, and the variable that holds the pipeline (by default 'pipeline', or the only one there is)"
    run.add_argument("file", metavar="FILE[:NAME]", help=which)
    run.add_argument("--checkpoint", metavar="DIR", help="a directory or s3:// URL (by default PIPELINE-checkpoint, here)")
    when = run.add_mutually_exclusive_group()
    when.add_argument(
        "--trigger", metavar="TIME", type=_duration, default="500ms", help="how often an epoch begins, such as 500ms or 2s (500ms)"
    )
    when.add_argument("--available-now", action="store_true", help="process what is there, close every window, and end")
    run.add_argument("--no-drain", action="store_true", help="with --available-now: leave windows open, because more input may follow")
    run.add_argument("--shards", metavar="N", type=_at_least_one, help="how many shards a new checkpoint gets (by default one per core)")
    run.add_argument("--master", metavar="URL", help="Spark's master, such as spark://host:7077 (by default local, with all cores)")
    run.add_argument("--conf", metavar="K=V", type=_setting, action="append", default=[], help="a setting of Spark's; may be repeated")
    run.add_argument("--packages", metavar="G:A:V,...", help="Java packages that Spark fetches, such as a Kafka connector")
    run.add_argument("--py-files", metavar="PATH,...", help="Python files, .zip or .whl for the workers of a cluster")
    run.add_argument("--quiet", action="store_true", help="say nothing but errors")
    run.add_argument(
        "--drop", metavar="NAME", action="append", default=[], help="a computation that is gone and whose state may go; may be repeated"
    )
    _storage_option(run)
    run.set_defaults(command=_run)

    demo = commands.add_parser(
        "demo", help="run the Zeitgeist demo", description="Finds spikes and dips in made-up search traffic, while its drivers are killed."
    )
    demo.add_argument("--output", metavar="DIR", type=Path, default=Path("zeitgeist"), help="where everything goes (zeitgeist)")
    demo.add_argument("--seed", metavar="N", type=int, default=7, help="another seed is another world (7)")
    demo.add_argument("--small", action="store_true", help="a fifth of the queries, and one kill instead of two")
    demo.add_argument("--fresh", action="store_true", help="begin anew, also where the last demo was interrupted")
    demo.set_defaults(command=_demo)

    status = commands.add_parser("status", help="how far a pipeline is", description="Shows the latest committed epoch of a checkpoint.")
    status.add_argument("checkpoint", metavar="CHECKPOINT")
    status.add_argument("--json", action="store_true", help="as JSON")
    _storage_option(status)
    status.set_defaults(command=_status)

    state = commands.add_parser("state", help="what a computation keeps", description="Shows committed state and timers of a computation.")
    state.add_argument("checkpoint", metavar="CHECKPOINT")
    state.add_argument("computation", metavar="COMPUTATION")
    state.add_argument("--key", metavar="K", help="one key, whole: a text, a number, or a JSON list for a tuple; '\"7\"' is only the text")
    state.add_argument(
        "--limit", metavar="N", type=_at_least_one, default=20, help="how many keys, or with --key how many map entries (20)"
    )
    state.add_argument("--unpickle", action="store_true", help="load pickled state, which runs code: only for a checkpoint you trust")
    state.add_argument("--json", action="store_true", help="as JSON")
    _storage_option(state)
    state.set_defaults(command=_state)

    connector.add_commands(commands)
    push_command.add_command(commands)
    return parser


def _run(args: argparse.Namespace) -> int:
    file, name = _file_and_name(args.file)
    if not file.is_file():
        return _failed(f"there is no file {file}", 2)
    pipeline = pipeline_in(load(file), name, file)
    checkpoint = args.checkpoint or f"{pipeline.name}-checkpoint"
    if not args.quiet:
        print(f"{pipeline.name}: checkpoint {checkpoint if '://' in checkpoint else Path(checkpoint).absolute()}", flush=True)
        print(f"{pipeline.name}: starting Spark, which takes some seconds", flush=True)
    stopping = threading.Event()
    settings = dict(args.conf)
    if args.packages:
        settings["spark.jars.packages"] = args.packages
    if args.py_files:
        settings["spark.submit.pyFiles"] = args.py_files
    try:
        handle = pipeline.run(
            _session(pipeline.name, args.master, settings),
            quiet=True,
            checkpoint=checkpoint,
            trigger=args.trigger,
            available_now=args.available_now,
            drain=not args.no_drain,
            shards=args.shards,
            storage_options=dict(args.storage_option) or None,
            drop=args.drop,
        )
        with _signals(stopping):
            watch(handle, stopping, args.quiet)
    finally:
        _end_spark()
    return 0


def _session(name: str, master: str | None, settings: dict[str, str]) -> Any:
    """The session that the options ask for; None leaves it to the run."""
    if not master and not settings:
        return None
    from millstream.engine.spark.session import local_session

    return local_session(name, master=master, settings=settings)


def _demo(args: argparse.Namespace) -> int:
    from millstream.demo.run import run

    return run(output=args.output, seed=args.seed, small=args.small, fresh=args.fresh)


def _status(args: argparse.Namespace) -> int:
    found = inspect.overview(_log(args))
    if args.json:
        _print_json(found)
    else:
        _show(view.overview(found))
    return 0


def _state(args: argparse.Namespace) -> int:
    log = _log(args)
    keys = None if args.key is None else inspect.keys_of(args.key)
    if keys is None:
        found = inspect.steady(log, lambda m: inspect.listed(m, args.computation, args.limit, unpickle=args.unpickle))
    else:
        found = inspect.steady(log, lambda m: inspect.looked_up(m, args.computation, keys, entries=args.limit, unpickle=args.unpickle))
        if not found.rows:
            tried = " nor ".join(f"{key!r} ({type(key).__name__})" for key in keys)
            raise CheckpointError(
                f"computation {args.computation!r} has no row for key {tried} in epoch {found.epoch}. A key whose state is the default one "
                f"and that has no timers is not kept."
            )
    if args.json:
        _print_json(inspect.plain_listing(found))
    else:
        _show(view.listing(found) if keys is None else view.rows(found))
    return 0


def load(file: Path) -> ModuleType:
    """Executes a pipeline's file as a module whose content is sent to workers by value."""
    from pyspark import cloudpickle

    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    spec = importlib.util.spec_from_file_location(MODULE, file.resolve())
    if spec is None or spec.loader is None:
        raise DefinitionError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    try:
        spec.loader.exec_module(module)
    except MillstreamError:
        raise
    except Exception as error:
        here = error.__traceback__
        while here is not None and here.tb_frame.f_code.co_filename != spec.origin:
            here = here.tb_next
        hint = (
            _NO_SESSION
            if any(sign in str(error) + type(error).__name__ for sign in ("SESSION_OR_CONTEXT", "SparkContext", "sparkContext"))
            else ""
        )
        raise DefinitionError(
            f"{file} cannot be executed\n" + "".join(traceback.format_exception(type(error), error, here)).rstrip() + hint
        ) from error
    cloudpickle.register_pickle_by_value(module)
    return module


def pipeline_in(module: ModuleType, name: str | None, file: Path) -> Pipeline:
    """The pipeline of that name; without a name the one called `pipeline`, or the only one."""
    found = {variable: value for variable, value in vars(module).items() if isinstance(value, Pipeline)}
    known = ", ".join(sorted(found))
    if name is not None:
        if name not in found:
            raise DefinitionError(f"{file} has no pipeline in a variable {name!r}. It has: {known or 'none'}.")
        return found[name]
    if "pipeline" in found:
        return found["pipeline"]
    if not found:
        raise DefinitionError(f"{file} has no pipeline: it needs a variable that holds an ms.Pipeline.")
    if len({id(value) for value in found.values()}) > 1:
        raise DefinitionError(f"{file} has several pipelines: {known}. Say which, as in {file}:{min(found)}.")
    return next(iter(found.values()))


def watch(handle: Handle, stopping: threading.Event, quiet: bool = False) -> None:
    """Shows how a run is doing until it ends or is to stop, and raises what it ended with."""
    console = Console(highlight=False, quiet=quiet)
    say: Callable[[str], None] = _say_nothing if quiet else partial(print, flush=True)
    with Live(console=console, auto_refresh=False) if console.is_terminal and not quiet else contextlib.nullcontext() as live:
        shown, at = view.changes(handle.status()), 0.0
        stopped = over = False
        while not over:
            if stopping.is_set() and not stopped:
                stopped = True
                if live is None:
                    say(_STOPPING)
                else:
                    live.console.print(_STOPPING)
                handle.stop()
            over = handle.await_termination(_DRAWN_EVERY)
            status = handle.status()
            if live is not None:
                live.update(view.progress(status), refresh=True)
            elif view.changes(status) != shown and (over or time.monotonic() - at >= _LINE_EVERY):
                shown, at = view.changes(status), time.monotonic()
                say(view.line(status))
    say(f"{status.pipeline}: {last_words(status, stopped, handle.published)}")


def _say_nothing(text: str) -> None:
    """For --quiet."""


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
    from pyspark.sql import SparkSession

    with contextlib.suppress(Exception):
        session = SparkSession.getActiveSession()
        if session is not None:
            session.stop()


def _log(args: argparse.Namespace) -> ManifestLog:
    return ManifestLog(open_storage(args.checkpoint, dict(args.storage_option) or None))


def _show(what: RenderableType) -> None:
    """Prints to a terminal, or plainly, and as wide as it needs to be, to anything else."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(what)
        return
    wide = Console(highlight=False, width=_WIDE)
    with wide.capture() as captured:
        wide.print(what)
    for line in captured.get().splitlines():
        print(line.rstrip())


def _print_json(value: Any) -> None:
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _failed(message: str, code: int = 1) -> int:
    print(f"millstream: {message}", file=sys.stderr)
    return code


def _file_and_name(text: str) -> tuple[Path, str | None]:
    """The two parts of FILE:NAME; a file whose own name has a colon is taken as it is."""
    file, colon, name = text.rpartition(":")
    if colon and name.isidentifier() and not Path(text).is_file():
        return Path(file), name
    return Path(text), None


def _storage_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--storage-option", metavar="K=V", action="append", default=[], type=_option, help="for the object store's client; may be repeated"
    )


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form K=V")
    return name, value


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form K=V")
    if value.startswith("{"):
        try:
            return name, msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise argparse.ArgumentTypeError(f"{name}: {error}") from error
    return name, value


def _duration(text: str) -> str:
    try:
        duration(text)
    except DefinitionError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
