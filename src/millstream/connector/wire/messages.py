"""What the two ends of a connection can say, as values. How it looks in bytes is the business of `codec`.

Rules
1. A message is immutable, and equal to another with the same content.
2. Texts (versions, names, transaction ids) are `str`; what belongs to the user (a key, a payload) is `bytes` and never interpreted.
3. "Nothing yet" is `None`, here and everywhere above the codec. Only the wire knows it as 2^64-1.
4. The two-phase-commit messages travel inside a MESSAGE on stream 0. Above the codec they are messages like any other.
5. Who may send what, and when, is not said here but in the tables of the sessions.
6. HELLO has no place for a fence, so it stands at the end of the program's name: "millstream fence=7". No fence is fence 0.
7. ERROR carries a text for people. The texts that the other end has to understand are made and recognised here, by how they begin, and nowhere else.
   What is not recognised (any other mistake, a failure, another implementation's words) is `OTHER`.
"""

from __future__ import annotations

import re
from typing import get_args

import msgspec

#: The version in a HELLO, compared exactly: towards a source's server, and towards a sink.
SOURCE_VERSION = "0.0.1"
SINK_VERSION = "v0.0.1"

#: The streams of a sink: two-phase commit, and the application's bytes.
CONTROL_STREAM = 0
DATA_STREAM = 1

U16 = (1 << 16) - 1
U32 = (1 << 32) - 1
U64 = (1 << 64) - 1

#: What a stream or a worker may be called: 1 to so many bytes of UTF-8.
NAME_LIMIT = 200
_FENCE = re.compile(r" fence=([0-9]{1,18})$")

#: Why one end refuses the other; after one of the `FINAL` reasons it does not help to come back.
COOKIE, VERSION, FENCE, TLS, OTHER = "cookie", "version", "fence", "tls", "other"
FINAL = frozenset({COOKIE, VERSION, FENCE, TLS})
WRONG_COOKIE = "the cookie is wrong"


class Hello(msgspec.Struct, frozen=True):
    version: str
    cookie: str
    program: str
    instance: str


class Ok(msgspec.Struct, frozen=True):
    credits: int  # HELLO is accepted; so many messages may be sent before an ACK returns credits


class Error(msgspec.Struct, frozen=True):
    text: str


class Notify(msgspec.Struct, frozen=True):
    stream: int
    name: str
    point: int  # of reference, from which the stream goes on


class NotifyAck(msgspec.Struct, frozen=True):
    success: bool  # whether the stream is accepted
    stream: int
    point: int | None  # to go on from; None: nothing yet


class Message(msgspec.Struct, frozen=True):
    stream: int
    id: int  # to a sink, the offset of the payload's first byte in all that the worker ever put out
    payload: bytes
    event_time: int = 0
    key: bytes = b""


class Ack(msgspec.Struct, frozen=True):
    credits: int  # that come back
    points: tuple[tuple[int, int], ...] = ()  # per stream, up to which everything is safe


class Restart(msgspec.Struct, frozen=True):
    address: str = ""  # come back, at this HOST:PORT or (empty) at the same place


class Eos(msgspec.Struct, frozen=True):
    stream: int


class ListUncommitted(msgspec.Struct, frozen=True):
    rtag: int  # comes back in the answer


class ReplyUncommitted(msgspec.Struct, frozen=True):
    rtag: int
    txns: tuple[str, ...] = ()  # that wait for phase two


class Phase1(msgspec.Struct, frozen=True):
    txn: str
    ranges: tuple[tuple[int, int, int], ...]  # (stream, start, end): can you promise to commit these?


class Vote(msgspec.Struct, frozen=True):
    txn: str
    commit: bool  # a yes is a promise that outlives the sink's process


class Phase2(msgspec.Struct, frozen=True):
    txn: str
    commit: bool  # the outcome; never answered


class WorkersLeft(msgspec.Struct, frozen=True):
    rtag: int
    workers: tuple[str, ...]  # that are gone for good: their names may begin again at 0


TwoPhase = ListUncommitted | ReplyUncommitted | Phase1 | Vote | Phase2 | WorkersLeft
Frame = Hello | Ok | Error | Notify | NotifyAck | Message | Ack | Restart | Eos | TwoPhase

#: Every kind of message, in the order of its tag.
KINDS: tuple[type[Frame], ...] = get_args(Frame)


class Send(msgspec.Struct, frozen=True):
    frame: Frame  # an effect of every session: say this to the peer


class Close(msgspec.Struct, frozen=True):
    """Likewise: end the connection, when all that is to be sent is sent."""


def name_objection(what: str, name: str) -> str | None:
    """Why this cannot be the name of a stream or a worker; None if it can."""
    size = len(name.encode())
    if not size:
        return f"a {what} needs a name"
    return f"a {what}'s name of {size} bytes is too long; the limit is {NAME_LIMIT}" if size > NAME_LIMIT else None


def with_fence(program: str, fence: int) -> str:
    """Rule 6.

    >>> with_fence("millstream", 7), fence_of("millstream fence=7"), fence_of("Celsius to Fahrenheit")
    ('millstream fence=7', 7, 0)
    """
    return f"{program} fence={fence}" if fence else program


def fence_of(program: str) -> int:
    found = _FENCE.search(program)
    return 0 if found is None else int(found[1])


def wrong_version(said: str, spoken: str) -> str:
    return f"version {said!r} is not spoken here; {spoken!r} is"


def fenced(why: str) -> str:
    """Somebody else has the name now."""
    return f"fenced: {why}"


def reason(text: str) -> str:
    """What the text of an ERROR comes to.

    >>> reason(fenced("another connection has this worker's name now")), reason("the sink failed at Prepare: no fence is left")
    ('fence', 'other')
    """
    if text == WRONG_COOKIE:
        return COOKIE
    return VERSION if text.startswith("version ") else FENCE if text.startswith("fenced: ") else OTHER
