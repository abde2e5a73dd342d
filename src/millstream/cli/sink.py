"""`millstream sink run` runs a sink server, `millstream sink read` prints what was committed there."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from millstream.cli.arguments import SINK, Commands, cookie_of, group, metrics_option, secured_by, server_options, server_tls, until_stopped
from millstream.connector.sink.console import SinkConsole
from millstream.connector.sink.outputs import files
from millstream.connector.sink.outputs.base import Output
from millstream.connector.sink.outputs.postgres import PostgresOutputs
from millstream.connector.sink.server import SinkServer
from millstream.monitoring import prometheus

_TOLD_EVERY = 0.25  # seconds


def add_commands(commands: Commands) -> None:
    actions = group(commands, "sink", "take what pipelines commit, over TCP", "A sink of the two-phase-commit connector protocol.")
    run = actions.add_parser("run", help="take what pipelines commit", description="Runs a sink server until it is stopped.")
    where = run.add_mutually_exclusive_group(required=True)
    where.add_argument("--dir", metavar="DIR", type=Path, help="a file per worker, in this directory")
    where.add_argument("--postgres", metavar="DSN", help="a row per line, in this database")
    run.add_argument("--table", metavar="NAME", default="lines", help="with --postgres: the table (lines)")
    server_options(run, SINK)
    metrics_option(run)
    run.add_argument("--quiet", action="store_true", help="do not say who connects, who disconnects and what is committed")
    run.set_defaults(command=_run)

    read = actions.add_parser(
        "read", help="print what a sink has committed", description="Prints the committed bytes of a worker, and no others."
    )
    read.add_argument("dir", metavar="DIR", type=Path)
    read.add_argument("worker", metavar="WORKER", nargs="?", help="the worker's name; without it, the names are listed")
    read.add_argument("--follow", action="store_true", help="go on with what is committed later")
    read.set_defaults(command=_read)


def _run(args: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.WARNING, format="millstream sink: %(message)s")
    tls = server_tls(args)
    stopping = until_stopped()
    console = None if args.quiet else SinkConsole()
    with (
        _outputs(args) as outputs,
        SinkServer(outputs, args.listen, cookie=cookie_of(args), tls=tls, force=args.force, console=console) as server,
        prometheus.served([prometheus.StatsCollector("sink_server", server.stats, gauges=["sessions"])], args.metrics, _say),
    ):
        print(f"sink: listening on {server.address}, {secured_by(args)}", flush=True)
        while not stopping.wait(None if console is None else _TOLD_EVERY):
            _tell(console)
    _tell(console, last=True)
    done = server.stats()
    print(
        f"sink: stopped; what was promised is kept ({done.commits:,} transactions with {done.bytes_committed:,} bytes were committed)",
        flush=True,
    )
    return 0


def _say(text: str) -> None:
    print(f"sink: {text}", flush=True)


def _tell(console: SinkConsole | None, *, last: bool = False) -> None:
    for line in [] if console is None else console.take(last=last):
        print(f"sink: {line}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _outputs(args: argparse.Namespace) -> Iterator[Callable[[str], Output]]:
    if args.dir is not None:
        with contextlib.closing(files.FileOutputs(args.dir)) as outputs:
            yield outputs
    else:
        yield PostgresOutputs(args.postgres, args.table)


def _read(args: argparse.Namespace) -> int:
    out: Any = sys.stdout.buffer
    if args.worker is None:
        for name in files.workers(args.dir):
            print(name)
        return 0
    for piece in files.read(args.dir, args.worker, follow=args.follow):
        out.write(piece)
        out.flush()
    return 0
