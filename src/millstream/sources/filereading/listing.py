"""Which files of a directory are new.

Rules
1. A file is read once, by its name; what happens to it later is not looked at. Names that begin with "." are passed over, so are those that begin with "_"
   unless they hold a "=", and those that end with "._COPYING_": as Spark's source does.
2. New files come in the order of their time of modification, then of their name. Spark leaves open which of two files of one millisecond comes first.
3. A file that is older than the newest one that was ever read, by more than `max_age`, is passed over; its name need not be kept. So the set of names does
   not grow for ever.
4. A plan counts as read only when somebody has said so: by `committed`, or by planning from its end. Else it is planned anew.
5. A directory whose own time of modification has not changed is not listed again, if it was listed more than 2 seconds after that time (which is as
   exact as file systems are), and not longer ago than 30 seconds.
"""

from __future__ import annotations

import bisect
import os
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from millstream.errors import InputError
from millstream.sources.filereading import line_splits

_SETTLED = 2.0  # seconds: changes that are closer together may bear the same time
_NEVER = 1 << 62
_TRUSTED = 30.0  # seconds: a clock of another host may be wrong


def is_hidden(name: str) -> bool:
    """Whether Spark's source passes over a file of this name.

    >>> [name for name in ("a.json", ".a.json", "_a.json", "_k=1.json", "a._COPYING_") if is_hidden(name)]
    ['.a.json', '_a.json', 'a._COPYING_']
    """
    return (
        name.startswith((".", "_metadata", "_common_metadata")) or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")
    )


class NewFiles(NamedTuple):
    """Of one plan. end: how many names were ever read, with these. gone: names that need not be kept. left: how many files have to wait."""

    end: int
    names: dict[str, int]
    gone: list[str]
    left: int


class Folder:
    """Names and times of the files in one directory, looked at as seldom as possible."""

    def __init__(self, path: str, accepts: Callable[[str], bool] = lambda name: True) -> None:
        self.path, self._accepts = path, accepts
        self._known: dict[str, int] = {}
        self._passed: set[str] = set()  # names that are no files of ours: folders, hidden ones
        self._changed = -1  # the directory's own time (ns) at the last listing that can be trusted
        self._listed = 0.0

    def look(self) -> dict[str, int]:
        """All files that are there, with their times of modification (ms) when they were first seen. The same object says that nothing has changed."""
        try:
            before = os.stat(self.path).st_mtime_ns
        except FileNotFoundError:
            raise InputError(f"there is no directory {self.path} any longer. Make it again, or correct the path of the source") from None
        now = time.time()
        if before == self._changed and now - self._listed < _TRUSTED:
            return self._known
        found: dict[str, int] = {}
        passed: set[str] = set()
        with os.scandir(self.path) as entries:
            for entry in entries:
                name = entry.name
                modified = self._known.get(name)
                if modified is not None:
                    found[name] = modified
                elif name in self._passed or is_hidden(name) or not self._accepts(name):
                    passed.add(name)
                else:
                    self._first_look(entry, found)
        self._known = self._known if found == self._known else found
        self._passed, self._listed = passed, now
        self._changed = before if now - before / 1e9 > _SETTLED else -1
        return self._known

    def _first_look(self, entry: os.DirEntry[str], found: dict[str, int]) -> None:
        try:
            if entry.is_dir():
                if "=" in entry.name:
                    raise InputError(
                        f"{entry.path} is a folder that names a column's value. Millstream reads the files of one directory only: move such folders "
                        "elsewhere, or give a streaming DataFrame as the source, which Spark reads"
                    )
                return
            modified = entry.stat().st_mtime_ns // 1_000_000
        except OSError:  # gone meanwhile, or a link to nothing
            return
        try:
            entry.name.encode()
        except UnicodeEncodeError:
            raise InputError(f"the name of {os.fsencode(entry.path)!r} is not UTF-8. Rename the file") from None
        found[entry.name] = modified


class UnreadFiles:
    """The files of a directory that nobody has read yet. max_age: in ms. limit: of files in one plan."""

    def __init__(self, folder: Folder, max_age: int, limit: int | None) -> None:
        self._folder, self._max_age, self._limit = folder, max_age, limit
        self._read: dict[str, int] = {}
        self._newest: int | None = None  # the time of the newest file that was read
        self._least = _NEVER  # no file in _read is older
        self._planned: NewFiles | None = None  # and not known to be committed
        self._all: dict[str, int] | None = None  # of a bounded run
        self._sorted: dict[str, int] | None = None  # the listing that _waiting was made of
        self._waiting: list[tuple[int, str]] = []  # what is there and not read, in order

    def begin(self, names: Mapping[str, int], bounded: bool) -> None:
        """What has been read. bounded: what is there now is all that will be."""
        self._read = dict(names)
        self._newest = max(names.values(), default=None)
        self._least = min(names.values(), default=_NEVER)
        self._planned = None
        self._all = dict(self._folder.look()) if bounded else None
        self._sorted = None

    def plan(self, start: int, most: int | None = None) -> NewFiles:
        """What comes after so many names. most: bytes that are enough, once there is one file."""
        self.settle(start)
        there = self._folder.look() if self._all is None else self._all
        if there is not self._sorted:
            self._waiting = sorted((modified, name) for name, modified in there.items() if name not in self._read)
            self._sorted = there
        first = bisect.bisect_left(self._waiting, (self._oldest(), ""))
        new = self._waiting[first : None if self._limit is None else first + self._limit]
        if most is not None and len(new) > 1:
            new = new[: self._enough([name for _, name in new], most)]
        gone: list[str] = []
        if new and (after := max(new[-1][0], self._newest or 0) - self._max_age) > self._least:
            gone = [name for name, modified in self._read.items() if modified < after]
        self._planned = NewFiles(start + len(new), {name: modified for modified, name in new}, gone, len(self._waiting) - first - len(new))
        return self._planned

    def _enough(self, names: list[str], most: int) -> int:
        total = 0
        for count, name in enumerate(names):
            total += line_splits.length(os.path.join(self._folder.path, name))  # one that is gone meanwhile: whoever reads it says so
            if total > most:
                return max(1, count)
        return len(names)

    def settle(self, end: int) -> None:
        planned = self._planned
        if planned is None or planned.end != end or not planned.names:
            return
        self._read.update(planned.names)
        for name in planned.gone:
            del self._read[name]
        self._waiting = [one for one in self._waiting if one[1] not in planned.names]
        self._least = min(self._read.values()) if planned.gone else min(self._least, *planned.names.values())
        self._newest = max(*planned.names.values(), self._newest or 0)
        self._planned = None

    def _oldest(self) -> int:
        return -_NEVER if self._newest is None else self._newest - self._max_age

    def there(self) -> dict[str, int]:
        oldest = self._oldest()
        return {name: modified for name, modified in self._folder.look().items() if modified >= oldest}

    def read(self) -> set[str]:
        return {*self._read, *(self._planned.names if self._planned is not None else ())}
