"""The program `millstream`: one parser for all commands, and what their errors come to."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial

from millstream import __version__, extras
from millstream.cli import check_view, checkpoint, kv, metrics, new, partitions, push, run, serve, sink, ui, view
from millstream.cli.arguments import failed, group, without_action
from millstream.errors import MillstreamError

CONTENTS = """\
usage: millstream [--help] [--version] COMMAND ...

MillWheel's model of stream processing on Spark.

pipelines
  new NAME                         make a project: a pipeline, its test, a CI file
  run FILE[:NAME]                  run the pipeline in a Python file
  push FILE                        push the lines of a file into a pipeline

  ui CHECKPOINT...                 a page that shows pipelines, running or not
  metrics CHECKPOINT...            metrics of pipelines, for Prometheus

what a pipeline has committed
  inspect status CHECKPOINT        how far a pipeline is
  inspect state CHECKPOINT NAME    what a computation keeps
  inspect view CHECKPOINT [VIEW]   what a table, a view or a join shows
  inspect check FILE[:NAME]        are views what their documents come to?
  copy CHECKPOINT TO               copy a checkpoint as of an epoch, also while its pipeline runs
  clean                            remove caches on this host that no run needs

the state service
  serve tables FILE[:NAME]         serve the tables in a Python file
  serve checkpoint DIR             serve the live state of a pipeline
  kv ACTION TABLE                  get, put, remove, scan, watch, call: ask a table or live state
  partitions ACTION                list, add, remove, snapshot, restore, upload: change a node's partitions

records out over TCP
  sink run                         take what pipelines commit
  sink read DIR [WORKER]           print what a sink has committed

completion SHELL                   print completion for bash, zsh or tcsh

Short forms: status, state, view and check-view, for the four of inspect.
millstream COMMAND --help explains a command; docs/operations.md has exit codes and settings.
"""
_SHORT = {"status": "status", "state": "state", "view": "view", "check-view": "check"}


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what gRPC would say to the terminal, our errors say
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[?25h")  # a live view that was killed has left the terminal without its cursor
    try:
        args = _parsed(parser(), sys.argv[1:] if argv is None else argv)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 2
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


def _parsed(known: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """The arguments of a call. Names of views may stand behind options, where argparse no longer expects them."""
    if argv and argv[0] in _SHORT:
        argv = ["inspect", _SHORT[argv[0]], *argv[1:]]
    args, rest = known.parse_known_args(argv)
    if rest and (not hasattr(args, "views") or any(text.startswith("-") for text in rest)):
        known.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.views += rest
    return args


class _Program(argparse.ArgumentParser):
    """The outermost parser: its help is a table of contents."""

    def format_help(self) -> str:
        return CONTENTS


def parser() -> argparse.ArgumentParser:
    """What the program understands."""
    program = _Program(prog="millstream")
    program.add_argument("--version", action="version", version=f"millstream {__version__}")
    commands = program.add_subparsers(metavar="COMMAND", parser_class=argparse.ArgumentParser)
    program.set_defaults(command=partial(without_action, program))
    new.add_command(commands)
    run.add_command(commands)
    push.add_command(commands)
    ui.add_command(commands)
    metrics.add_command(commands)
    looking = group(commands, "inspect", "look at a checkpoint", "Reads what a pipeline has committed, and changes nothing.")
    checkpoint.add_inspections(looking)
    view.add_command(looking)
    check_view.add_command(looking)
    checkpoint.add_commands(commands)
    serve.add_commands(commands)
    kv.add_commands(commands)
    partitions.add_commands(commands)
    sink.add_commands(commands)
    completion = commands.add_parser(
        "completion", help="print completion for a shell", description="Prints what a shell needs to complete commands and options."
    )
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    completion.set_defaults(command=_completion)
    return program


def _completion(args: argparse.Namespace) -> int:
    with extras.needed("completion in a shell"):
        import shtab
    print(shtab.complete(parser(), args.shell))
    return 0
