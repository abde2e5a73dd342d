"""Commands about a checkpoint as a whole: `status` and `state` (how far a pipeline is, and what a computation keeps; they read the log and change nothing),
`copy` (as of an epoch, while its run goes on), and `clean` (removes caches on this host that no run needs)."""

from __future__ import annotations

import argparse
import sys
import time

import msgspec

from millstream.cli.arguments import Commands, a_duration, at_least_one, failed, plural, print_json, show, storage_of, storage_option
from millstream.cli.files import execute, file_and_name, pipeline_in
from millstream.core.time import duration
from millstream.core.topology import WINDOW
from millstream.engine.program import Compiled
from millstream.errors import CheckpointError, DefinitionError
from millstream.operators.pane_rows import PaneReader
from millstream.operators.panes import WindowOperator
from millstream.readable import listing
from millstream.state import cache_cleanup
from millstream.state.checkpoint_copy import CopyProgress, copy_checkpoint
from millstream.state.manifest_log import ManifestLog
from millstream.state.reader import steady
from millstream.state.state_cache import boot_id, state_caches_folder
from millstream.status import render, render_rows, report
from millstream.status.render import size

_EVERY = 2.0  # seconds


def add_inspections(commands: Commands) -> None:
    status = commands.add_parser("status", help="how far a pipeline is", description="Shows the latest committed epoch of a checkpoint.")
    status.add_argument("checkpoint", metavar="CHECKPOINT", nargs="?")
    status.add_argument("--json", action="store_true", help="as JSON")
    status.add_argument("--schema", action="store_true", help="print the JSON Schema of what --json prints, and look at nothing")
    storage_option(status)
    status.set_defaults(command=_status)

    state = commands.add_parser("state", help="what a computation keeps", description="Shows committed state and timers of a computation.")
    state.add_argument("checkpoint", metavar="CHECKPOINT")
    state.add_argument("computation", metavar="COMPUTATION")
    state.add_argument("--key", metavar="K", help="one key, whole: a text, a number, or a JSON list for a tuple; '\"7\"' is only the text")
    state.add_argument("--limit", metavar="N", type=at_least_one, default=20, help="how many keys, or with --key how many map entries (20)")
    state.add_argument(
        "--pipeline", metavar="FILE[:NAME]", help="the pipeline's file: a window operator then shows what only its own reducers can show"
    )
    state.add_argument("--unpickle", action="store_true", help="load pickled state, which runs code: only for a checkpoint you trust")
    state.add_argument("--json", action="store_true", help="as JSON")
    storage_option(state)
    state.set_defaults(command=_state)


def _status(args: argparse.Namespace) -> int:
    if args.schema:
        print_json(msgspec.json.schema(report.Overview))
        return 0
    if args.checkpoint is None:
        return failed("say which checkpoint: millstream status CHECKPOINT", 2)
    found = report.overview(ManifestLog(storage_of(args, args.checkpoint)))
    if args.json:
        print_json(found)
    else:
        show(render.overview(found))
    return 0


def _state(args: argparse.Namespace) -> int:
    log = ManifestLog(storage_of(args, args.checkpoint))
    keys = None if args.key is None else listing.keys_of(args.key)
    name, unpickle, reader = (
        args.computation,
        args.unpickle,
        None if args.pipeline is None else _pane_reader(args.pipeline, args.computation),
    )
    if keys is None:
        found = steady(log, lambda m: listing.listed(m, name, args.limit, unpickle=unpickle, reader=reader))
    else:
        found = steady(log, lambda m: listing.looked_up(m, name, keys, entries=args.limit, unpickle=unpickle, reader=reader))
        if not found.rows:
            tried = " nor ".join(f"{key!r} ({type(key).__name__})" for key in keys)
            why = "A key whose state is the default one and that has no timers is not kept."
            if found.windows is not None:
                why = "Its windows have been told, or no record of it has come."
            elif found.keys is None:
                why = "No record of it waits for a partner."
            what = "row" if found.windows is None else "open window"
            raise CheckpointError(f"computation {args.computation!r} has no {what} for key {tried} in epoch {found.epoch}. {why}")
    if args.json:
        print_json(listing.plain_listing(found))
    else:
        show(render_rows.listing(found) if keys is None else render_rows.rows(found))
    return 0


