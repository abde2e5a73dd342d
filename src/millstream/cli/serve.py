"""`millstream serve tables` runs a node of the state service, `millstream serve checkpoint` serves the live state of a pipeline, until they are stopped."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

from millstream.cli import arguments
from millstream.cli.arguments import Commands
from millstream.cli.files import execute, file_and_name, tables_in
from millstream.errors import DefinitionError
from millstream.monitoring import prometheus
from millstream.state.storage import open_storage


def add_commands(commands: Commands) -> None:
    actions = arguments.group(commands, "serve", "serve tables, or the live state of a pipeline", "Serves state over gRPC.")
    tables = actions.add_parser(
        "tables",
        help="serve the tables in a Python file",
        description="Runs a node of the state service, which serves the tables in a Python file.",
    )
    which = "the file, and the variable that holds a table or a list of tables (by default all)"
    tables.add_argument("file", metavar="FILE[:NAME]", help=which)
    tables.add_argument("--node", metavar="NAME", default="n1", help="the node's name (n1)")
    tables.add_argument("--dir", metavar="DIR", type=Path, help="where the node keeps its files (by default NODE-data, here)")
    _data_plane(tables)
    where = "where the control plane listens: unix:PATH (by default DIR/control.sock), or HOST:PORT with a cookie or certificates"
    tables.add_argument("--control-listen", metavar="ADDRESS", help=where)
    arguments.server_tls_options(tables, "control-")
    tables.add_argument("--registry", metavar="URL", help="a directory or object store's URL that nodes share (by default DIR/registry)")
    tables.add_argument("--backups", metavar="DIR", type=Path, help="where `partitions snapshot` may write (by default DIR/backups)")
    tables.add_argument("--take-over", metavar="NODE", help="take the partitions of a node that shares this node's log")
    tables.add_argument("--advertise", metavar="HOST:PORT", help="how clients reach the data plane, if not as it listens")
    arguments.metrics_option(tables)
    tables.set_defaults(command=_tables)

    checkpoint = actions.add_parser(
        "checkpoint",
        help="serve the live state of a pipeline",
        description="Serves what a pipeline has committed. It only reads the checkpoint.",
    )
    checkpoint.add_argument("checkpoint", metavar="DIR", help="the checkpoint's directory or object store's URL")
    _data_plane(checkpoint)
    where = "where the copy that answers is kept (by default a temporary directory)"
    checkpoint.add_argument("--state-cache", metavar="DIR", help=where)
    arguments.storage_option(checkpoint)
    checkpoint.set_defaults(command=_checkpoint)


def _data_plane(parser: argparse.ArgumentParser) -> None:
    arguments.server_options(parser, arguments.SERVICE)
    parser.add_argument("--limits", choices=("on", "off"), default="on", help="off: a mesh limits calls")


def _tables(args: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.WARNING, format="millstream serve: %(message)s")
    file, name = file_and_name(args.file)
    if not file.is_file():
        raise DefinitionError(f"there is no file {file}")
    return asyncio.run(_serve_tables(args, tables_in(execute(file), name, file)))


def _checkpoint(args: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.WARNING, format="millstream serve: %(message)s")
    return asyncio.run(_serve_checkpoint(args))


async def _serve_tables(args: argparse.Namespace, tables: list[Any]) -> int:
    from millstream.service import limits
    from millstream.service.node import Node

    folder = args.dir or Path(f"{args.node}-data")
    off = args.limits == "off"
    node = Node(
        tables,
        name=args.node,
        folder=folder,
        data=args.listen,
        control=args.control_listen,
        registry=args.registry,
        tls=arguments.server_tls(args),
        cookie=arguments.cookie_of(args),
        control_tls=arguments.server_tls(args, "control_"),
        control_cookie=os.environ.get("MILLSTREAM_CONTROL_COOKIE", ""),
        limits=limits.off(limits.DATA) if off else limits.DATA,
        control_limits=limits.off(limits.CONTROL) if off else limits.CONTROL,
        take_over=args.take_over,
        advertise=args.advertise,
        backups=args.backups,
        force=args.force,
    )
    stopping = arguments.until_stopped()
    await node.start()
    try:
        for table in tables:
            here = [partition for partition in node.manager.partitions.values() if partition.descriptor.table == table.name]
            print(f"serve: {table}, {arguments.plural(len(here), 'partition')} here", flush=True)
            for partition in here:
                if partition.state != "serving":
                    about = f"partition {partition.descriptor.id} of {table.name!r} is {partition.state}: {partition.reason}"
                    print(f"serve: {about}", file=sys.stderr, flush=True)
        print(
            f"serve: node {args.node} listens on {node.data.address} ({arguments.secured_by(args)}); control on {node.control.address}",
            flush=True,
        )
        collectors = [prometheus.NodeCollector(args.node, node.manager.partitions.values)]
        with prometheus.served(collectors, args.metrics, lambda text: print(f"serve: {text}", flush=True)):
            await asyncio.to_thread(stopping.wait)
    finally:
        served = {partition.descriptor.table for partition in node.manager.partitions.values()}
        await node.stop()
    print(f"serve: stopped; what was answered is kept in {folder} ({arguments.plural(len(served), 'table')})", flush=True)
    return 0


async def _serve_checkpoint(args: argparse.Namespace) -> int:
    from millstream.service import limits
    from millstream.service.live.backend import LiveServer

    options = dict(args.storage_option) or None
    limited = limits.off(limits.DATA) if args.limits == "off" else limits.DATA
    secured: dict[str, Any] = {"tls": arguments.server_tls(args), "cookie": arguments.cookie_of(args), "force": args.force}
    server = LiveServer(args.checkpoint, args.listen, storage_options=options, cache_folder=args.state_cache, limits=limited, **secured)
    stopping = arguments.until_stopped()
    await server.start()
    print(f"serve: the live state of {args.checkpoint}, {arguments.secured_by(args)}; listening on {server.address}", flush=True)
    if not open_storage(args.checkpoint, options).exists("identity.json"):
        print(f"serve: there is no checkpoint at {args.checkpoint} yet; questions are answered when there is", file=sys.stderr, flush=True)
    try:
        await asyncio.to_thread(stopping.wait)
    finally:
        await server.stop()
    print(f"serve: stopped; {args.checkpoint} was only read", flush=True)
    return 0
