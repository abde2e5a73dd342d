"""The driver's end of a resident run: tasks that come, answer, and are lost. What counts is decided by `core/membership`; here are sockets and threads.

Rules
1. A loss is a connection that closes, or a task of which nothing was heard for `SILENCE`. Spark puts another process on the slot, and says nothing. Time in
   which the driver itself did not run is no silence.
2. Losses are nobody's fault: they have an error of their own. Too many of them in a short time end the run; so do tasks that do not come within `PATIENCE`,
   or do not come again within `RETURN`. A task that could not start counts as a loss: one hiccup ends nothing.
3. Tasks are replaced one by one every few hours: what user code leaks goes with the process. The old task ends well, and its slot gets a job of its own, so
   that Spark counts no failure. If the old one ends badly all the same, Spark fills its slot in the old job, too: whoever comes of a job that has lost the
   slot is sent home.
4. A job that ends although the run goes on is begun again for the slots that it had. Spark gives a job up when one of its tasks has failed
   `spark.task.maxFailures` times, and a job of months will get there.
5. Whoever leaves a slot, for whatever reason, leaves it in `_vacate`: what was given to that task besides epochs is then known to be gone.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream.core.membership import LOSS_WINDOW, MOST_LOSSES, Attempt, Member, Membership
from millstream.engine.compaction_orders import CompactionOrder, TaskCompaction
from millstream.engine.epochs import Stopped
from millstream.engine.resident import messages, wire
from millstream.engine.resident.exchange import read_all
from millstream.engine.resident.messages import Beat, Ending, Generation, TaskFailure, TaskHello, TaskReceipts, decode, encode
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


@dataclass(eq=False)
class _Member:
    who: Member
    connection: wire.TaskLink
    heard: float = field(default_factory=time.monotonic)
    since: float = field(default_factory=time.monotonic)
    beat: Beat = field(default_factory=Beat)
    why: str = ""  # it was hung up on


class Coordinator:
    """The tasks of a run. They come after `start`."""

    def __init__(
        self,
        slots: int,
        shards: int,
        host: str,
        cookie: bytes,
        *,
        tls: ssl.SSLContext | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._shards, self._cookie, self._tls, self._say = shards, cookie, tls, say
        self._membership = Membership(slots)
        self._changed = threading.Condition()
        self._members: dict[int, _Member] = {}
        self._next_id = 0
        self._failure: tuple[Attempt, Member, TaskFailure] | None = None
        self._refused: tuple[Attempt, TaskReceipts] | None = None
        self._strangers = threading.Semaphore(_STRANGERS)
        self._could_not_start: tuple[float, str] | None = None  # when, and why: the last one
        self._is_ending = False
        self._recycled = time.monotonic()
        self._listener = wire.listen(host)
        self.address = written(host, self._listener.getsockname()[1])

    def start(self, begin: Callable[[int, Sequence[int]], None], compaction: TaskCompaction) -> None:
        """Has tasks come. begin: runs a Spark job (its number) with a task for each of the slots given, until it ends. compaction: takes in what tasks have
        compacted, and hears of shards whose task has left."""
        self._compaction = compaction
        self._jobs = JobKeeper(begin, self._changed)
        wire.accept_all(self._listener, self._hear, "millstream-coordinator", lambda: not self._strangers.acquire(blocking=False))
        threading.Thread(target=self._watch, name="millstream-coordinator-watch", daemon=True).start()
        self._jobs.fill(range(self._membership.slots))

    # --- what an epoch does

    def gather(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Waits until all slots are filled. Raises ClusterError; or Stopped, if somebody says stop meanwhile."""
        began = said = time.monotonic()
        with self._changed:
            while not self._membership.is_complete:
                self._check()
                if stopped():
                    raise Stopped("stopped while resident tasks were waited for; this epoch runs at the next start")
                now = time.monotonic()
                if now - began > (RETURN if self._membership.generation else PATIENCE):
                    missing, slots, lost = self._membership.missing, self._membership.slots, "; ".join(self._membership.last_losses)
                    raise ClusterError(
                        f"{len(missing)} of {slots} resident tasks have not come within {now - began:.0f} seconds: {_list(missing)}. Each needs a slot of its "
                        f"own for as long as the run lasts: see that the session has {slots} that nobody else holds, or say tasks=."
                        + (f" Lost before: {lost}." if lost else "")
                    )
                if now - said > 5.0:
                    said = now
                    self._say(f"waiting for tasks {_list(self._membership.missing)} of {self._membership.slots}")
                self._changed.wait(1.0)

    def run(self, order: Callable[[int], Sequence[Any]]) -> list[TaskReceipts]:
        """One attempt at an epoch. order: what each slot is told. Raises TaskLost, or what a task failed with."""
        with self._changed:
            self._check()
            if not self._membership.is_complete:
                raise TaskLost(f"tasks {_list(self._membership.missing)} are not there")
            attempt = self._membership.begin()
            self._failure = self._refused = None
            members = [self._members[slot] for slot in range(self._membership.slots)]
        for member in members:
            try:
                member.connection.send(messages.ORDER, order(member.who.slot), attempt)
            except OSError as error:
                self._lose(member, str(error))
        return self._answers(attempt)

    def _answers(self, attempt: Attempt) -> list[TaskReceipts]:
        with self._changed:
            while True:
                if self._refused is not None:  # one receipt that says no is enough
                    self._give_up(attempt)
                    return [self._refused[1]]
                if self._failure is not None:
                    self._give_up(attempt)
                    raise self._failed(*self._failure)
                if not self._membership.is_current(attempt):
                    self._give_up(attempt)
                    raise TaskLost(f"a task was lost: {'; '.join(self._membership.last_losses) or 'its slot was taken over'}")
                if (answers := self._membership.answers) is not None:
                    return answers
                self._changed.wait(1.0)

    def _failed(self, attempt: Attempt, who: Member, failure: TaskFailure) -> Exception:
        if failure.lost:
            why = f"task {who.slot} on {who.host} cannot reach tasks {_list(failure.lost)}: {failure.text}"
            # most likely it has died: a peer may hear of it before we do, and a try with it would be lost
            if not self._changed.wait_for(lambda: not self._membership.is_current(attempt), _NOTICED):
                self._membership.renew(time.monotonic(), why, failure.lost)
                self._announce()
            return TaskLost(why)
        if failure.error in BY_NAME:
            return BY_NAME[failure.error](failure.text)
        return UnexpectedFailure(
            f"task {who.slot} on {who.host} failed with something that Millstream does not expect: {failure.error}\n{failure.text}"
        )

    def send_compaction(self, order: CompactionOrder) -> bool:
        with self._changed:
            member = self._members.get(order.shard % self._membership.slots)
        with contextlib.suppress(OSError):
            if member is not None:
                member.connection.send(messages.COMPACT, [encode(order)])
                return True
        return False

    def recycle(self) -> None:
        """Between two epochs: has the oldest task replaced, if it is time (rule 3)."""
        now = time.monotonic()
        if now - self._recycled < RECYCLE_EVERY / self._membership.slots:
            return
        self._recycled = now
        with self._changed:
            oldest = min(self._members.values(), key=lambda member: member.since, default=None)
            if oldest is None:
                return
            self._membership.leave(oldest.who)
            self._vacate(oldest)
            self._jobs.fill([oldest.who.slot])
        self._end_member(oldest, recycle=True)

    def stop(self) -> None:
        with self._changed:
            self._is_ending = True
            self._jobs.is_ending = True
            members = list(self._members.values())
            self._changed.notify_all()
        for member in members:
            self._end_member(member, recycle=False)
        wire.stop(self._listener)

    def status(self) -> RunMode:
        with self._changed:
            membership = self._membership
            tasks = [
                TaskSign(
                    slot=slot,
                    host=member.who.host,
                    pid=member.who.pid,
                    shards=list(range(slot, self._shards, membership.slots)),
                    memory=member.beat.rss,
                    at=str(member.beat) if member.beat.millis > 1000 else "",
                    millis=member.beat.millis,
                )
                for slot, member in sorted(self._members.items())
            ]
            missing = [] if self._is_ending else membership.missing
            return RunMode(
                "resident", generation=membership.generation, losses=membership.losses, tasks=tasks, missing=missing, jobs=self._jobs.begun
            )

    # --- below: with the lock

    def _check(self) -> None:
        now = time.monotonic()
        losses = self._membership.too_many(now)
        recent = [why for at, why in self._jobs.ended if at > now - LOSS_WINDOW]
        is_given_up = len(recent) > MOST_LOSSES or (len(recent) > 1 and not self._membership.generation)
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

    def _give_up(self, attempt: Attempt) -> None:
        for member in list(self._members.values()):
            with contextlib.suppress(OSError):
                member.connection.send(messages.GIVE_UP, (), attempt)

    def _announce(self) -> None:
        """A generation has begun: tells everybody who sits where."""
        members = self._membership.members
        for member in list(self._members.values()):
            try:
                member.connection.send(messages.GENERATION, [encode(Generation(self._membership.generation, members))])
            except OSError as error:
                self._forget(member, str(error))

    def _forget(self, member: _Member, why: str) -> None:
        why = member.why or why
        if self._is_ending:
            self._membership.leave(member.who)
            self._vacate(member)
        elif self._membership.lost(member.who, time.monotonic(), why):
            self._vacate(member)
            _log.info("task %d on %s (process %d) is lost: %s", member.who.slot, member.who.host, member.who.pid, why)
        member.connection.close()
        self._changed.notify_all()

    def _vacate(self, member: _Member) -> None:
        """Rule 5."""
        if self._members.get(member.who.slot) is member:
            del self._members[member.who.slot]
            self._compaction.lost(*range(member.who.slot, self._shards, self._membership.slots))

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

    def _hear(self, sock: socket.socket) -> None:
        try:
            connection = wire.accept(sock, self._cookie, self._tls)
            frame = connection.receive()
        except (OSError, MillstreamError) as error:
            _log.info("somebody who is no task of this run was turned away: %s", error)
            return
        finally:
            self._strangers.release()
        member = None
        try:
            member = None if frame is None else self._first(frame, connection)
        except Exception as error:
            _log.warning("somebody who said what no task says was turned away: %s: %s", type(error).__name__, error)
        if member is None:
            connection.close()
            return
        read_all(connection, lambda frame: self._got(member, frame))
        self._lose(member, "its connection was closed")

    def _first(self, frame: wire.ResidentFrame, connection: wire.TaskLink) -> _Member | None:
        """What somebody says first: that it is there, or that it cannot be."""
        if frame.kind == messages.FAILED:
            failure = decode(frame.body, TaskFailure)
            with self._changed:
                now, why = time.monotonic(), f"{failure.error}: {failure.text}"
                self._could_not_start = (now, why)
                self._membership.could_not_start(failure.slot, now, why)
                self._changed.notify_all()
        return self._join(decode(frame.body, TaskHello), connection) if frame.kind == messages.HELLO else None

    def _join(self, hello: TaskHello, connection: wire.TaskLink) -> _Member | None:
        with self._changed:
            if self._is_ending or self._jobs.job_of.get(hello.slot, hello.job) != hello.job:  # a later job has the slot
                connection.send(messages.END, [encode(Ending())])
                return None
            self._next_id += 1
            who = Member(hello.slot, self._next_id, hello.host, hello.pid, hello.address)
            before = self._members.get(who.slot)
            self._membership.hello(who)
            if before is not None:
                self._vacate(before)
                before.connection.close()
            member = self._members[who.slot] = _Member(who, connection)
            if self._membership.is_complete:
                self._announce()
            self._changed.notify_all()
            return member

    def _got(self, member: _Member, frame: wire.ResidentFrame) -> None:
        member.heard = time.monotonic()
        if frame.kind == messages.BEAT:
            member.beat = decode(frame.body, Beat)
        elif frame.kind == messages.COMPACTED:
            order = decode(frame.body, CompactionOrder)
            with self._changed:
                if self._members.get(member.who.slot) is member:  # else it was given up, and what it made may be collected already
                    self._compaction.came(order)
        elif frame.kind == messages.RECEIPTS:
            found = decode(frame.body, TaskReceipts)
            with self._changed:
                if self._membership.answer(member.who, frame.attempt, found):
                    if any(receipt.failure for receipt in found.receipts):
                        self._refused = (frame.attempt, found)
                    if self._refused is not None or self._membership.answers is not None:  # one answer of several wakes nobody
                        self._changed.notify_all()
        elif frame.kind == messages.FAILED:
            with self._changed:
                if self._membership.is_current(frame.attempt) and self._members.get(member.who.slot) is member:
                    self._failure = (frame.attempt, member.who, decode(frame.body, TaskFailure))
                    self._changed.notify_all()

    def _end_member(self, member: _Member, recycle: bool) -> None:
        with contextlib.suppress(OSError):
            member.connection.send(messages.END, [encode(Ending(recycle))])


