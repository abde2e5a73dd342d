"""Arguments that several commands take, how their texts are read, and how what they found is printed.

A text that cannot be read is a wrong call: argparse says so, and ends with exit code 2.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import msgspec
from rich.console import Console, RenderableType

from millstream.core.time import duration
from millstream.errors import DefinitionError

_WIDE = 240


def storage_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--storage-option", metavar="K=V", action="append", default=[], type=option, help="for the object store's client; may be repeated"
    )


def setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form K=V")
    return name, value


def option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form K=V")
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


def without_action(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    """What a command with actions does when none is named."""
    parser.print_help(sys.stderr)
    return 2
