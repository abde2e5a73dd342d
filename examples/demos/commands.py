"""Commands that a demo prints, so that they can be pasted: one line each, quoted, with the `millstream` that runs the demo."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def pasteable(*words: object) -> str:
    """A call of `millstream`, as a shell reads it here.

    >>> pasteable("kv", "get", "Spikes", "new york")
    "millstream kv get Spikes 'new york'"
    """
    beside = Path(sys.executable).with_name("millstream")
    program = "millstream" if shutil.which("millstream") or not beside.exists() else str(beside)
    return shlex.join([program, *map(str, words)])