class JobKeeper:
    """begin: runs a job (its number) with a task for each of the slots given, until it ends. changed: the coordinator's lock; told when a job has ended."""

    def __init__(self, begin: Callable[[int, Sequence[int]], None], changed: threading.Condition) -> None:
        self._begin = begin
        self._changed = changed
        self.job_of: dict[int, int] = {}  # by slot: the number of the job that fills it
        self._last = 0
        self.ended: list[tuple[float, str]] = []  # the last jobs that ended although the run goes on: when, and why
        self.is_ending = False  # so does the run
        self.begun = 0  # how often a job was begun

    def fill(self, slots: Iterable[int]) -> None:
        """A job for some slots, as long as the run lasts, or until others fill all of them."""
        with self._changed:
            self._last += 1
            self.job_of.update(dict.fromkeys(slots, self._last))
            threading.Thread(target=self._keep, args=(self._last,), name="millstream-coordinator-job", daemon=True).start()

    def _keep(self, job: int) -> None:
        while not self.is_ending and (slots := self._slots_of(job)):
            self.begun += 1
            try:
                self._begin(job, slots)
                why = "it ended"
            except Exception as error:
                why = str(error)
            with self._changed:
                if self.is_ending or not self._slots_of(job):
                    return
                self.ended.append((time.monotonic(), why))
                del self.ended[: -MOST_LOSSES - 1]
                self._changed.notify_all()
            _log.info("the job of the resident tasks has ended and is begun again: %s", why.splitlines()[0] if why else "")
            time.sleep(0.2)

    def _slots_of(self, job: int) -> list[int]:
        with self._changed:
            return sorted(slot for slot, of in self.job_of.items() if of == job)


class UnexpectedFailure(ClusterError):
    """A task failed with an error that is none of Millstream's: the epoch is tried again some times, as Spark would."""


def _list(slots: Sequence[int]) -> str:
    return ", ".join(map(str, slots))
