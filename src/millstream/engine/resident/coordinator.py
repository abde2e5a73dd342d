"""The driver's end of a resident run: tasks that come, answer, and are lost. What counts is decided by `core/membership.Roster`; here are sockets and threads.

Rules
1. A loss is a connection that closes, or a task of which nothing was heard for `SILENCE`. Spark puts another process on the seat, and says nothing. Time in
   which the driver itself did not run is no silence.
2. A Spark job that ends although the run goes on is begun again for the seats that it had: Spark gives a job up when one of its tasks has failed
   `spark.task.maxFailures` times, and a job of months will get there.
3. Losses are nobody's fault: they have an error of their own. Too many of them in a short time end the run; so do tasks that do not come within `PATIENCE`,
   or do not come again within `RETURN`. A task that could not start counts as a loss: one hiccup ends nothing.
4. Tasks are replaced one by one every few hours: what user code leaks goes with the process. The old task ends well, and its seat gets a job of its own, so
   that Spark counts no failure. If the old one ends badly all the same, Spark fills its seat in the old job, too: whoever comes of a job that has lost the
   seat is sent home.
5. Whoever leaves a seat, for whatever reason, leaves it in `_vacate`: what was given to that task besides epochs is then known to be gone.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from millstream.core.membership import LOSS_WINDOW, MOST_LOSSES, Attempt, Roster, Seated
from millstream.engine.compaction_orders import FoldOrder
from millstream.engine.contracts import Stopped
from millstream.engine.resident import messages, wire
from millstream.engine.resident.exchange import read_all
from millstream.engine.resident.messages import Beat, Ending, Generation, SeatFailure, SeatHello, SeatReceipts, decode, encode
from millstream.errors import BY_NAME, ClusterError, MillstreamError, TaskLost
from millstream.network import written
from millstream.state.heartbeat import RunMode, TaskSign

PATIENCE = 60.0  # seconds for tasks to come
RETURN = 300.0  # seconds for a lost one to come again: of a host that is gone, Spark hears after its spark.network.timeout, which is 120
SILENCE = 45.0  # seconds without a sign of life
RECYCLE_EVERY = 6 * 3600.0  # seconds

_STRANGERS = 256  # connections that have not shaken hands yet
_LOOK = 0.5  # seconds
_NOTICED = 2.0  # seconds within which the end of a process is noticed here

_log = logging.getLogger("millstream.resident")


class _Member:
    def __init__(self, who: Seated, connection: wire.SeatLink) -> None:
        self.who = who
        self.connection = connection
        self.heard = time.monotonic()
        self.since = self.heard
        self.beat = Beat()
        self.why = ""  # it was hung up on


class Cluster:
    """The tasks of a run. begin: runs a Spark job (its number) with a task for each of the seats given, until it ends. fold: takes in what a task has
    folded; gone: hears of shards whose task has left."""

    def __init__(
        self,
        seats: int,
        shards: int,
        host: str,
        cookie: bytes,
        *,
        begin: Callable[[int, Sequence[int]], None],
        tls: ssl.SSLContext | None = None,
        fold: Callable[[FoldOrder], None] = lambda order: None,
        gone: Callable[..., None] = lambda *shards: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._shards, self._cookie, self._tls, self._begin = shards, cookie, tls, begin
        self._fold, self._gone, self._say = fold, gone, say
        self._roster = Roster(seats)
        self._changed = threading.Condition()
        self._members: dict[int, _Member] = {}
        self._next_id = 0
        self._failure: tuple[Attempt, Seated, SeatFailure] | None = None
        self._refused: tuple[Attempt, SeatReceipts] | None = None
        self._strangers = threading.Semaphore(_STRANGERS)
        self._could_not_start: tuple[float, str] | None = None  # when, and why: the last one
        self._jobs = 0
        self._job_of: dict[int, int] = {}  # by seat: the number of the job that fills it
        self._last_job = 0
        self._ended_jobs: list[tuple[float, str]] = []
        self._is_ending = False
        self._recycled = time.monotonic()
        self._listener = wire.listen(host)
        self.address = written(host, self._listener.getsockname()[1])

    def start(self) -> None:
        """Has tasks come."""
        for target in (self._accept, self._watch):
            threading.Thread(target=target, name=f"millstream-cluster{target.__name__}", daemon=True).start()
        self._fill(range(self._roster.seats))

    def _fill(self, seats: Iterable[int]) -> None:
        """A job for some seats, as long as the run lasts, or until others fill all of them."""
        with self._changed:
            self._last_job += 1
            self._job_of.update(dict.fromkeys(seats, self._last_job))
            threading.Thread(target=self._keep_job, args=(self._last_job,), name="millstream-cluster-job", daemon=True).start()

    # --- what an epoch does

    def gather(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Waits until all seats are filled. Raises ClusterError; or Stopped, if somebody says stop meanwhile."""
        began = said = time.monotonic()
        with self._changed:
            while not self._roster.is_complete:
                self._check()
                if stopped():
                    raise Stopped("stopped while resident tasks were waited for; this epoch runs at the next start")
                now = time.monotonic()
                if now - began > (RETURN if self._roster.generation else PATIENCE):
                    raise ClusterError(self._who_is_missing(now - began))
                if now - said > 5.0:
                    said = now
                    self._say(f"waiting for tasks {_list(self._roster.missing)} of {self._roster.seats}")
                self._changed.wait(1.0)

    def run(self, order: Callable[[int], Sequence[Any]]) -> list[SeatReceipts]:
        """One attempt at an epoch. order: what each seat is told. Raises TaskLost, or what a task failed with."""
        with self._changed:
            self._check()
            if not self._roster.is_complete:
                raise TaskLost(f"tasks {_list(self._roster.missing)} are not there")
            attempt = self._roster.begin()
            self._failure = self._refused = None
            members = [self._members[seat] for seat in range(self._roster.seats)]
        for member in members:
            try:
                member.connection.send(messages.ORDER, order(member.who.seat), attempt)
            except OSError as error:
                self._lose(member, str(error))
        return self._answers(attempt)

    def _answers(self, attempt: Attempt) -> list[SeatReceipts]:
        with self._changed:
            while True:
                if self._refused is not None:  # one receipt that says no is enough
                    self._give_up(attempt)
                    return [self._refused[1]]
                if self._failure is not None:
                    self._give_up(attempt)
                    raise self._failed(*self._failure)
                if not self._roster.is_current(attempt):
                    self._give_up(attempt)
                    raise TaskLost(f"a task was lost: {'; '.join(self._roster.last_losses) or 'its seat was taken over'}")
                answers = self._roster.answers
                if answers is not None:
                    return answers
                self._changed.wait(1.0)

    def _failed(self, attempt: Attempt, who: Seated, failure: SeatFailure) -> Exception:
        if failure.lost:
            why = f"task {who.seat} on {who.host} cannot reach tasks {_list(failure.lost)}: {failure.text}"
            until = (
                time.monotonic() + _NOTICED
            )  # most likely it has died: a peer may hear of it before we do, and a try with it would be lost, too
            while self._roster.is_current(attempt) and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            if self._roster.is_current(attempt):
                self._roster.renew(time.monotonic(), why, failure.lost)
                self._announce()
            return TaskLost(why)
        known = BY_NAME.get(failure.error)
        if known is not None:
            return known(failure.text)
        return UnexpectedFailure(
            f"task {who.seat} on {who.host} failed with something that Millstream does not expect: {failure.error}\n{failure.text}"
        )

    def send_fold(self, order: FoldOrder) -> bool:
        """Gives a fold to the task that owns its shard."""
        with self._changed:
            member = self._members.get(order.shard % self._roster.seats)
        try:
            if member is not None:
                member.connection.send(messages.FOLD, [encode(order)])
                return True
        except OSError:
            pass
        return False

    def recycle(self) -> None:
        """Between two epochs: has the oldest task replaced, if it is time (rule 4)."""
        now = time.monotonic()
        if now - self._recycled < RECYCLE_EVERY / self._roster.seats:
            return
        self._recycled = now
        with self._changed:
            oldest = min(self._members.values(), key=lambda member: member.since, default=None)
            if oldest is None:
                return
            seat = oldest.who.seat
            self._roster.leave(oldest.who)
            self._vacate(oldest)
            self._fill([seat])
        self._end_member(oldest, recycle=True)

    def stop(self) -> None:
        """Ends all tasks."""
        with self._changed:
            self._is_ending = True
            members = list(self._members.values())
            self._changed.notify_all()
        for member in members:
            self._end_member(member, recycle=False)
        wire.stop_listening(self._listener)

    def status(self) -> RunMode:
        """Who is there, and what they are at."""
        with self._changed:
            roster = self._roster
            tasks = [
                TaskSign(
                    seat=seat,
                    host=member.who.host,
                    pid=member.who.pid,
                    shards=list(range(seat, self._shards, roster.seats)),
                    memory=member.beat.rss,
                    at=f"computation {member.beat.computation!r}, shard {member.beat.shard}, key {member.beat.key}"
                    if member.beat.millis > 1000
                    else "",
                    millis=member.beat.millis,
                )
                for seat, member in sorted(self._members.items())
            ]
            missing = [] if self._is_ending else roster.missing
            return RunMode("resident", generation=roster.generation, losses=roster.losses, tasks=tasks, missing=missing, jobs=self._jobs)

    # --- below: with the lock

    def _check(self) -> None:
        now = time.monotonic()
        losses = self._roster.too_many(now)
        recent = [text for at, text in self._ended_jobs if now - at < LOSS_WINDOW]
        is_given_up = len(recent) > MOST_LOSSES or (len(recent) > 1 and not self._roster.generation)
        if (losses or is_given_up) and self._could_not_start is not None and now - self._could_not_start[0] < LOSS_WINDOW:
            raise ClusterError(
                f"a resident task cannot start: {self._could_not_start[1]}. What the pipeline needs must be importable where Spark's workers run: install it "
                f"there, or ship it (--py-files, spark.submit.pyFiles)."
            )
        if losses:
            raise ClusterError(
                f"tasks were lost {len(losses)} times within {LOSS_WINDOW:.0f} seconds: {'; '.join(losses)}. Look into the workers' own logs: a process that "
                f"is killed for its memory, or a library that ends it, looks like this. What was committed stands; run again when the cause is gone."
            )
        if is_given_up:
            raise ClusterError(f"Spark has ended the job of the resident tasks {len(recent)} times. The last time it said: {recent[-1]}")

    def _who_is_missing(self, seconds: float) -> str:
        lost = f" Lost before: {'; '.join(self._roster.last_losses)}." if self._roster.last_losses else ""
        return (
            f"{len(self._roster.missing)} of {self._roster.seats} resident tasks have not come within {seconds:.0f} seconds: {_list(self._roster.missing)}. "
            f"Each needs a slot of its own for as long as the run lasts: see that the session has {self._roster.seats} that nobody else holds, or say "
            f"tasks=.{lost}"
        )

    def _give_up(self, attempt: Attempt) -> None:
        for member in list(self._members.values()):
            try:
                member.connection.send(messages.GIVE_UP, (), attempt)
            except OSError:
                pass

    def _announce(self) -> None:
        """A generation has begun: tells everybody who sits where."""
        members = self._roster.members
        for member in list(self._members.values()):
            try:
                member.connection.send(messages.GENERATION, [encode(Generation(self._roster.generation, members))])
            except OSError as error:
                self._forget(member, str(error))

    def _forget(self, member: _Member, why: str) -> None:
        why = member.why or why
        if self._is_ending:
            self._roster.leave(member.who)
            self._vacate(member)
        elif self._roster.lost(member.who, time.monotonic(), why):
            self._vacate(member)
            _log.info("task %d on %s (process %d) is lost: %s", member.who.seat, member.who.host, member.who.pid, why)
        member.connection.close()
        self._changed.notify_all()

    def _vacate(self, member: _Member) -> None:
        """Rule 5."""
        if self._members.get(member.who.seat) is member:
            del self._members[member.who.seat]
            self._gone(*range(member.who.seat, self._shards, self._roster.seats))

    # --- threads

    def _lose(self, member: _Member, why: str) -> None:
        with self._changed:
            self._forget(member, why)

    def _watch(self) -> None:
        """Rule 1. Whoever is silent is hung up on without the lock: somebody may have it who is just telling him something, and waits."""
        looked = time.monotonic()
        while not self._is_ending:
            time.sleep(_LOOK)
            now = time.monotonic()
            late, looked = now - looked - _LOOK, now
            for member in list(self._members.values()):
                if late > _LOOK:
                    member.heard = min(now, member.heard + late)
                elif now - member.heard > SILENCE:
                    member.why = f"nothing was heard of it for {now - member.heard:.0f} seconds"
                    member.connection.close()
                    self._lose(member, "")

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if not self._strangers.acquire(blocking=False):
                sock.close()  # a crowd that does not shake hands
                continue
            threading.Thread(target=self._hear, args=(sock,), name="millstream-seat", daemon=True).start()

    def _hear(self, sock: socket.socket) -> None:
        try:
            connection = wire.accept(sock, self._cookie, self._tls)
            frame = connection.receive()
        except (OSError, MillstreamError) as error:
            _log.info("somebody who is no task of this run was turned away: %s", error)
            return
        finally:
            self._strangers.release()
        try:
            member = None if frame is None else self._first(frame, connection)
        except Exception as error:
            _log.warning("somebody who said what no task says was turned away: %s: %s", type(error).__name__, error)
            member = None
        if member is None:
            connection.close()
            return
        read_all(connection, lambda frame: self._got(member, frame))
        self._lose(member, "its connection was closed")

    def _first(self, frame: wire.ResidentFrame, connection: wire.SeatLink) -> _Member | None:
        """What somebody says first: that it is there, or that it cannot be."""
        if frame.kind == messages.FAILED:
            failure = decode(frame.body, SeatFailure)
            with self._changed:
                now, why = time.monotonic(), f"{failure.error}: {failure.text}"
                self._could_not_start = (now, why)
                self._roster.could_not_start(failure.seat, now, why)
                self._changed.notify_all()
        return self._seated(decode(frame.body, SeatHello), connection) if frame.kind == messages.HELLO else None

    def _seated(self, hello: SeatHello, connection: wire.SeatLink) -> _Member | None:
        with self._changed:
            if self._is_ending or self._job_of.get(hello.seat, hello.job) != hello.job:
                connection.send(messages.END, [encode(Ending())])
                return None
            self._next_id += 1
            who = Seated(hello.seat, self._next_id, hello.host, hello.pid, hello.address)
            before = self._members.get(who.seat)
            self._roster.hello(who)
            if before is not None:
                self._vacate(before)
                before.connection.close()
            member = self._members[who.seat] = _Member(who, connection)
            if self._roster.is_complete:
                self._announce()
            self._changed.notify_all()
            return member

    def _got(self, member: _Member, frame: wire.ResidentFrame) -> None:
        member.heard = time.monotonic()
        if frame.kind == messages.BEAT:
            member.beat = decode(frame.body, Beat)
        elif frame.kind == messages.FOLDED:
            order = decode(frame.body, FoldOrder)
            with self._changed:
                if self._members.get(member.who.seat) is member:  # else it was given up, and what it made may be collected already
                    self._fold(order)
        elif frame.kind == messages.RECEIPTS:
            found = decode(frame.body, SeatReceipts)
            with self._changed:
                if self._roster.answer(member.who, frame.attempt, found):
                    if any(receipt.failure for receipt in found.receipts):
                        self._refused = (frame.attempt, found)
                    self._changed.notify_all()
        elif frame.kind == messages.FAILED:
            with self._changed:
                if self._roster.is_current(frame.attempt) and self._members.get(member.who.seat) is member:
                    self._failure = (frame.attempt, member.who, decode(frame.body, SeatFailure))
                    self._changed.notify_all()

    def _keep_job(self, job: int) -> None:
        """Rule 2."""
        while not self._is_ending and (seats := self._seats_of(job)):
            self._jobs += 1
            try:
                self._begin(job, seats)
                why = "it ended"
            except Exception as error:
                why = str(error)
            with self._changed:
                if self._is_ending or not self._seats_of(job):
                    return
                self._ended_jobs.append((time.monotonic(), why))
                del self._ended_jobs[: -MOST_LOSSES - 1]
                self._changed.notify_all()
            _log.info("the job of the resident tasks has ended and is begun again: %s", why.splitlines()[0] if why else "")
            time.sleep(0.2)

    def _seats_of(self, job: int) -> list[int]:
        with self._changed:
            return sorted(seat for seat, of in self._job_of.items() if of == job)

    def _end_member(self, member: _Member, recycle: bool) -> None:
        try:
            member.connection.send(messages.END, [encode(Ending(recycle))])
        except OSError:
            pass


class UnexpectedFailure(ClusterError):
    """A task failed with an error that is none of Millstream's: the epoch is tried again some times, as Spark would."""


def _list(seats: Sequence[int]) -> str:
    return ", ".join(map(str, seats))
