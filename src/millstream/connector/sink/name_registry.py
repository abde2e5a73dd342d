"""Who has a worker's name at a sink server, and who has left it.

Rules
1. A name has one holder and one line before it. Whoever comes is put at its end: a connection that has said HELLO, or a leaving that was said with
   WORKERS_LEFT. Each has its turn when all before it have come to rest.
2. Whoever comes cuts off the connection that has the name, or is in line for it, and its unread input is dropped; to refuse the new one would let a
   half-open socket keep a worker out for ever. Only who comes with a lower fence is refused, and cuts nobody off.
3. So a leaving is of the life that has the name when the word arrives, connected or not. Who says HELLO later is a new life: its turn comes when the
   old output is put aside, and its fence begins at 0.
4. Nothing behind WORKERS_LEFT is looked at before the outputs are put aside, durably: an answer to anything behind it says that it is done. Who gets
   none cannot know, and says it again.
5. Each of the other workers may say that one has left. A further word is a repetition, and waits with the first, if its speaker has been here since
   before the first and has not spoken of that name since. Any other is new, and of the present life.
6. Who was cut off before its word arrived has said nothing: of two that say it of each other one stays. Nobody waits in a circle: who is waited for
   is cut off, and whatever it waits for itself was said before.
7. What cannot be put aside is not forgotten silently: all who said it are told, and the word counts as never said.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millstream.connector.sink.connection import Connection
from millstream.connector.sink.protocol.session import too_low
from millstream.connector.wire.messages import Error, fenced
from millstream.errors import RemoteProtocolError, SinkError

#: So many leavings are remembered, to know their repetitions.
REMEMBERED = 10_000
_HANGS = 1.0  # seconds after which a connection that was cut is not left the time to say its last words


class _Turn:
    def __init__(self, before: threading.Event | None, ahead: Connection | None) -> None:
        self._before, self._ahead = before, ahead
        self.rest = threading.Event()
        self.failure: Exception | None = None  # of a leaving

    def wait(self) -> None:
        while self._before is not None and not self._before.wait(_HANGS):
            if self._ahead is not None:
                self._ahead.cut(None, at_once=True)  # it may hang in sending


@dataclass(eq=False)
class _Line:
    """Those who want one name. holder: the last connection to come. leaving: the last leaving, if it is not done."""

    holder: Connection | None = None
    fence: int = 0
    last: _Turn | None = None
    leaving: _Turn | None = None
    users: int = 0

    def join(self, holder: Connection | None, why: str) -> _Turn:
        turn = _Turn(None if self.last is None else self.last.rest, self.holder)
        if self.holder is not None:
            self.holder.cut(Error(why))
        self.holder, self.last = holder, turn
        self.users += 1
        return turn


class Registration(NamedTuple):
    connection: Connection
    since: int


class NameRegistry:
    def __init__(self) -> None:
        self._lock = threading.Lock()  # of everything below
        self._lines: dict[str, _Line] = {}
        self._clock = itertools.count()
        self._left: OrderedDict[str, tuple[int, set[int]]] = OrderedDict()  # when it was said last, and by whom since, oldest first
        self.repeated = 0

    def __contains__(self, name: str) -> bool:
        return name in self._lines

    @contextlib.contextmanager
    def hold(self, name: str, connection: Connection, fence: int) -> Iterator[Registration]:
        """Holds a name, from when it is our turn. We may have been cut off by then."""
        with self._lock:
            line = self._lines.setdefault(name, _Line())
            if fence < line.fence:
                raise RemoteProtocolError(too_low(fence, line.fence))
            line.fence = fence
            turn = line.join(connection, fenced("another connection has this worker's name now"))
            place = Registration(connection, next(self._clock))
        try:
            turn.wait()
            yield place
        finally:
            self._ended(name, line, turn, connection)

    def _ended(self, name: str, line: _Line, turn: _Turn, holder: Connection | None) -> None:
        with self._lock:
            turn.rest.set()
            line.users -= 1
            if line.holder is holder:
                line.holder = None
            if line.leaving is turn:
                line.leaving = None
            if not line.users:
                del self._lines[name]

    # ---- leaving

    def leave(self, teller: Registration, names: Sequence[str], archive: Callable[[str], None]) -> None:
        """Rules 3 to 7: these have left. Returns when their outputs are put aside."""
        with self._lock:
            if teller.connection.is_cut:
                return
            said = [self._said(teller, name) for name in names]
        for name, line, turn in said:
            if line is not None and turn is not None:
                self._carry_out(name, line, turn, archive)
        for name, _, turn in said:
            if turn is not None:
                turn.rest.wait()
                if turn.failure is not None:
                    raise SinkError(f"the output of worker {name!r}, which has left, cannot be put aside: {turn.failure}")

    def _said(self, teller: Registration, name: str) -> tuple[str, _Line | None, _Turn | None]:
        """A word about a name: the line and turn of a new leaving, or the turn of the one that it repeats, if that is not done."""
        line = self._lines.get(name)
        said, speakers = self._left.get(name, (-1, set()))
        if teller.since < said and teller.since not in speakers:
            speakers.add(teller.since)
            self.repeated += 1
            return name, None, None if line is None else line.leaving
        self._left[name] = (next(self._clock), {teller.since})
        self._left.move_to_end(name)
        if len(self._left) > REMEMBERED:
            self._left.popitem(last=False)
        line = self._lines.setdefault(name, _Line())
        line.leaving = turn = line.join(None, fenced("this worker is said to have left"))
        line.fence = 0
        return name, line, turn

    def _carry_out(self, name: str, line: _Line, turn: _Turn, archive: Callable[[str], None]) -> None:
        try:
            turn.wait()
            archive(name)
        except Exception as error:
            turn.failure = error
            with self._lock:
                self._left.pop(name, None)
        finally:
            self._ended(name, line, turn, None)
