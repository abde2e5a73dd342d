"""`millstream ui`: the page of one or several checkpoints, wherever their drivers are, until it is stopped."""

from __future__ import annotations

import argparse

from millstream.cli.arguments import PAGE, Commands, cookie_of, cookie_option, storage_of, storage_option, until_stopped
from millstream.monitoring.observer import Observer
from millstream.monitoring.web_server import PageServer, tables_of
from millstream.state.manifest_log import ManifestLog


def add_command(commands: Commands) -> None:
    ui = commands.add_parser(
        "ui",
        help="a page that shows pipelines",
        description="Serves a page that shows pipelines: running, stopped or elsewhere. It reads their checkpoints, and changes nothing.",
    )
    ui.add_argument("checkpoint", metavar="CHECKPOINT", nargs="+", help="directories or object stores' URLs")
    ui.add_argument("--listen", metavar="HOST:PORT", default=PAGE, help=f"where the page is served ({PAGE}); port 0 is any free one")
    ui.add_argument("--registry", metavar="URL", help="the registry of a state service, whose tables and nodes are then shown, too")
    cookie_option(ui)
    storage_option(ui)
    ui.set_defaults(command=_ui)


def _ui(args: argparse.Namespace) -> int:
    observers = [Observer(ManifestLog(storage_of(args, where))) for where in args.checkpoint]
    tables = None if args.registry is None else tables_of(args.registry, dict(args.storage_option) or None)
    stopping = until_stopped()
    server = PageServer(observers, args.listen, cookie_of(args), tables)
    print(f"the page is at {server.url} (Ctrl-C ends it)", flush=True)
    while not stopping.wait(1.0):
        pass
    server.stop()
    print(f"the page at {server.address} has ended")
    return 0
