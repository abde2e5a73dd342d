"""`millstream copy`: a copy of a checkpoint as of an epoch, while its run goes on."""

from __future__ import annotations

import argparse
import sys
import time

from millstream.cli.arguments import Commands, storage_of, storage_option
from millstream.state.checkpoint_copy import CopyProgress, copy_checkpoint
from millstream.status.render import size

_EVERY = 2.0  # seconds


def add_command(commands: Commands) -> None:
    copy = commands.add_parser(
        "copy",
        help="copy a checkpoint as of an epoch, also while its pipeline runs",
        description="Copies the newest committed epoch of a checkpoint. The copy has an identity of its own, and can be started beside the original.",
    )
    copy.add_argument("checkpoint", metavar="CHECKPOINT", help="the checkpoint's directory or s3:// URL")
    copy.add_argument("to", metavar="TO", help="where the copy goes: a directory or s3:// URL with nothing in it")
    storage_option(copy)
    copy.set_defaults(command=_copy)


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
