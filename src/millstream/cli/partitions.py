"""`millstream partitions`: what a node's partitions are, how they are changed over the control plane, and how their snapshots are copied elsewhere."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rich.table import Table as Grid

from millstream.cli import arguments
from millstream.cli.arguments import Commands
from millstream.core.time import duration
from millstream.errors import Busy, DefinitionError, ServiceError

_PATIENCE = 30.0  # seconds until a partition serves, or is gone


def add_commands(commands: Commands) -> None:
    actions = arguments.group(
        commands, "partitions", "list and change the partitions of a node", "Talks to the control plane of a node of the state service."
    )

    listed = _action(actions, "list", "which partitions there are", _list)
    listed.add_argument("table", metavar="TABLE", nargs="?", default="")

    add = _action(actions, "add", "a new partition, on this node", _add)
    add.add_argument("table", metavar="TABLE")
    add.add_argument("--id", type=int, help="its id (by default the next one)")
    _range(add)

    remove = _action(actions, "remove", "a partition is to be no more; its entries stay in the node's trash/ for an hour", _remove)
    remove.add_argument("table", metavar="TABLE")
    remove.add_argument("--id", type=int, help="by its id; or by its exact range:")
    _range(remove)

    for name, what, call in (
        ("snapshot", "write a partition's entries to a place", _snapshot),
        ("restore", "replace a partition's entries by a snapshot's", _restore),
    ):
        one = _action(actions, name, what, call)
        one.add_argument("id", metavar="ID", type=int)
        one.add_argument(
            "path", metavar="PATH", help="below the backups directory of the node (serve tables --backups), or a URL of an object store"
        )

    upload = actions.add_parser(
        "upload",
        help="copy snapshots elsewhere as they appear",
        description="Copies whole snapshots that appear in a directory, each once. It needs no node.",
    )
    upload.add_argument("dir", metavar="DIR", type=Path, help="where snapshots appear")
    upload.add_argument("to", metavar="TO", help="a directory or object store's URL")
    upload.add_argument("--every", metavar="TIME", type=arguments.a_duration, default="2s", help="how often to look (2s)")
    upload.add_argument("--once", action="store_true", help="copy what is there, and end")
    arguments.storage_option(upload)
    upload.set_defaults(command=_upload)


def _action(actions: Commands, name: str, what: str, call: Callable[[Any, argparse.Namespace], Awaitable[int]]) -> argparse.ArgumentParser:
    one = actions.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
    arguments.client_options(one, "unix:n1-data/control.sock", "the node's control plane; its cookie is in MILLSTREAM_CONTROL_COOKIE")
    one.add_argument("--json", action="store_true", help="as JSON")
    one.set_defaults(command=lambda args: asyncio.run(_connected(args, call)))
    return one


def _range(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from", dest="start", metavar="KEY", default="", help="the first point (text, or hex:...); by default the beginning"
    )
    parser.add_argument("--to", dest="end", metavar="KEY", default="", help="the first point that is not in it; by default there is no end")


async def _connected(args: argparse.Namespace, call: Callable[[Any, argparse.Namespace], Awaitable[int]]) -> int:
    from millstream.service.channel import Channel

    if "/" in args.address and not args.address.startswith("unix:"):
        args.address = f"unix:{args.address}"
    if args.address.startswith("unix:") and not Path(args.address.removeprefix("unix:")).exists():
        raise DefinitionError(f"there is no control plane at {args.address}: say --address unix:DIR/control.sock, with the node's --dir")
    channel = Channel(args.address, tls=arguments.client_tls(args), cookie=os.environ.get("MILLSTREAM_CONTROL_COOKIE", ""))
    try:
        return await call(channel, args)
    finally:
        await channel.close()


async def _ask(channel: Any, name: str, **fields: Any) -> Any:
    """A call that waits for its turn where the plane limits calls."""
    from millstream.service.proto import service_pb2 as pb

    request = getattr(pb, f"{name}Request")(**fields)
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return await channel.ask(name, request, 600)
        except Busy as busy:
            if time.monotonic() + busy.retry_after > until:
                raise
            await asyncio.sleep(busy.retry_after)


async def _list(channel: Any, args: argparse.Namespace) -> int:
    found = (await _ask(channel, "ListPartitions", table=args.table)).partitions
    if args.json:
        arguments.print_json([_plain(one) for one in found])
        return 0
    grid = Grid(box=None, header_style="dim")
    for column in ("id", "table", "from", "to", "node", "address", "term", "state", "position"):
        grid.add_column(column)
    for one in found:
        state = f"{one.state}: {one.reason}" if one.reason else one.state
        grid.add_row(str(one.id), one.table, _shown(one.start), _shown(one.end), one.node, one.primary, str(one.term), state, str(one.lsn))
    arguments.show(grid if found else "there are no partitions")
    return 0


async def _add(channel: Any, args: argparse.Namespace) -> int:
    made = await _ask(channel, "AddPartition", table=args.table, id=args.id, start=_point(args.start), end=_point(args.end))
    found = await _until(channel, made, lambda one: one is not None and one.state == "serving")
    _tell(args, _plain(found), f"partition {made.id} of {made.table!r} serves {_from_to(made)} on {made.primary}")
    return 0


async def _remove(channel: Any, args: argparse.Namespace) -> int:
    gone = await _ask(channel, "RemovePartition", table=args.table, id=args.id, start=_point(args.start), end=_point(args.end))
    await _until(channel, gone, lambda one: one is None)
    _tell(args, _plain(gone), f"partition {gone.id} of {gone.table!r} is gone; its entries stay in trash/ of its node for an hour")
    return 0


async def _snapshot(channel: Any, args: argparse.Namespace) -> int:
    done = await _ask(channel, "Snapshot", partition=args.id, path=args.path)
    what = {"partition": args.id, "path": done.path, "rows": done.rows, "bytes": done.bytes, "lsn": done.at.lsn}
    _tell(args, what, f"partition {args.id} as of position {done.at.lsn}: {done.rows:,} rows in {done.path}")
    return 0


async def _restore(channel: Any, args: argparse.Namespace) -> int:
    done = await _ask(channel, "Restore", partition=args.id, path=args.path)
    what = {"partition": args.id, "rows": done.rows, "lsn": done.at.lsn}
    _tell(args, what, f"partition {args.id} has the {done.rows:,} rows of {args.path}, at position {done.at.lsn}")
    return 0


def _upload(args: argparse.Namespace) -> int:
    from millstream.service.stores.snapshots import upload_once, watch_and_upload

    if not args.dir.is_dir():
        raise DefinitionError(f"there is no directory {args.dir}")
    target = arguments.storage_of(args, args.to)

    def say(text: str) -> None:
        print(f"upload: {text}", flush=True)

    if args.once:
        done = len(upload_once(args.dir, target, say))
    else:
        stopping = arguments.until_stopped()
        say(f"watching {args.dir}, copying to {args.to}")
        done = watch_and_upload(args.dir, target, say, stop=stopping, every=duration(args.every) / 1000)
    say(f"copied {arguments.plural(done, 'snapshot')} to {args.to}")
    return 0


async def _until(channel: Any, which: Any, holds: Callable[[Any], bool]) -> Any:
    """The node carries out what is desired; this waits for it."""
    until = time.monotonic() + _PATIENCE
    while True:
        listed = await _ask(channel, "ListPartitions", table=which.table)
        found = next((one for one in listed.partitions if one.id == which.id), None)
        if holds(found):
            return found
        if time.monotonic() > until:
            state = "gone" if found is None else f"{found.state} {found.reason}".rstrip()
            raise ServiceError(
                f"partition {which.id} is desired so, and is {state} after {_PATIENCE:.0f} s; `millstream partitions list` says how it goes on"
            )
        await asyncio.sleep(0.05)


def _tell(args: argparse.Namespace, what: dict[str, Any], text: str) -> None:
    if args.json:
        arguments.print_json(what)
    else:
        print(text)


def _plain(one: Any) -> dict[str, Any]:
    names = ("id", "table", "term", "node", "point", "state", "reason", "lsn")
    return {**{name: getattr(one, name) for name in names}, "start": _shown(one.start), "end": _shown(one.end), "address": one.primary}


def _point(text: str) -> bytes:
    """A point that an option names."""
    if text.startswith("hex:"):
        try:
            return bytes.fromhex(text[4:])
        except ValueError as error:
            raise DefinitionError(f"{text!r} is no hex: {error}") from error
    return text.encode()


def _shown(point: bytes) -> str:
    """A point as an option would name it."""
    text = arguments.text_of(point)
    return text if text is not None and text.isprintable() and not text.startswith("hex:") else f"hex:{point.hex()}"


def _from_to(one: Any) -> str:
    """A range in words."""
    start, end = _shown(one.start), _shown(one.end)
    return f"from {start or 'the beginning'} {f'to {end}' if end else 'on'}" if start or end else "all keys"
