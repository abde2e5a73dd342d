"""Spark's errors in plain words.

Rules
1. The reason is what Spark says itself, whole: the error class with its sentence, and the innermost cause where the outer one only wraps it. What goes
   is Java's and Python's stack, SQLSTATE, and the query plan behind it.
2. An error with a plain meaning for a Millstream user becomes one of ours, which says who must act.
"""

from __future__ import annotations

import re

from millstream.errors import Fenced, InputError, MillstreamError, StorageError
from millstream.sources.filereading.errors import ADVICE

INPUT_SIGNS = (
    "MALFORMED_RECORD_IN_PARSING",
    "FAILED_READ_FILE",
    "CANNOT_READ_FILE",
    "is not a Parquet file",
    "MALFORMED_CSV_RECORD",
    "Malformed records",
    "CAST_INVALID_INPUT",
    "FILE_NOT_EXIST",
    "CANNOT_PARSE",
)
SHARED_LOG = ("CONCURRENT_STREAM_LOG_UPDATE", "Concurrent update to the log", "Multiple streaming queries are concurrently using")
_MOST = 8  # sentences

_STACK = re.compile(r"^\s*(at [\w.$/<>]+\(|\.\.\. \d+ more|File \"|Traceback|\^+\s*$|===|\+-|:- |~)|^\s*\+?- ")
_WRAPPER = re.compile(
    r"^(Caused by: )?(org\.apache\.spark\.[\w.]*(SparkException|StreamingQueryException|RuntimeException|TaskCompletionListenerException)|java\.[\w.]+Exception"
    r"|com\.[\w.]+Exception|py4j\.[\w.]+): "
)
_STATE = re.compile(r"\s*SQLSTATE: \w+\.?")
_CLASS = re.compile(r"\[([A-Z_0-9]+(?:\.[A-Z_0-9]+)*)\]\s*")
_NOISE = (
    "Job aborted due to stage failure",
    "Driver stacktrace",
    "Lost task",
    "An exception was raised by the Python Proxy",
    "An error occurred while calling",
)


def reason(error: BaseException | str) -> str:
    """What Spark has to say, without its stack.

    >>> reason("[PATH_NOT_FOUND] Path does not exist: file:/in. SQLSTATE: 42K03;\\n\\tat org.apache.spark.Some.method(Some.scala:1)")
    'PATH_NOT_FOUND: Path does not exist: file:/in.'
    """
    text = str(error)
    found: dict[str, None] = {}
    for line in text.splitlines():
        if _STACK.match(line) or not line.strip() or any(sign in line for sign in _NOISE):
            continue
        plain = _STATE.sub("", _CLASS.sub(lambda match: f"{match.group(1)}: ", _WRAPPER.sub("", line.strip()))).strip().rstrip(";").strip()
        if plain and not any(plain in other for other in found):
            found[plain] = None
    return " ".join(list(found)[:_MOST]) or text[:500]


def translated(error: BaseException, hints: tuple[str, ...] = ()) -> BaseException:
    """Spark's own errors that have a plain meaning for a Millstream user. hints: what may help whoever feeds a stream."""
    if isinstance(error, MillstreamError):
        return error
    text = str(error)
    found: MillstreamError
    if any(sign in text for sign in SHARED_LOG):
        found = Fenced(
            f"another driver runs on the same checkpoint: Spark's log was changed by it. This one has stopped; nothing was committed twice. {reason(error)}"
        )
    elif any(sign in text for sign in INPUT_SIGNS):
        found = InputError(f"{ADVICE}\n  {_telling(text)}" + "".join(f"\n  {hint}" for hint in hints))
    elif "No space left on device" in text:
        found = StorageError(f"the disk is full; nothing of this epoch was committed. Make room and run again. {reason(error)}")
    else:
        return error
    found.__cause__ = error
    return found


def _telling(text: str) -> str:
    """Of an input error: the sentences that name the file and what is wrong in it."""
    lines = [line for line in text.splitlines() if any(sign in line for sign in INPUT_SIGNS) or "file:" in line]
    return reason("\n".join(lines) or text)
