"""The command `millstream`, calm from its first moment: importing Millstream takes a second, and Ctrl-C may come in it. It has to stand outside the
package, because whoever imports a part of a package imports the package first."""

from __future__ import annotations

import os
import signal
from types import FrameType


def main() -> int:
    """Imports Millstream, and runs one command of it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from millstream.cli import main as run

    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"millstream: interrupted; nothing was begun\n")
    os._exit(130)
