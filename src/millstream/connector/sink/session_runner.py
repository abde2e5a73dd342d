"""What one worker's session does in its thread: bytes in, the output called, bytes to send out.

Everything that may block is here, and each worker has a thread, so that a slow disk or database stops nobody but the worker whose bytes it holds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from millstream.connector.sink.console import SinkConsole
from millstream.connector.sink.outputs.base import Output
from millstream.connector.sink.protocol import effects as fx
from millstream.connector.sink.protocol.session import SinkSession, SinkState
from millstream.connector.wire.codec import encode
from millstream.connector.wire.decoder import Decoder
from millstream.connector.wire.messages import Ack, Error, Frame, Message, Notify, Vote
from millstream.errors import MillstreamError, RemoteProtocolError

log = logging.getLogger("millstream.connector")


class Peer(Protocol):
    """A connection, as far as it concerns its runner. Once it is cut off, what is not decoded is dropped."""

    is_cut: bool

    def part(self, last_words: Frame) -> None:
        """What the peer is told when the connection is closed."""


class SinkStats(msgspec.Struct):
    """How a sink server is doing, since it was started. A counter moves when the thing has happened: a commit is counted when the output has carried it
    out, a vote when it is about to be sent. Each runner counts for itself; the server adds them up."""

    #: Connections that were accepted, whoever it was.
    connections: int = 0
    #: Workers that are connected now.
    sessions: int = 0
    #: Connections that were ended with ERROR.
    errors: int = 0
    #: Messages with bytes, and the bytes of them that outputs took. What was dropped, as a repetition or behind a gap, counts as a message only.
    messages: int = 0
    bytes: int = 0
    #: Of these messages, those that came while a transaction was open.
    messages_between_phases: int = 0
    votes_yes: int = 0
    votes_no: int = 0
    commits: int = 0
    bytes_committed: int = 0
    rollbacks: int = 0
    #: Streams that were announced once more on the same connection.
    repeated_notifies: int = 0
    #: Phase two of the transaction that was committed last, said again.
    repeated_commits: int = 0
    #: Phase two of transactions that are not known. Who rolls back twice is counted here as well: what was rolled back is forgotten.
    unknown_phase_twos: int = 0
    #: Ends of streams that were acknowledged.
    ends: int = 0
    #: Outputs that were put aside because their worker has left, and how often a worker said what another had said before it.
    archived: int = 0
    repeated_leavings: int = 0

    def add(self, other: SinkStats) -> None:
        """Adds what another has counted."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class SessionRunner:
    """A session, the decoder of its bytes, and the output of its worker.

    `leave` puts aside the outputs of workers that have left, and returns then. `console` is told what is committed.
    """

    def __init__(
        self,
        session: SinkSession,
        decoder: Decoder,
        output: Output,
        connection: Peer,
        leave: Callable[[tuple[str, ...]], None],
        console: SinkConsole | None = None,
    ) -> None:
        self.session, self.decoder, self.output, self.connection = session, decoder, output, connection
        self._leave, self._console = leave, console
        self._end = 0  # of what is committed
        self._out = bytearray()
        self.is_over = False
        self.stats = SinkStats()

    def begin(self, effects: list[fx.SinkEffect]) -> bytearray:
        """Carries out what HELLO came to, and goes on with what came behind HELLO. Returns what is to be sent."""
        self._carry_out(effects)
        return self.feed(b"")

    def feed(self, data: bytes | memoryview) -> bytearray:
        """Takes what came from the peer, and returns what is to be sent to it."""
        self.decoder.receive(data)
        while not (self.is_over or self.connection.is_cut):
            try:
                message = self.decoder.next()
            except RemoteProtocolError as error:
                self._carry_out(self.session.failed(str(error)))
                break
            if message is None:
                break
            self._count(message)
            self._carry_out(self.session.receive(message))
        out, self._out = self._out, bytearray()
        return out

    def _count(self, message: Frame) -> None:
        state = self.session.state
        if isinstance(message, Message):
            self.stats.messages += self.decoder.frames
            if state is SinkState.PREPARED:
                self.stats.messages_between_phases += self.decoder.frames
        elif isinstance(message, Notify) and state in (SinkState.READY, SinkState.PREPARED):
            self.stats.repeated_notifies += 1

    def _carry_out(self, effects: list[fx.SinkEffect]) -> None:
        for effect in effects:
            try:
                more = self._one(effect)
            except Exception as error:
                log.error(
                    "the output of worker %r failed at %s: %s",
                    self.session.worker,
                    type(effect).__name__,
                    error,
                    exc_info=not isinstance(error, MillstreamError),
                )
                self._carry_out(self.session.failed(f"the sink failed at {type(effect).__name__}: {error}"))
                return
            self._carry_out(more)

    def _one(self, effect: fx.SinkEffect) -> list[fx.SinkEffect]:
        match effect:
            case fx.Append(data):
                self.output.append(data)
                self.stats.bytes += len(data)
            case fx.Send(Error() as words):
                self.connection.part(words)
            case fx.Send(frame):
                if isinstance(frame, Vote):
                    self.stats.votes_yes += frame.commit
                    self.stats.votes_no += not frame.commit
                self.stats.ends += isinstance(frame, Ack)
                self._out += encode(frame)
            case fx.Close():
                self.is_over = True
            case fx.Recover():
                found = self.output.recover()
                self._end = found.committed
                return self.session.answer(found)
            case fx.Compare(offset, data):
                return self.session.answer(self.output.same(offset, data))
            case fx.Begin(offset):
                self.output.begin(offset)
            case fx.BeginNext(offset):
                return self.session.answer(self.output.begin_next(offset))
            case fx.Prepare(txn, start, end):
                self.output.prepare(txn, start, end)
            case fx.Veto(txn, why):
                log.warning("transaction %r is voted down: %s", txn, why)
                self.output.veto(txn, why)
            case fx.Commit(txn, end):
                self.output.commit(txn, end)
                self.stats.commits += 1
                self.stats.bytes_committed += end - self._end
                if self._console is not None:
                    self._console.committed(str(self.session.worker), end - self._end)
                self._end = end
            case fx.Rollback(txn, committed):
                self.output.rollback(txn, committed)
                self.stats.rollbacks += 1
            case fx.Ignored(txn, commit, known):
                self.stats.repeated_commits += known
                self.stats.unknown_phase_twos += not known
                if not known:
                    level = logging.WARNING if commit else logging.INFO  # to roll back twice is common, and harmless
                    outcome = "commit" if commit else "rollback"
                    log.log(
                        level, "worker %r says %s to transaction %r, which is not known here: ignored", self.session.worker, outcome, txn
                    )
            case fx.Seal(fence):
                self.output.seal(fence)
            case fx.Archive(workers):
                self._leave(workers)
        return []
