"""`millstream push` as a process of its own."""

from __future__ import annotations

import argparse
import sys

from millstream.cli.push import add_command
from millstream.errors import MillstreamError

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_command(parser.add_subparsers())
    args = parser.parse_args(["push", *sys.argv[1:]])
    try:
        sys.exit(args.command(args))
    except MillstreamError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
