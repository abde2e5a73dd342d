"""`millstream check-view`: are the views of a checkpoint what their documents come to? It needs the pipeline's file, because all documents are mapped again."""

from __future__ import annotations

import argparse
import sys

from millstream.cli.arguments import failed, print_json, storage_of, storage_option
from millstream.cli.files import file_and_name, load, pipeline_in
from millstream.core.topology import Emission
from millstream.engine.epochs import wall_clock
from millstream.engine.program import Program
from millstream.engine.repair import mark_for_rebuild
from millstream.errors import CheckpointError, Overtaken
from millstream.readable.relations import rows_shown
from millstream.sinks import FileSink, MemorySink, TwoPhaseSink
from millstream.state.heartbeat import last_sign
from millstream.state.manifest_log import ManifestLog
from millstream.status import check
from millstream.status.check import CheckReport, planned

_BEYOND = "A table has nothing that its documents could be made from: correct the map, or restore the checkpoint from a copy."
LITTLE = 200_000  # rows that are mapped sooner than Spark has started


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "check",
        help="are views what their documents come to?",
        description="Maps all documents again, and compares contributions, totals, what is shown and every node. Exit code 1: something differs.",
    )
    which = "the file, and the variable that holds the pipeline (by default 'pipeline', or the only one there is)"
    command.add_argument("file", metavar="FILE[:NAME]", help=which)
    command.add_argument("views", metavar="VIEW", nargs="*", help="views and joins (by default all)")
    command.add_argument("--checkpoint", metavar="DIR", help="a directory or object store's URL (by default PIPELINE-checkpoint, here)")
    command.add_argument("--sample", metavar="P%", type=_share, default=1.0, help="check only this share of the groups, such as 1%%")
    command.add_argument("--local", action="store_true", help=f"without Spark, in memory; so it is anyway up to {LITTLE:,} rows")
    command.add_argument(
        "--repair",
        action="store_true",
        help="mark the views that differ: the next run fills them anew beside what they show, and cuts over; the pipeline must not run meanwhile",
    )
    command.add_argument("--json", action="store_true", help="what was found, as JSON")
    storage_option(command)
    command.set_defaults(command=_check)


def _share(text: str) -> float:
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share: give a percentage such as 1%")
    return share


def _check(args: argparse.Namespace) -> int:
    file, name = file_and_name(args.file)
    if not file.is_file():
        return failed(f"there is no file {file}", 2)
    if args.repair and args.sample < 1:
        return failed("--repair checks everything: leave out --sample", 2)
    pipeline = pipeline_in(load(file), name, file)
    log = ManifestLog(storage_of(args, args.checkpoint or f"{pipeline.name}-checkpoint"))
    shards, program = log.identity().shards, pipeline.program()
    log.identify(program.name, shards, shards, list(program.topology.injectors))  # it is this pipeline's
    if args.repair:
        _refuse_company(log)
    report = _checked(program, log, args)
    if not args.json:
        _tell(report)
    marked = report.wrong if args.repair and report.count else []
    if args.repair and report.count:
        _repair(program, log, report, args)
    if args.json:
        views = {
            name: {"groups": one.groups, "contributions": one.contributions, "differences": one.by_what}
            for name, one in report.judgements.items()
        }
        found = {"epoch": report.epoch, "differences": report.count, "views": views, "not_checked": report.skipped}
        print_json({**found, "first": [str(one) for one in report.first], "rebuild": marked})
    return 1 if report.count and not marked else 0


def _refuse_company(log: ManifestLog) -> None:
    sign = last_sign(log.storage)
    if sign is not None and sign.is_alive(wall_clock()):
        raise CheckpointError(
            f"a driver is at work on {log.storage.url} (process {sign.pid} on {sign.host}), and a repair would end it. Stop it first. If it was "
            f"killed, wait for half a minute."
        )


def _checked(program: Program, log: ManifestLog, args: argparse.Namespace) -> CheckReport:
    manifest = log.latest()
    if manifest is None:
        raise CheckpointError(f"{log.storage.url} has no committed epoch yet.")
    plan = planned(program, manifest, args.views, args.sample)
    is_local = args.local or plan.rows <= LITTLE
    counts = [f"{rows_shown(plan.manifest.computations[name]):,} rows of {name}" for name in plan.senders]
    what = f"{len(plan.consumers)} views and joins against {', '.join(counts) or 'nothing'}"
    _say(f"checking {what}, epoch {manifest.epoch}, {'in this process' if is_local else 'on Spark'}")
    try:
        if is_local:
            return check.checked_here(program, log, plan, lambda sender, rows: _say(f"{rows:,} rows of {sender} are mapped"))
        from millstream.engine.spark.session import local_session

        return check.checked_on_spark(program, log, plan, local_session(program.name), dict(args.storage_option) or None)
    except Overtaken as error:
        raise CheckpointError(
            f"{error} The pipeline runs, and this check takes longer than it keeps an epoch. Stop it meanwhile, check a copy of the checkpoint, or give "
            f"--sample (which maps all documents, and compares less)."
        ) from error


def _repair(program: Program, log: ManifestLog, report: CheckReport, args: argparse.Namespace) -> None:
    views = {name: report.judgements[name].unreadable for name in report.wrong}
    stumbled = [name for name, one in report.judgements.items() if "document" in one.by_what and name not in views]
    if stumbled:
        raise CheckpointError(
            f"a fill would stop at the documents of {', '.join(stumbled)} that are named above. Nothing was marked. {_BEYOND}"
        )
    spark = None
    if any(map(_wants_spark, program.topology.emissions)):
        from millstream.engine.spark.run_builder import ready_sinks
        from millstream.engine.spark.session import local_session

        spark = local_session(program.name)
        ready_sinks(program.topology)
    else:
        for emission in program.topology.emissions:
            emission.sink.check()
    done = mark_for_rebuild(program, log, report.epoch, views, spark)
    tell = _say if args.json else print
    tell(f"epoch {done.epoch} marks {', '.join(views)}: the next run fills what is marked anew, beside what it shows now, and cuts over.")
    tell(f"Run: millstream run {args.file} --checkpoint {log.storage.url}")


def _wants_spark(emission: Emission) -> bool:
    """Whether a sink needs a session: to read a schema that is a text, or to hand epochs over."""
    sink = emission.sink
    return isinstance(getattr(sink, "schema", None), str) or not isinstance(sink, (FileSink, MemorySink, TwoPhaseSink))


def _say(text: str) -> None:
    print(f"check-view: {text}", file=sys.stderr, flush=True)


def _tell(report: CheckReport) -> None:
    for name, one in report.judgements.items():
        size = f"{one.groups:,} groups, {one.contributions:,} contributions"
        wrong = ", ".join(f"{n:,} of a {what}" for what, n in one.by_what.items())
        print(
            f"{name}: {f'differences: {wrong}' if wrong else 'right'} ({size})" if one.groups else f"{name}: {wrong or 'right, and empty'}"
        )
    for name, why in report.skipped.items():
        print(f"{name}: not checked: {why}")
    if not report.count:
        print(f"epoch {report.epoch}: nothing differs from what the documents come to")
        return
    print(
        f"epoch {report.epoch}: {report.count:,} differences"
        + (f", the first {len(report.first)}:" if report.count > len(report.first) else ":")
    )
    for difference in report.first:
        print(f"  {difference}")
    if any("document" in one.by_what for one in report.judgements.values()):
        print(_BEYOND)
