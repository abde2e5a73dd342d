"""`millstream upload`: the sidecar that copies a node's snapshots elsewhere."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path

from millstream.cli.arguments import a_duration, storage_option
from millstream.core.time import duration
from millstream.errors import DefinitionError
from millstream.state.storage import open_storage


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds it to a parser's subcommands."""
    upload = commands.add_parser(
        "upload",
        help="copy snapshots elsewhere as they appear",
        description="Copies whole snapshots that appear in a directory, each once.",
    )
    upload.add_argument("--watch", metavar="DIR", type=Path, required=True, help="where snapshots appear")
    upload.add_argument("--to", metavar="URL", required=True, help="a directory or s3:// URL")
    upload.add_argument("--every", metavar="TIME", type=a_duration, default="2s", help="how often to look (2s)")
    upload.add_argument("--once", action="store_true", help="copy what is there, and end")
    storage_option(upload)
    upload.set_defaults(command=_upload)


def _upload(args: argparse.Namespace) -> int:
    from millstream.service.upload import upload_once, watch_and_upload

    if not args.watch.is_dir():
        raise DefinitionError(f"there is no directory {args.watch}")
    target = open_storage(args.to, dict(args.storage_option) or None)

    def say(text: str) -> None:
        print(f"upload: {text}", flush=True)

    if args.once:
        done = len(upload_once(args.watch, target, say))
    else:
        stopping = threading.Event()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: stopping.set())
        say(f"watching {args.watch}, copying to {args.to}")
        done = watch_and_upload(args.watch, target, say, stop=stopping, every=duration(args.every) / 1000)
    say(f"copied {done} snapshot{'' if done == 1 else 's'} to {args.to}")
    return 0
