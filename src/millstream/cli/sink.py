"""`millstream sink` runs a sink server, `millstream sink-read` prints what was committed there."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from millstream.connector.sink.console import SinkConsole
from millstream.connector.sink.outputs import files
from millstream.connector.sink.outputs.base import Output
from millstream.connector.sink.outputs.postgres import PostgresOutputs
from millstream.connector.sink.server import SinkServer
from millstream.errors import DefinitionError
from millstream.network import Tls

_TOLD_EVERY = 0.25  # seconds


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds them to a parser's subcommands."""
    sink = commands.add_parser(
        "sink", help="take what pipelines commit, over TCP", description="Runs a sink server for the two-phase-commit connector protocol."
    )
    sink.add_argument(
        "--listen", metavar="HOST:PORT", default="127.0.0.1:7402", help="where to listen (127.0.0.1:7402); port 0 is any free one"
    )
    where = sink.add_mutually_exclusive_group(required=True)
    where.add_argument("--dir", metavar="DIR", type=Path, help="a file per worker, in this directory")
    where.add_argument("--postgres", metavar="DSN", help="a row per line, in this database")
    sink.add_argument("--table", metavar="NAME", default="lines", help="with --postgres: the table (lines)")
    sink.add_argument(
        "--cookie",
        metavar="C",
        help="the secret that workers must know; the variable MILLSTREAM_COOKIE does as well, and is not seen by others",
    )
    sink.add_argument("--tls-cert", metavar="FILE", help="switches TLS on: the server's certificate")
    sink.add_argument("--tls-key", metavar="FILE", help="its key")
    sink.add_argument("--tls-ca", metavar="FILE", help="also demands certificates of the workers, signed by this CA")
    sink.add_argument("--force", action="store_true", help="listen beyond this machine without a cookie")
    sink.add_argument("--quiet", action="store_true", help="do not say who connects, who disconnects and what is committed")
    sink.set_defaults(command=_sink)

    read = commands.add_parser(
        "sink-read", help="print what a sink has committed", description="Prints the committed bytes of a worker, and no others."
    )
    read.add_argument("dir", metavar="DIR", type=Path)
    read.add_argument("worker", metavar="WORKER", nargs="?", help="the worker's name; without it, the names are listed")
    read.add_argument("--follow", action="store_true", help="go on with what is committed later")
    read.set_defaults(command=_sink_read)


def _sink(args: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.WARNING, format="millstream sink: %(message)s")
    cookie = args.cookie if args.cookie is not None else os.environ.get("MILLSTREAM_COOKIE", "")
    if args.tls_cert is None and (args.tls_key or args.tls_ca):
        raise DefinitionError("--tls-key and --tls-ca need --tls-cert")
    tls = None if args.tls_cert is None else Tls(args.tls_cert, args.tls_key, args.tls_ca)
    stopping = threading.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopping.set())
    console = None if args.quiet else SinkConsole()
    with _outputs(args) as outputs, SinkServer(outputs, args.listen, cookie=cookie, tls=tls, force=args.force, watcher=console) as server:
        print(f"sink: listening on {server.address}, {'TLS' if tls else 'no TLS'}, {'a cookie' if cookie else 'no cookie'}", flush=True)
        while not stopping.wait(None if console is None else _TOLD_EVERY):
            _tell(console)
    _tell(console, last=True)
    done = server.stats()
    print(
        f"sink: stopped; what was promised is kept ({done.commits:,} transactions with {done.bytes_committed:,} bytes were committed)",
        flush=True,
    )
    return 0


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


def _sink_read(args: argparse.Namespace) -> int:
    out: Any = sys.stdout.buffer
    if args.worker is None:
        for name in files.workers(args.dir):
            print(name)
        return 0
    for piece in files.read(args.dir, args.worker, follow=args.follow):
        out.write(piece)
        out.flush()
    return 0