def _pane_reader(given: str, computation: str) -> PaneReader:
    """What reads a window operator of the pipeline in a file."""
    file, variable = file_and_name(given)
    if not file.is_file():
        raise DefinitionError(f"--pipeline: there is no file {file}")
    program = pipeline_in(execute(file), variable, file).program()
    known = [spec.name for spec in program.topology.computations if spec.kind == WINDOW]
    if computation not in known:
        raise DefinitionError(
            f"--pipeline is about window operators, and {computation!r} of {file} is none. They are: {', '.join(known) or 'none'}."
        )
    made, kind = Compiled(program).make(computation)
    assert isinstance(made, WindowOperator)
    return PaneReader.of_operator(made, kind)


def add_commands(commands: Commands) -> None:
    copy = commands.add_parser(
        "copy",
        help="copy a checkpoint as of an epoch, also while its pipeline runs",
        description="Copies the newest committed epoch of a checkpoint. The copy has an identity of its own, and can be started beside the original.",
    )
    copy.add_argument("checkpoint", metavar="CHECKPOINT", help="the checkpoint's directory or object store's URL")
    copy.add_argument("to", metavar="TO", help="where the copy goes: a directory or object store's URL with nothing in it")
    storage_option(copy)
    copy.set_defaults(command=_copy)

    clean = commands.add_parser(
        "clean",
        help="remove caches on this host that no run needs",
        description="Removes caches of state that no process uses, and archives of Spark's classes. A checkpoint is never touched.",
    )
    clean.add_argument("--unused-for", metavar="TIME", type=a_duration, default="1d", help="leave what was used since then (1d)")
    clean.add_argument("--all", action="store_true", help="all that no process uses now, and all archives")
    clean.add_argument("--dry-run", action="store_true", help="say what would go, and remove nothing")
    clean.set_defaults(command=_clean)


def _copy(args: argparse.Namespace) -> int:
    told = time.monotonic()

    def tell(progress: CopyProgress) -> None:
        nonlocal told
        if time.monotonic() - told > _EVERY:
            told = time.monotonic()
            print(
                f"copy: epoch {progress.epoch}, {progress.objects:,} of {progress.of:,} objects, {size(progress.bytes)}",
                file=sys.stderr,
                flush=True,
            )

    done = copy_checkpoint(storage_of(args, args.checkpoint), storage_of(args, args.to), tell)
    print(f"copied epoch {done.epoch} of {args.checkpoint}, {done.of:,} objects, {size(done.bytes)}; the copy is {args.to}")
    print(
        f"start it with: millstream run FILE --checkpoint {args.to}  (with sinks of its own; a connector source needs its folder copied, too)"
    )
    return 0


def _clean(args: argparse.Namespace) -> int:
    from millstream.engine.spark.jvm import cache_folder

    since = time.time() - (0 if args.all else duration(args.unused_for) / 1000)
    base = state_caches_folder()
    unused = [cache for cache in cache_cleanup.state_caches(base) if cache.used <= since or cache.path.parent.name != boot_id()]
    unused += cache_cleanup.archives(cache_folder(), 0 if args.all else cache_cleanup.ARCHIVES)
    gone = []
    for cache in unused:
        if args.dry_run or cache_cleanup.remove(cache):
            gone.append(cache)
            print(f"{'would remove' if args.dry_run else 'removed'} {cache.path} ({cache.what}, {size(cache.bytes)})")
        else:
            print(f"left {cache.path}: it is in use, or cannot be removed")
    what = f"{plural(len(gone), 'cache')}, {size(sum(cache.bytes for cache in gone))}"
    print(f"{'would remove' if args.dry_run else 'removed'} {what}, of {base} and {cache_folder()}; what a run needs of it is made again")
    return 0
