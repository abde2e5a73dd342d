"""The tasks of a simulated resident run, and the network between them: who sits where and whose frames count is decided by the real `core/membership`.

Rules
1. A task is a generator that does what `engine/resident/worker.py` does, in its order, and gives way after every step: begin, read, each frame that it sends,
   each shard of each group, stage, answer. Which task is next, and which frame arrives, is drawn by lot; frames arrive in any order.
2. Whoever is lost takes its replicas along, and frames to it are gone. Frames from it, and what survivors send before they hear of it, are still on their
   way: they arrive before the next attempt, or in the middle of it.
3. Whoever is sent away from its seat goes on all the same, as far as it gets, and writes: nobody has told it yet.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from millstream.core.membership import Attempt, Inbox, Roster, Seated
from millstream.core.watermark import Seen
from millstream.engine.program import Arrival, Compiled
from millstream.engine.receipts import EpochOrder, Receipt
from millstream.engine.resident.runner import part_of
from millstream.engine.staging import Unit, check_token
from millstream.engine.task import Task
from millstream.errors import MillstreamError, TaskLost
from millstream.simulation.fakes import Host, HostCache, Violation
from millstream.simulation.list_inputs import Handed, Injected, ListInputs
from millstream.state.compaction import unit_name


class Inflow(msgspec.Struct):
    """Rows on their way to one seat, for one level: injected ones, what watermarks want to know of them, and productions; by computation and shard."""

    injected: dict[tuple[str, int], list[Arrival]] = {}
    seen: dict[tuple[str, str, int], Seen] = {}
    handed: dict[tuple[str, int], list[Handed]] = {}

    def add(self, other: Inflow) -> None:
        """Takes in what else has come."""
        for where, arrivals in other.injected.items():
            self.injected.setdefault(where, []).extend(arrivals)
        for what, seen in other.seen.items():
            self.seen.setdefault(what, Seen()).add(seen)
        for where, handed in other.handed.items():
            self.handed.setdefault(where, []).extend(handed)


class EpochInput(msgspec.Struct):
    """What an epoch reads: rows that the driver has read, or what each seat is to read."""

    read: list[tuple[str, dict[str, Any]]] = []
    by_seat: list[list[tuple[str, dict[str, Any]]]] | None = None


class _Frame(msgspec.Struct):
    to: _Member
    sender: int
    attempt: Attempt
    level: int
    rows: Inflow


class _Member:
    """Who sits on a seat, or has sat there and does not know that it was replaced."""

    def __init__(self, who: Seated, inbox: Inbox) -> None:
        self.who = who
        self.inbox = inbox
        self.host = Host()
        self.work: Iterator[int | None] | None = None
        self.waits: int | None = None  # for the frames of a level
        self.steps = 0
        self.is_staged = False

    @property
    def is_ready(self) -> bool:
        return self.work is not None and (self.waits is None or self.inbox.is_complete(self.waits))

    def step(self) -> bool:
        """Goes on a little. False: the attempt is over for it."""
        assert self.work is not None
        try:
            self.waits = next(self.work)
            self.steps += 1
            return True
        except StopIteration:
            self.work = None
            return False

    def begin(self, work: Iterator[int | None]) -> None:
        """An order has been sent to it."""
        self.work, self.waits, self.steps, self.is_staged = work, None, 0, False

    def end(self) -> None:
        """It hears that the attempt is over, or is gone."""
        self.work = None


class SimulatedSeats:
    """The tasks of one run."""

    def __init__(self, driver: Any, count: int) -> None:
        self.driver = driver
        self.count = count
        self.roster = Roster(count)
        self._members: dict[int, _Member] = {}
        self._zombies: list[_Member] = []
        self._wire: list[_Frame] = []
        self._ids = 0
        self._levels = {
            name: level for level, groups in enumerate(driver.topology.levels) for group in groups for name in group.computations
        }

    # --- who is there

    def gather(self) -> None:
        """Spark puts somebody on every empty seat."""
        for seat in self.roster.missing:
            self._sit(seat)

    def _sit(self, seat: int) -> _Member | None:
        self._ids += 1
        who = Seated(seat, self._ids, address=f"memory:{self._ids}")
        self.roster.hello(who)
        before = self._members.get(seat)
        self._members[seat] = _Member(who, Inbox(self.count, trusting=not self.driver.guards.attempts))
        return before

    def forget(self) -> None:
        """Replicas and filters are gone."""
        for member in self._members.values():
            member.host = Host()

    # --- one attempt

    def run(self, input: EpochInput, order: EpochOrder) -> list[Receipt]:
        """One attempt at an epoch. Raises TaskLost."""
        attempt = self.roster.begin()
        dice = self.driver.simulation.dice("seats", order.token.split("-")[0], attempt.number)
        given = self._sorted(self._injected(input.read, order))
        for seat, member in self._members.items():
            member.begin(self._work(member, attempt, self._own(order, seat), input, given.get(seat, {})))
        refused = self._refused = list[Receipt]()
        early = dice.random() < 0.5  # what is left from older attempts comes first
        while self.roster.answers is None and not refused:
            self._turn(dice, attempt, early)
            self._strike(attempt)
            if not self.roster.is_current(attempt):
                self._give_up(dice)
                raise TaskLost("a task was lost")
        if refused:
            self._give_up(dice)
            return refused
        for member in self._members.values():
            member.end()
        assert self.roster.answers is not None
        return [receipt for receipts in self.roster.answers for receipt in receipts]

    def _turn(self, dice: random.Random, attempt: Attempt, early: bool) -> None:
        """Something happens: a frame arrives, or somebody takes a step."""
        working = [member for member in [*self._members.values(), *self._zombies] if member.is_ready]
        old = [frame for frame in self._wire if frame.attempt < attempt] if early else []
        if not self._wire and not working:
            raise Violation(f"nobody can go on in attempt {attempt}")
        if self._wire and (not working or dice.random() < 0.5):
            self._deliver(dice.choice(old or self._wire))
        else:
            member = dice.choice(working)
            if not member.step() and member in self._zombies:
                self._zombies.remove(member)

    def _deliver(self, frame: _Frame) -> None:
        self._wire.remove(frame)
        frame.to.inbox.put(frame.sender, frame.attempt, frame.level, frame.rows)

    def _strike(self, attempt: Attempt) -> None:
        """Faults that are due: after so many steps of a task, or when it is about to answer."""
        simulation, index = self.driver.simulation, self.driver.index
        for fault in simulation.schedule:
            if fault.kind not in ("lose", "stale", "rejoin") or fault.epoch != index or fault in simulation.used:
                continue
            member = self._members[fault.task % self.count]
            if member.steps >= fault.later or member.is_staged or member.work is None:
                simulation.used.add(fault)
                self._keeps_frames = fault.kind != "lose"
                if fault.kind == "rejoin":
                    gone = self._sit(member.who.seat)
                    assert gone is member
                    self._zombies.append(member)
                else:
                    self.roster.lost(member.who, 0.0, fault.kind)
                    member.end()
                    del self._members[member.who.seat]
                    self._wire = [frame for frame in self._wire if frame.to is not member]
                return

    _keeps_frames = False
    _refused: list[Receipt]

    def _give_up(self, dice: random.Random) -> None:
        """An attempt is over. Survivors hear of it sooner or later."""
        if self._keeps_frames:
            for _ in range(dice.randint(0, 12)):
                ready = [member for member in self._members.values() if member.is_ready]
                if ready:
                    dice.choice(ready).step()
        else:
            dice.shuffle(self._wire)
            for frame in self._wire[: dice.randint(0, len(self._wire))]:
                self._deliver(frame)
            self._wire.clear()
        self._keeps_frames = False
        for member in self._members.values():
            member.end()

    def orphaned(self) -> None:
        """The driver is gone, and who works does not know it yet."""
        for _ in range(1000):
            ready = [member for member in self._members.values() if member.is_ready]
            if not ready and not self._wire:
                return
            for frame in list(self._wire):
                self._deliver(frame)
            for member in ready:
                try:
                    member.step()
                except MillstreamError:  # it finds that its run was replaced
                    member.end()

    # --- a task

    def _own(self, order: EpochOrder, seat: int) -> EpochOrder:
        return msgspec.structs.replace(order, before=None if order.before is None else part_of(order.before, seat, self.count))

    def _work(
        self, member: _Member, attempt: Attempt, order: EpochOrder, input: EpochInput, given: Mapping[int, Inflow]
    ) -> Iterator[int | None]:
        simulation, seat, compiled = self.driver.simulation, member.who.seat, self.driver.compiled
        yield None  # the order is on its way
        member.inbox.begin(attempt)
        mine = [_copied(given.get(level)) for level in range(len(compiled.topology.levels))]
        away: dict[int, dict[int, Inflow]] = {}
        if input.by_seat is not None:
            for at, flows in self._sorted(self._injected(input.by_seat[seat], order)).items():
                for level, flow in flows.items():
                    _add(mine, away, seat, at, level, flow)
            yield None
            yield from self._swap(member, attempt, 0, mine, away)
        unit = Unit(simulation.storage, unit_name(order.epoch, f"t{seat}", order.token))
        receipts: list[Receipt] = []
        number = 0
        for level, groups in enumerate(compiled.topology.levels):
            if level:
                yield from self._swap(member, attempt, level, mine, away)
            injected = Injected(compiled, self.driver.shards, 0, {})
            injected.queued, injected.seen = mine[level].injected, mine[level].seen
            for group in groups:
                for shard in range(self.driver.shards):
                    if shard % self.count == seat:
                        dice = simulation.dice("attempt", order.epoch, number, str(attempt))
                        handed = {name: mine[level].handed.get((name, shard), []) for name in group.computations}
                        inputs = ListInputs(compiled, injected, group, shard, handed, dice, order.guards.order)
                        task = Task(
                            compiled,
                            order,
                            group,
                            shard,
                            shards=self.driver.shards,
                            storage=simulation.storage,
                            cache=HostCache(member.host, simulation.storage, trusting=not order.guards.markers),
                            point=lambda name, number=number: simulation.at_task(self.driver.index, name, number),  # type: ignore[misc]
                            unit=unit,
                        )
                        result = task.run(inputs)
                        receipts.append(result.receipt)
                        if result.receipt.failure:
                            if self.roster.answer(member.who, attempt, [result.receipt]):
                                self._refused.append(result.receipt)
                            return
                        for delta in result.receipt.work.values():
                            delta.millis = 0.0
                        for later, sent in result.sent.items():
                            for to_shard, route, *row in sent:
                                to = compiled.topology.routes[route]
                                arrival = Handed(result.receipt.unit, compiled.arrival(to.stream, *row))
                                _add(mine, away, seat, to_shard % self.count, later, Inflow(handed={(to.computation, to_shard): [arrival]}))
                        yield None
                    number += 1
        check_token(simulation.storage, order)
        yield None
        unit.write()
        member.is_staged = True
        yield None
        self.roster.answer(member.who, attempt, receipts)

    def _swap(
        self, member: _Member, attempt: Attempt, level: int, mine: list[Inflow], away: dict[int, dict[int, Inflow]]
    ) -> Iterator[int | None]:
        """Everybody gets a frame, also an empty one; then the own ones are waited for."""
        frames = away.pop(level, {})
        for seat, to in sorted(self._members.items()):
            if seat != member.who.seat:
                self._wire.append(_Frame(to, member.who.seat, attempt, level, frames.get(seat, Inflow())))
                yield None
        member.inbox.put(member.who.seat, attempt, level, Inflow())
        yield level
        for rows in member.inbox.take(level):
            mine[level].add(rows)

    # --- what came in

    def _injected(self, rows: Iterable[tuple[str, dict[str, Any]]], order: EpochOrder) -> Injected:
        compiled: Compiled = self.driver.compiled
        now = next(iter(order.times.values())).now
        injected = Injected(compiled, self.driver.shards, now, order.before.injectors if order.before else {})
        for stream, row in rows:
            injected.add(compiled.topology.injectors[stream], row)
        return injected

    def _sorted(self, injected: Injected) -> dict[int, dict[int, Inflow]]:
        """By seat and level."""
        found: dict[int, dict[int, Inflow]] = {}
        for (name, shard), arrivals in injected.queued.items():
            found.setdefault(shard % self.count, {}).setdefault(self._levels[name], Inflow()).add(
                Inflow(injected={(name, shard): arrivals})
            )
        for (stream, name, shard), seen in injected.seen.items():
            if name in self._levels:
                found.setdefault(shard % self.count, {}).setdefault(self._levels[name], Inflow()).add(
                    Inflow(seen={(stream, name, shard): seen})
                )
        return found


def _copied(flow: Inflow | None) -> Inflow:
    copy = Inflow()
    if flow is not None:
        copy.add(flow)
    return copy


def _add(mine: list[Inflow], away: dict[int, dict[int, Inflow]], own: int, seat: int, level: int, flow: Inflow) -> None:
    """Rows for a level: ours stay, those of others wait to be sent."""
    if seat == own:
        mine[level].add(flow)
    else:
        away.setdefault(level, {}).setdefault(seat, Inflow()).add(flow)
