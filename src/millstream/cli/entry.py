"""The program `millstream`: one parser for all commands, and what their errors come to."""

from __future__ import annotations

import argparse
import os
import sys

from millstream import __version__
from millstream.cli import check_view, clean, copy, inspect, kv, partitions, push, run, serve, sink, upload, view
from millstream.cli.arguments import failed
from millstream.errors import MillstreamError


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what gRPC would say to the terminal, our errors say
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[?25h")  # a live view that was killed has left the terminal without its cursor
    known = parser()
    try:
        args = _parsed(known, argv)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 2
    if args.command is None:
        known.print_help(sys.stderr)
        return 2
    try:
        code: int = args.command(args)
        sys.stdout.flush()
        return code
    except MillstreamError as error:
        return failed(str(error), error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return failed("interrupted; nothing that was committed is lost", 130)


def _parsed(known: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """The arguments of a call. Names of views may stand behind options, where argparse no longer expects them."""
    args, rest = known.parse_known_args(argv)
    if rest and (not hasattr(args, "views") or any(text.startswith("-") for text in rest)):
        known.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.views += rest
    return args


def parser() -> argparse.ArgumentParser:
    """What the program understands."""
    found = argparse.ArgumentParser(prog="millstream", description="MillWheel's model of stream processing on Spark.")
    found.add_argument("--version", action="version", version=f"millstream {__version__}")
    found.set_defaults(command=None)
    commands = found.add_subparsers(title="commands", metavar="COMMAND")
    run.add_command(commands)
    inspect.add_commands(commands)
    view.add_command(commands)
    check_view.add_command(commands)
    copy.add_command(commands)
    clean.add_command(commands)
    sink.add_commands(commands)
    push.add_command(commands)
    serve.add_command(commands)
    kv.add_command(commands)
    partitions.add_command(commands)
    upload.add_command(commands)
    return found
