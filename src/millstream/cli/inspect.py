"""`millstream status` and `millstream state`: how far a pipeline is, and what a computation keeps. They read the log and change nothing."""

from __future__ import annotations

import argparse

import msgspec

from millstream.cli.arguments import at_least_one, failed, print_json, show, storage_of, storage_option
from millstream.errors import CheckpointError
from millstream.readable import listing
from millstream.state.manifest_log import ManifestLog
from millstream.state.reader import steady
from millstream.status import render, report


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
    if keys is None:
        found = steady(log, lambda m: listing.listed(m, args.computation, args.limit, unpickle=args.unpickle))
    else:
        found = steady(log, lambda m: listing.looked_up(m, args.computation, keys, entries=args.limit, unpickle=args.unpickle))
        if not found.rows:
            tried = " nor ".join(f"{key!r} ({type(key).__name__})" for key in keys)
            raise CheckpointError(
                f"computation {args.computation!r} has no row for key {tried} in epoch {found.epoch}. A key whose state is the default one "
                f"and that has no timers is not kept."
            )
    if args.json:
        print_json(listing.plain_listing(found))
    else:
        show(render.listing(found) if keys is None else render.rows(found))
    return 0
