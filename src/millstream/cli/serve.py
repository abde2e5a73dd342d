"""`millstream serve`: a node of the state service, or the live state of a pipeline, until it is stopped."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from millstream.cli.arguments import storage_option
from millstream.cli.files import execute, file_and_name, tables_in
from millstream.errors import DefinitionError
from millstream.network import Tls
from millstream.state.storage import open_storage


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds it to a parser's subcommands."""
    serve = commands.add_parser(
        "serve",
        help="serve tables, or the live state of a pipeline",
        description="Serves the tables in a Python file, or with --checkpoint what a pipeline has committed, over gRPC.",
    )
    serve.add_argument(
        "file", metavar="FILE[:NAME]", nargs="?", help="the file, and the variable that holds a table or a list of tables (by default all)"
    )
    serve.add_argument("--checkpoint", metavar="DIR", help="serve the live state of the pipeline with this checkpoint")
    serve.add_argument(
        "--data",
        metavar="HOST:PORT",
        default="127.0.0.1:7400",
        help="where the data plane listens (127.0.0.1:7400); port 0 is any free one",
    )
    serve.add_argument("--node", metavar="NAME", default="n1", help="the node's name (n1)")
    serve.add_argument("--dir", metavar="DIR", type=Path, help="where the node keeps its files (by default NODE-data, here)")
    serve.add_argument(
        "--control",
        metavar="ADDRESS",
        help="where the control plane listens: unix:PATH, or HOST:PORT with a cookie or certificates",
    )
    serve.add_argument("--registry", metavar="URL", help="a directory or s3:// URL that nodes share (by default DIR/registry)")
    serve.add_argument("--backups", metavar="DIR", type=Path, help="where `partitions snapshot` may write (by default DIR/backups)")
    serve.add_argument("--take-over", metavar="NODE", help="take the partitions of a node that shares this node's log")
    serve.add_argument("--advertise", metavar="HOST:PORT", help="how clients reach the data plane, if not as it listens")
    serve.add_argument("--limits", choices=("on", "off"), default="on", help="off: a mesh limits calls")
    serve.add_argument(
        "--state caches", metavar="DIR", help="with --checkpoint: where the copy that answers is kept (by default a temporary directory)"
    )
    serve.add_argument(
        "--cookie",
        metavar="C",
        help="the secret that clients must know; or in MILLSTREAM_COOKIE, which others cannot see",
    )
    for plane in ("", "control-"):
        of = "control" if plane else "data"
        serve.add_argument(f"--{plane}tls-cert", metavar="FILE", help=f"switches TLS on for the {of} plane: the server's certificate")
        serve.add_argument(f"--{plane}tls-key", metavar="FILE", help="its key")
        serve.add_argument(f"--{plane}tls-ca", metavar="FILE", help="also demands certificates of the clients, signed by this CA")
    serve.add_argument("--force", action="store_true", help="listen beyond this machine without a cookie")
    storage_option(serve)
    serve.set_defaults(command=_serve)


def _serve(args: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.WARNING, format="millstream serve: %(message)s")
    if args.file is not None and args.checkpoint is not None:
        raise DefinitionError("say one of FILE and --checkpoint: tables and live state are served by two processes")
    if args.file is None and args.checkpoint is None:
        raise DefinitionError("say what to serve: a FILE with tables, or --checkpoint DIR of a pipeline")
    if args.checkpoint is not None:
        return asyncio.run(_serve_checkpoint(args))
    file, name = file_and_name(args.file)
    if not file.is_file():
        raise DefinitionError(f"there is no file {file}")
    return asyncio.run(_serve_tables(args, tables_in(execute(file), name, file)))


def tls_of(args: argparse.Namespace, plane: str = "") -> Tls | None:
    """The certificates of a plane that options name."""
    cert, key, ca = (getattr(args, f"{plane}tls_{what}") for what in ("cert", "key", "ca"))
    if cert is None and (key or ca):
        raise DefinitionError(f"--{plane.replace('_', '-')}tls-key and -ca need -cert")
    return None if cert is None else Tls(cert, key, ca)


def cookie_of(args: argparse.Namespace) -> str:
    """The cookie that an option or a variable gives."""
    return args.cookie if args.cookie is not None else os.environ.get("MILLSTREAM_COOKIE", "")


def secured_by(args: argparse.Namespace) -> str:
    """For people."""
    return f"{'TLS' if tls_of(args) else 'no TLS'}, {'a cookie' if cookie_of(args) else 'no cookie'}"


async def _serve_tables(args: argparse.Namespace, tables: list[Any]) -> int:
    from millstream.service import limits
    from millstream.service.node import Node

    folder = args.dir or Path(f"{args.node}-data")
    off = args.limits == "off"
    node = Node(
        tables,
        name=args.node,
        folder=folder,
        data=args.data,
        control=args.control,
        registry=args.registry,
        tls=tls_of(args),
        cookie=cookie_of(args),
        control_tls=tls_of(args, "control_"),
        control_cookie=os.environ.get("MILLSTREAM_CONTROL_COOKIE", ""),
        limits=limits.off(limits.DATA) if off else limits.DATA,
        control_limits=limits.off(limits.CONTROL) if off else limits.CONTROL,
        take_over=args.take_over,
        advertise=args.advertise,
        backups=args.backups,
        force=args.force,
    )
    stopping = _until_told()
    await node.start()
    try:
        for table in tables:
            mine = [one for one in node.manager.partitions.values() if one.descriptor.table == table.name]
            broken = [one for one in mine if one.state != "serving"]
            print(f"serve: {table}, {len(mine)} partition{'' if len(mine) == 1 else 's'} here", flush=True)
            for one in broken:
                print(f"serve: partition {one.descriptor.id} of {table.name!r} is {one.state}: {one.reason}", file=sys.stderr, flush=True)
        print(f"serve: node {args.node} listens on {node.data.address} ({secured_by(args)}); control on {node.control.address}", flush=True)
        await stopping.wait()
    finally:
        served = {one.descriptor.table: one for one in node.manager.partitions.values()}
        await node.stop()
    print(f"serve: stopped; what was answered is kept in {folder} ({len(served)} table{'' if len(served) == 1 else 's'})", flush=True)
    return 0


async def _serve_checkpoint(args: argparse.Namespace) -> int:
    from millstream.service import limits
    from millstream.service.live.process import LiveServer

    server = LiveServer(
        args.checkpoint,
        args.data,
        tls=tls_of(args),
        cookie=cookie_of(args),
        storage_options=dict(args.storage_option) or None,
        cache_folder=args.state_caches,
        limits=limits.off(limits.DATA) if args.limits == "off" else limits.DATA,
        force=args.force,
    )
    stopping = _until_told()
    await server.start()
    print(f"serve: the live state of {args.checkpoint}, {secured_by(args)}; listening on {server.address}", flush=True)
    if not open_storage(args.checkpoint, dict(args.storage_option) or None).exists("identity.json"):
        print(f"serve: there is no checkpoint at {args.checkpoint} yet; questions are answered when there is", file=sys.stderr, flush=True)
    try:
        await stopping.wait()
    finally:
        await server.stop()
    print(f"serve: stopped; {args.checkpoint} was only read", flush=True)
    return 0


def _until_told() -> asyncio.Event:
    """Set by Ctrl-C or SIGTERM."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    return stopping
