"""What users write for an injector's watermark: `ms.watermarks`. Each function checks what it is given and makes a policy (`watermark.py`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from millstream.core.time import Duration, duration
from millstream.core.watermark import Bounded, Declared, FileTimes, Percentile, Policy, SubSources
from millstream.errors import DefinitionError

__all__ = ["Policy", "bounded", "declared", "files", "percentile", "sub_sources"]


def bounded(delay: Duration, *, idle: Duration | None = None, onward: Duration | None = None) -> Bounded:
    """The watermark follows the newest timestamp at a fixed distance.

    idle: after this silence it holds nothing back while others go on. onward: after this silence it goes on with the wall clock, so that
    windows close although input has stopped. What comes after that is late: choose it longer than any pause of the source.

    >>> from millstream.core.watermark import Progress, Seen
    >>> bounded("2s").value(Progress(newest=10_000), Seen(), 0)[0]
    8000
    >>> bounded("2s", onward="30s").going_on(8_000, "", silence=45_000)[0]
    23000
    """
    millis = duration(delay)
    if millis < 0:
        raise DefinitionError(f"bounded({delay!r}): the delay cannot be negative")
    return Bounded(delay=millis, idle=_silence("idle", idle), onward=_silence("onward", onward))


def declared(by: str | Callable[[], int | None], *, idle: Duration | None = None) -> Declared:
    """The source says how far it is: `by` names a column that carries watermarks (milliseconds), or is a callable on the driver.

    The callable is asked in every epoch, and what it says counts from the next epoch but one: by then everything that the source had
    delivered when it spoke has been read (unless the source is read in limited portions, such as `max_files_per_epoch`). None says nothing new.

    >>> declared("complete_until").mark_column
    'complete_until'
    """
    if isinstance(by, str):
        return Declared(column=by, idle=_silence("idle", idle))
    if not callable(by):
        raise DefinitionError(f"declared({by!r}): give a column's name, or a callable without arguments")
    return Declared(function=by, idle=_silence("idle", idle))


def percentile(
    share: float,
    *,
    first: Duration = "10s",
    at_least: Duration = 0,
    at_most: Duration = "1h",
    idle: Duration | None = None,
    onward: Duration | None = None,
) -> Percentile:
    """A share of the records (say 0.99) comes within a delay that is estimated from recent epochs. The rest is late.

    first: the delay until there is enough to estimate from. The estimate is rounded up by at most a fifth. idle, onward: as for `bounded`.

    >>> percentile(0.99).share
    0.99
    """
    if not 0 < share < 1:
        raise DefinitionError(f"percentile({share}): give a share between 0 and 1, such as 0.99")
    return Percentile(
        share=share,
        first=duration(first),
        at_least=duration(at_least),
        at_most=duration(at_most),
        idle=_silence("idle", idle),
        onward=_silence("onward", onward),
    )


def sub_sources(column: str, names: Any, each: Bounded | Declared) -> SubSources:
    """The minimum over a declared set of sub-sources, which a column names. One that is missing holds the watermark, unless `each` has an idle time.

    >>> sub_sources("host", ["a", "b"], bounded("2s")).names
    ('a', 'b')
    """
    if isinstance(names, str) or not names or not all(isinstance(name, str) for name in names):
        raise DefinitionError("sub_sources(column, names, each): names is a list of strings")
    if not isinstance(each, (Bounded, Declared)) or (isinstance(each, Declared) and each.column is None):
        raise DefinitionError("sub_sources(column, names, each): each is bounded(...) or declared('column')")
    return SubSources(column=column, names=tuple(names), each=each)


def files(start: str | Callable[[str, int], int] | None = None) -> FileTimes:
    """For `ms.sources.files`: no record is older than the start of the oldest file that has not been read.

    start: a file's start, as a regular expression whose first group is milliseconds in its name, or a callable on (path, modification
    time in ms); by default the modification time. New files must not start before those that are there.

    >>> files(r"log-([0-9]+)").from_files({"log-100": 0, "log-200": 0}, {"log-100"})
    200
    """
    if start is None:
        return FileTimes(start=lambda path, modified: modified)
    if callable(start):
        return FileTimes(start=start)
    pattern = re.compile(start)
    if pattern.groups < 1:
        raise DefinitionError(f"watermarks.files({start!r}): the expression needs a group that is the milliseconds")

    def found(path: str, modified: int) -> int:
        match = pattern.search(path)
        if match is None:
            raise DefinitionError(f"watermarks.files({start!r}): the name of {path} does not match")
        return int(match.group(1))

    return FileTimes(start=found)


def _silence(what: str, given: Duration | None) -> int | None:
    if given is None:
        return None
    millis = duration(given)
    if millis <= 0:
        raise DefinitionError(f"{what}={given!r}: give a time longer than nothing")
    return millis
