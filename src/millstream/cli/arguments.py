"""Arguments that several commands take, how their texts are read, and how what they found is printed.

Rules
1. A text that cannot be read is a wrong call: argparse says so, and ends with exit code 2.
2. Where a command listens is `--listen`; where it connects to is `--address`. The default ports do not collide: 7400 of the state service, 7401 of the
   connector's source, 7402 of the connector's sink.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from functools import partial
from typing import Any, TypeAlias

import msgspec
from rich.console import Console, RenderableType

from millstream.core.time import duration
from millstream.errors import DefinitionError
from millstream.network import Tls
from millstream.state.storage import Storage, open_storage

SERVICE, SOURCE, SINK, PAGE, METRICS = "127.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7402", "127.0.0.1:4080", "127.0.0.1:9464"
_WIDE = 240

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def group(commands: Commands, name: str, what: str, description: str) -> Commands:
    """Adds a command that has actions, and returns what they are added to. Without an action it prints its help."""
    command = commands.add_parser(name, help=what, description=description)
    command.set_defaults(command=partial(without_action, command))
    return command.add_subparsers(metavar="ACTION")


def without_action(command: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    command.print_help(sys.stderr)
    return 2


def storage_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--storage-option", metavar="K=V", action="append", default=[], type=option, help="for the object store's client; may be repeated"
    )


def storage_of(args: argparse.Namespace, where: str) -> Storage:
    """A checkpoint, or another place, with the options of its store."""
    return open_storage(where, dict(args.storage_option) or None)


def server_options(parser: argparse.ArgumentParser, listen: str) -> None:
    """Where a server listens, and who may connect. `cookie_of` and `server_tls` read them."""
    parser.add_argument("--listen", metavar="HOST:PORT", default=listen, help=f"where to listen ({listen}); port 0 is any free one")
    parser.add_argument("--cookie", metavar="C", help="the secret that clients must know; or in MILLSTREAM_COOKIE, which others cannot see")
    server_tls_options(parser)
    parser.add_argument("--force", action="store_true", help="listen beyond this machine without a cookie")


def server_tls_options(parser: argparse.ArgumentParser, plane: str = "") -> None:
    parser.add_argument(f"--{plane}tls-cert", metavar="FILE", help="switches TLS on: the server's certificate")
    parser.add_argument(f"--{plane}tls-key", metavar="FILE", help="its key")
    parser.add_argument(f"--{plane}tls-ca", metavar="FILE", help="also demands certificates of the clients, signed by this CA")


def metrics_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--metrics", metavar="HOST:PORT", nargs="?", const=METRICS, help=f"tell Prometheus how it is doing ({METRICS})")


def client_options(parser: argparse.ArgumentParser, address: str, what: str) -> None:
    """Where a client connects to, and its TLS, which `client_tls` reads."""
    parser.add_argument("--address", metavar="ADDRESS", default=address, help=f"{what} ({address})")
    parser.add_argument("--tls", action="store_true", help="switches TLS on, and trusts the system's CAs")
    parser.add_argument("--tls-ca", metavar="FILE", help="switches TLS on, and trusts this CA")
    parser.add_argument("--tls-cert", metavar="FILE", help="our own certificate, if the server wants one")
    parser.add_argument("--tls-key", metavar="FILE", help="its key")


def cookie_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cookie", metavar="C", help="the server's secret; or in MILLSTREAM_COOKIE, which others cannot see")


def cookie_of(args: argparse.Namespace) -> str:
    """The cookie that an option or a variable gives."""
    return args.cookie if args.cookie is not None else os.environ.get("MILLSTREAM_COOKIE", "")


def client_tls(args: argparse.Namespace) -> Tls | None:
    """The certificates of a client."""
    return Tls(args.tls_cert, args.tls_key, args.tls_ca) if args.tls or args.tls_ca or args.tls_cert else None


def server_tls(args: argparse.Namespace, plane: str = "") -> Tls | None:
    """The certificates of a server, or of one of its planes."""
    cert, key, ca = (getattr(args, f"{plane}tls_{what}") for what in ("cert", "key", "ca"))
    if cert is None and (key or ca):
        option = f"--{plane.replace('_', '-')}tls-"
        raise DefinitionError(f"{option}key and {option}ca need {option}cert")
    return None if cert is None else Tls(cert, key, ca)


def secured_by(args: argparse.Namespace) -> str:
    """How a server is protected, in words."""
    return f"{'TLS' if server_tls(args) else 'no TLS'}, {'a cookie' if cookie_of(args) else 'no cookie'}"


def until_stopped() -> threading.Event:
    """Set by Ctrl-C or SIGTERM."""
    stopping = threading.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopping.set())
    return stopping


def setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form K=V")
    return name, value


def option(text: str) -> tuple[str, Any]:
    name, value = setting(text)
    if value.startswith("{"):
        try:
            return name, msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise argparse.ArgumentTypeError(f"{name}: {error}") from error
    return name, value


def a_duration(text: str) -> str:
    try:
        duration(text)
    except DefinitionError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def failed(message: str, code: int = 1) -> int:
    """Says why a command failed, and returns its exit code."""
    print(f"millstream: {message}", file=sys.stderr)
    return code


def show(what: RenderableType) -> None:
    """Prints to a terminal, or plainly, and as wide as it needs to be, to anything else."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(what)
        return
    wide = Console(highlight=False, width=_WIDE)
    with wide.capture() as captured:
        wide.print(what)
    for line in captured.get().splitlines():
        print(line.rstrip())


def print_json(value: Any) -> None:
    """Prints JSON for people and programs."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def text_of(value: bytes) -> str | None:
    """Bytes as text that a terminal can show; None if they are none.

    >>> text_of(b"tea"), text_of(b"\\xff"), text_of(b"\\x00")
    ('tea', None, None)
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if all(letter.isprintable() or letter in "\t\n" for letter in text) else None


def plural(count: int, word: str) -> str:
    """
    >>> plural(1, "snapshot"), plural(1200, "snapshot")
    ('1 snapshot', '1,200 snapshots')
    """
    return f"{count:,} {word}{'' if count == 1 else 's'}"
