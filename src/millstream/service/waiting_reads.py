"""Reads that cannot be answered at once: they wait for a position, or for the log to confirm that no other node owns the partition.

Rules
1. A read that waits for a position is answered when the store has applied it.
2. Where another owner may have sealed the log, a read is confirmed before it is answered. One confirmation serves all that were read before it.
3. If the log says that another owner has sealed it, no read is answered any more. If it says nothing, the caller may ask again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from millstream.errors import Fenced, MillstreamError, NotReady, ServiceError
from millstream.service.dispatch import PendingCall
from millstream.service.logs.log_contract import Log
from millstream.service.messages import Answer, Descriptor, Request


@dataclass
class WaitingReads:
    """Those of one partition. read: reads what is committed. fail: told that another owner has sealed the log."""

    descriptor: Descriptor
    log: Log
    read: Callable[[Request], Answer]
    fail: Callable[[Fenced], None]
    crash: Callable[[str], None]
    behind: list[tuple[int, PendingCall]] = field(default_factory=list)  # and the position that each must see
    _unconfirmed: list[PendingCall] = field(default_factory=list)
    _confirming: asyncio.Task[None] | None = None
    confirmed_at: float = field(default_factory=time.monotonic)

    def applied(self, lsn: int) -> None:
        """Rule 1."""
        if self.behind:
            waiting = self.behind
            self.behind = [read for read in waiting if read[0] > lsn]
            for required, call in waiting:
                if required <= lsn:
                    self.answer(call)

    def answer(self, call: PendingCall) -> None:
        """Answers a read that sees what it must, after a confirmation if one is needed."""
        if self.log.alone:
            finish_calls([call], [self._read_safely(call.request)], self.crash)
            return
        self._unconfirmed.append(call)
        if self._confirming is None:
            self._confirming = asyncio.ensure_future(self._confirm())

    def _read_safely(self, request: Request) -> Answer | ServiceError:
        try:
            return self.read(request)
        except ServiceError as error:
            return error

    async def _confirm(self) -> None:
        """Rules 2 and 3."""
        try:
            while self._unconfirmed:
                calls, self._unconfirmed = self._unconfirmed, []
                answers = [self._read_safely(call.request) for call in calls]
                asked = time.monotonic()
                try:
                    await self.log.confirm(self.descriptor.term)
                except Fenced as error:
                    self._unconfirmed = calls + self._unconfirmed
                    self.fail(error)
                    return
                except Exception as error:
                    fail_calls(calls, NotReady(f"partition {self.descriptor.id}: a read cannot be confirmed: {error}"))
                    continue
                self.confirmed_at = asked
                finish_calls(calls, answers, self.crash)
        finally:
            self._confirming = None

    def take_behind(self) -> list[PendingCall]:
        calls, self.behind = [call for _, call in self.behind], []
        return calls

    def take_all(self) -> list[PendingCall]:
        calls, self._unconfirmed = self.take_behind() + self._unconfirmed, []
        return calls


def finish_calls(calls: Sequence[PendingCall], answers: Sequence[Answer | ServiceError], crash: Callable[[str], None]) -> None:
    for call, answer in zip(calls, answers, strict=True):
        crash("request.7-answered")
        future = call.future
        if not future.done():
            if isinstance(answer, Answer):
                future.set_result(answer)
            else:
                future.set_exception(answer)


def fail_calls(calls: Sequence[PendingCall], error: MillstreamError) -> None:
    for call in calls:
        if not call.future.done():
            call.future.set_exception(error)
