"""`millstream check-view`: are the views of a checkpoint what their documents come to? It needs the pipeline's file, because all documents are mapped again."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import Any

from millstream.cli.arguments import failed, print_json, storage_option
from millstream.cli.files import file_and_name, load, pipeline_in
from millstream.core.topology import Emission
from millstream.engine.program import Program
from millstream.engine.repair import mended
from millstream.errors import CheckpointError, Overtaken
from millstream.readable.relations import rows_shown
from millstream.sinks import FileSink, MemorySink, TwoPhaseSink
from millstream.state.heartbeat import last_sign
from millstream.state.manifest import ManifestLog
from millstream.state.reader import latest
from millstream.state.storage import open_storage
from millstream.status import audit
from millstream.status.audit_plan import AuditPlan, AuditReport, planned
from millstream.status.inspect import now

LITTLE = 200_000  # rows that are mapped sooner than Spark has started


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds it to a parser's subcommands."""
    check = commands.add_parser(
        "check",
        help="are views what their documents come to?",
        description="Maps all documents again, and compares contributions, totals, what is shown and every node. Exit code 1: something differs.",
    )
    which = "the file, and the variable that holds the pipeline (by default 'pipeline', or the only one there is)"
    check.add_argument("file", metavar="FILE[:NAME]", help=which)
    check.add_argument("views", metavar="VIEW", nargs="*", help="views and joins (by default all)")
    check.add_argument("--checkpoint", metavar="DIR", help="a directory or s3:// URL (by default PIPELINE-checkpoint, here)")
    check.add_argument("--sample", metavar="P%", type=_share, default=1.0, help="check only this share of the groups, such as 1%%")
    check.add_argument("--local", action="store_true", help=f"without Spark, in memory; so it is anyway up to {LITTLE:,} rows")
    check.add_argument(
        "--repair",
        action="store_true",
        help="mend what differs, in an epoch of its own, and check again; the pipeline must not run meanwhile",
    )
    check.add_argument("--json", action="store_true", help="what was found, as JSON")
    storage_option(check)
    check.set_defaults(command=_check)


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
    pipeline = pipeline_in(load(file), name, file)
    log = ManifestLog(open_storage(args.checkpoint or f"{pipeline.name}-checkpoint", dict(args.storage_option) or None))
    shards, program = log.identity().shards, pipeline.program()
    log.identify(program.name, shards, shards, list(program.topology.injectors))  # it is this pipeline's
    report = Check(program, log, args).run()
    if args.json:
        print_json(
            {
                "epoch": report.epoch,
                "differences": report.count,
                "views": {
                    name: {"groups": one.groups, "contributions": one.contributions, "differences": one.by_what}
                    for name, one in report.judgements.items()
                },
                "not_checked": report.skipped,
                "first": [str(one) for one in report.first],
            }
        )
    return 1 if report.count else 0


class Check:
    """One call of the command."""

    def __init__(self, program: Program, log: ManifestLog, args: argparse.Namespace) -> None:
        self._program = program
        self._log = log
        self._args = args
        self._options: dict[str, Any] | None = dict(args.storage_option) or None

    def run(self) -> AuditReport:
        if self._args.repair:
            self._refuse_company()
        report = self._checked(self._planned(mends=self._args.repair))
        self._tell(report)
        if not self._args.repair or not report.mends:
            return report
        self._repair(report)
        again = self._checked(self._planned())
        self._tell(again)
        return again

    def _tell(self, report: AuditReport) -> None:
        if not self._args.json:
            _tell(report)

    def _planned(self, mends: bool = False) -> AuditPlan:
        manifest = latest(self._log)
        if manifest is None:
            raise CheckpointError(f"{self._log.storage.url} has no committed epoch yet.")
        return planned(self._program, manifest, self._args.views, self._args.sample, mends)

    def _refuse_company(self) -> None:
        sign = last_sign(self._log.storage)
        if sign is not None and sign.is_alive(now()):
            raise CheckpointError(
                f"a driver is at work on {self._log.storage.url} (process {sign.pid} on {sign.host}), and a repair would end it. Stop it first. If it was "
                f"killed, wait for half a minute."
            )

    def _repair(self, report: AuditReport) -> None:
        spark = None
        if any(map(_wants_spark, self._program.topology.emissions)):
            from millstream.engine.spark.asked import ready_sinks
            from millstream.engine.spark.session import local_session

            spark = local_session(self._program.name)
            ready_sinks(self._program.topology)
        else:
            for emission in self._program.topology.emissions:
                emission.sink.check()
        done = mended(self._program, self._log, report.epoch, report.mends, spark)
        groups = Counter(one.consumer for one in report.mends)
        tell = _say if self._args.json else print
        tell(f"epoch {done.epoch} mends {', '.join(f'{n:,} groups of {name}' for name, n in groups.items())}")

    def _checked(self, plan: AuditPlan) -> AuditReport:
        is_local = self._args.local or plan.rows <= LITTLE
        counts = [f"{rows_shown(plan.manifest.computations[name]):,} rows of {name}" for name in plan.senders]
        what = f"{len(plan.consumers)} views and joins against {', '.join(counts) or 'nothing'}"
        _say(f"checking {what}, epoch {plan.manifest.epoch}, {'in this process' if is_local else 'on Spark'}")
        try:
            if is_local:
                return audit.checked_here(
                    self._program, self._log, plan, lambda sender, rows: _say(f"{rows:,} rows of {sender} are mapped")
                )
            from millstream.engine.spark.session import local_session

            return audit.checked_on_spark(self._program, self._log, plan, local_session(self._program.name), self._options)
        except Overtaken as error:
            raise CheckpointError(
                f"{error} The pipeline runs, and this check takes longer than it keeps an epoch. Stop it meanwhile, check a copy of the checkpoint, or give "
                f"--sample (which maps all documents, and compares less)."
            ) from error


def _wants_spark(emission: Emission) -> bool:
    """Whether a sink needs a session: to read a schema that is a text, or to hand epochs over."""
    sink = emission.sink
    return isinstance(getattr(sink, "schema", None), str) or not isinstance(sink, (FileSink, MemorySink, TwoPhaseSink))


def _say(text: str) -> None:
    print(f"check-view: {text}", file=sys.stderr, flush=True)


def _tell(report: AuditReport) -> None:
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
        print("A table has nothing that its documents could be mended from: correct the map, or restore the checkpoint from a copy.")
