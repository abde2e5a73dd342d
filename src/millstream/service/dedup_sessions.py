"""Sessions: every write counts once, however often it is sent.

A client numbers its writes to a partition: 1, 2, 3. The number travels in the log with what the write did, and with its answer.

Rules
1. A write whose number is the session's last + 1 is done. One that was done before gets its first answer (`again`), also if that was a refusal, also
   after a crash, and from another node. One that is too early waits for its predecessor.
2. An answer is kept until the client says that it has it (`done`), or `KEPT` younger ones are there, or there is no room: answers of a session have
   `_KEPT_BYTES`, those of all sessions of the partition `ROOM`, and those of the session that was not used for the longest time go first. A retry after that
   is refused: what it was answered cannot be told, and it is never done twice.
3. A session that was not used for the horizon (by the partition's clock) is forgotten. A session's name begins with the time at which it began, and
   the partition remembers the youngest that it has forgotten: an unknown session that is not younger than that is refused. So a retry that comes after
   the horizon cannot pass for a new session, and no two clocks have to agree for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from millstream.errors import BY_REASON, Busy, Conflict, RefusedRequest, ServiceError, SessionExpired
from millstream.service.messages import MEMORY, SESSION, Answer, Change

HORIZON = 10 * 60 * 1000  # milliseconds
KEPT = 128
AHEAD = 128  # how far a write may be ahead of its predecessor
_KEPT_BYTES = 256 << 10
ROOM = 16 << 20
_MOST = 100_000
MOST_VERSIONS = 1024  # of a conflict: they travel in metadata, and are kept with the session
_FUTURE = 24 * 3600 * 1000  # milliseconds that a client's clock may be ahead
FORGOTTEN = MEMORY + b"forgotten"


class CachedReply(msgspec.Struct, array_like=True, gc=False):
    """An answer that may be asked for again."""

    seq: int
    lsn: int
    result: bytes = b""
    reason: str = ""
    text: str = ""
    versions: list[int] = []

    @property
    def size(self) -> int:
        return 64 + len(self.result) + len(self.text) + 8 * len(self.versions)


class SessionState(msgspec.Struct, array_like=True):
    """What one session has written here: its last seq, when it was used, and the answers that may be asked for again."""

    last: int = 0
    used: int = 0
    answers: list[CachedReply] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SessionState).decode


class DedupSessions:
    def __init__(self, entries: Iterable[tuple[bytes, bytes]] = (), forgotten: int = 0, horizon: int = HORIZON) -> None:
        """entries: those of the store that begin with S."""
        known = [(name[1:], _decode(raw)) for name, raw in entries]
        self._known = dict(sorted(known, key=lambda one: one[1].used))  # the one that was not used for the longest time comes first
        self._forgotten = forgotten
        self._horizon = horizon
        self._touched: dict[bytes, SessionState] = {}
        self._kept = {  # bytes of answers by session; in the same order
            session: sum(answer.size for answer in found.answers) for session, found in self._known.items() if found.answers
        }
        #: Bytes of all answers that are kept.
        self.kept_bytes = sum(self._kept.values())
        self._make_room()

    def __len__(self) -> int:
        return len(self._known)

    def last(self, session: bytes) -> int:
        """The last seq that was done; 0 for a session that is not known."""
        found = self._known.get(session)
        return 0 if found is None else found.last

    def check_new(self, session: bytes) -> None:
        """Rule 3, for a session that is not known: whether it may begin."""
        if began(session) <= self._forgotten:
            raise SessionExpired(
                "this partition has forgotten sessions as old as this one: whether the write was done cannot be told, and it was not done now. "
                "Begin a new session.",
                self._forgotten,
            )
        if len(self._known) >= _MOST:
            raise Busy(f"{_MOST:,} sessions have written here within the horizon; use fewer clients, or keep them", 1.0)

    def check_time(self, session: bytes, wall: int) -> None:
        """A session of the far future is refused: once forgotten (rule 3) it would shut out all that began before."""
        if session not in self._known and began(session) > max(wall + _FUTURE, self._forgotten + 1):
            raise RefusedRequest(
                f"a session's name begins with the time in milliseconds, and this one's is {began(session) - wall:,} ms ahead of the node's clock: "
                f"set the clock, or begin the session with {wall}"
            )

    def check(self, session: bytes, seq: int) -> Answer | None:
        """Rule 1, for a write that is not too early: None, it is to be done now; or its first answer, which is raised if it was a refusal."""
        found = self._known.get(session)
        if found is None:
            self.check_new(session)
        last = 0 if found is None else found.last
        if found is None or seq > last:
            if seq > last + 1:  # its predecessor was refused meanwhile
                raise Busy(f"write {seq} of this session comes before write {last + 1}", 0.02)
            return None
        for kept in found.answers:
            if kept.seq == seq:
                if kept.reason:
                    kind = BY_REASON.get(kept.reason, RefusedRequest)
                    refusal = Conflict(kept.text, kept.versions) if kind is Conflict else kind(kept.text)
                    refusal.counted = True
                    raise refusal
                return Answer(lsn=kept.lsn, result=kept.result, again=True)
        what = f"write {seq} of this session was answered, and its answer is not kept any more"
        raise SessionExpired(f"{what}: it was not done now", self._forgotten)

    def note(self, session: bytes, seq: int, done: int, time: int, answer: Answer | ServiceError, lsn: int) -> None:
        found = self._known.pop(session, None)
        if found is None:
            found = SessionState()
        self._known[session] = found
        found.last, found.used = seq, time
        answers = found.answers
        size = self._kept.pop(session, 0)
        self.kept_bytes -= size
        if done and answers and answers[0].seq <= done:
            answers = found.answers = [kept for kept in answers if kept.seq > done]
            size = sum(kept.size for kept in answers)
        if isinstance(answer, ServiceError):
            answer.counted = True
            versions = answer.versions[:MOST_VERSIONS] if isinstance(answer, Conflict) else []
            answers.append(CachedReply(seq, lsn, b"", answer.reason, str(answer)[:4096], versions))
        else:
            answers.append(CachedReply(seq, lsn, answer.result))
        size += answers[-1].size
        while len(answers) > KEPT or (size > _KEPT_BYTES and len(answers) > 1):
            size -= answers.pop(0).size
        self._kept[session] = size
        self.kept_bytes += size
        self._touched[session] = found
        self._make_room()

    def changes(self, now: int) -> Iterator[Change]:
        """What a turn changed here, as entries; and rule 3."""
        for session, found in self._touched.items():
            yield SESSION + session, _encode(found)
        self._touched = {}
        forgot = False
        while self._known:
            oldest = next(iter(self._known))
            if self._known[oldest].used + self._horizon >= now:
                break
            del self._known[oldest]
            self.kept_bytes -= self._kept.pop(oldest, 0)
            self._forgotten, forgot = max(self._forgotten, began(oldest)), True
            yield SESSION + oldest, None
        if forgot:
            yield FORGOTTEN, self._forgotten.to_bytes(8, "big")

    def _make_room(self) -> None:
        """Rule 2, for all sessions together."""
        while self.kept_bytes > ROOM:
            session = next(iter(self._kept))
            self.kept_bytes -= self._kept.pop(session)
            self._known[session].answers = []
            self._touched[session] = self._known[session]


def began(session: bytes) -> int:
    return int.from_bytes(session[:8], "big")


def check_session_name(session: bytes, seq: int) -> None:
    if len(session) != 16:
        form = "when it began in milliseconds (8 bytes, big-endian) and 8 random ones"
        raise RefusedRequest(f"a session has 16 bytes: {form}. This one has {len(session)}.")
    if seq < 1:
        raise RefusedRequest("the writes of a session to a partition are numbered from 1 on (header.seq)")
