"""Commands that a demo prints, so that they can be pasted: one line each, quoted, with the `millstream` that runs the demo."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def pasteable(*words: object) -> str:
    """A call of `millstream`, as a shell reads it here.

    >>> pasteable("kv", "get", "Spikes", "new york")
    "millstream kv get Spikes 'new york'"
    """
    own = Path(sys.argv[0])
    program = str(own) if own.name == "millstream" else "millstream"
    return shlex.join([program, *map(str, words)])
