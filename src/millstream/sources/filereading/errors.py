"""What a run ends with when a file cannot be read: one sentence that says what to do, then what is wrong and where."""

from __future__ import annotations

import re
from urllib.parse import quote

from millstream.errors import InputError

#: What an operator can do.
ADVICE = (
    "an injected stream cannot be read; nothing of this epoch was committed. Fix or remove the file, and run again; or send such rows to a stream, with "
    "compute(..., on_error=ms.DEAD_LETTER) for every computation that reads it, and pipeline.emit(pipeline.dead_letters(NAME), SINK) to keep them."
)
WAY_OUT = "only Spark reads this. Write it in the plain form, or run without resident=True"
_MOST = 300


class Malformed(ValueError):
    """A value or a line that does not fit, for Spark neither."""


class OnlySpark(ValueError):
    """A value or a line in a form of which we are not certain what Spark's reader makes."""


def input_error(path: str, what: str, line: int | None = None, text: str | None = None) -> InputError:
    where = address(path) if line is None else f"{address(path)}, line {line}"
    shown = "" if text is None else f": {text[:_MOST]}{'...' if len(text) > _MOST else ''}"
    return InputError(f"{ADVICE}\n  {where}: {what}{shown}")


#: What is quoted in a URI: signs of ASCII that are not plain, and among the others controls and separators.
_QUOTED = re.compile(r"[^A-Za-z0-9_\-!.~'()*;/:@&=+$,\u00a1-\U0010ffff]|[\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")


def address(path: str) -> str:
    """The URI of a local file as Spark's input_file_name() has it.

    >>> address("/in dir/ä%.json")
    'file:///in%20dir/ä%25.json'
    """
    return "file://" + _QUOTED.sub(lambda found: quote(found[0], safe=""), path)
