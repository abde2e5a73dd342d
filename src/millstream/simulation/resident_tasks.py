"""The tasks of a simulated resident run, and the network between them. Which task has which slot, and whose frames count, is decided by the real
`core/membership`; what a task does, by the real `engine/resident/round`.

Rules
1. A round is driven step by step, and gives way after each: begin, read, each frame that it sends, each task, stage, answer. Which task is next, and which
   frame arrives, is drawn by lot; frames arrive in any order.
2. A lost task takes its state caches along, and frames to it are gone. Frames from it, and what survivors send before they hear of it, are still on their
   way: they arrive before the next attempt, or in the middle of it.
3. A task that has lost its slot goes on all the same, as far as it gets, and writes: it has not been told yet.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.core.membership import Attempt, ExchangeBuffer, Member, Membership
from millstream.core.topology import Group
from millstream.core.watermark import Seen
from millstream.engine.program import Arrival, Compiled
from millstream.engine.receipts import EpochOrder, Receipt
from millstream.engine.resident.round import AwaitRows, ReadSplits, Round, SendRows, StageUnit
from millstream.engine.resident.runner import part_of
from millstream.engine.routing import SentRows
from millstream.errors import MillstreamError, TaskLost
from millstream.simulation.fakes import Host, Violation
from millstream.simulation.list_inputs import Handed, Injected, ListInputs
from millstream.state.heartbeat import RunMode

if TYPE_CHECKING:
    from millstream.simulation.driver import Driver


class Inflow(msgspec.Struct):
    """Rows on their way to one slot, for one level: injected ones, what watermarks want to know of them, and productions; by computation and shard."""

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


class SplitRows(msgspec.Struct):
    """What an epoch reads: rows that the driver has read, or what each slot is to read."""

    read: list[tuple[str, dict[str, Any]]] = []
    by_slot: list[list[tuple[str, dict[str, Any]]]] | None = None


class ListRows:
    """Rows as lists. Implements the round's RowFormat. dice: of a task's number."""

    def __init__(self, compiled: Compiled, shards: int, slots: int, dice: Callable[[int], random.Random], ordered: bool) -> None:
        self._compiled = compiled
        self._shards = shards
        self._slots = slots
        self._dice = dice
        self._ordered = ordered
        self._levels = {
            name: level for level, groups in enumerate(compiled.topology.levels) for group in groups for name in group.computations
        }

    def by_level(self, injected: Injected) -> dict[int, Inflow]:
        """Injected rows by the level of their consumer."""
        found: dict[int, Inflow] = {}
        for (name, shard), arrivals in injected.queued.items():
            found.setdefault(self._levels[name], Inflow()).injected[name, shard] = arrivals
        for (stream, name, shard), seen in injected.seen.items():
            if name in self._levels:
                found.setdefault(self._levels[name], Inflow()).seen[stream, name, shard] = seen
        return found

    def sent(self, rows: SentRows, unit: int) -> Inflow:
        flow = Inflow()
        for row in rows.rows():
            to = self._compiled.topology.routes[row.route]
            arrival = self._compiled.arrival(to.stream, row.key, row.time, row.id, row.body)
            flow.handed.setdefault((to.computation, row.shard), []).append(Handed(unit, arrival))
        return flow

    def by_slot(self, rows: Inflow) -> dict[int, Inflow]:
        found: dict[int, Inflow] = {}
        for where, arrivals in rows.injected.items():
            found.setdefault(where[1] % self._slots, Inflow()).injected[where] = arrivals
        for what, seen in rows.seen.items():
            found.setdefault(what[2] % self._slots, Inflow()).seen[what] = seen
        for where, handed in rows.handed.items():
            found.setdefault(where[1] % self._slots, Inflow()).handed[where] = handed
        return found

    def inputs(self, received: Sequence[Inflow]) -> Callable[[Group, int, int], ListInputs]:
        flow = Inflow()
        for rows in received:
            flow.add(rows)
        injected = Injected(self._compiled, self._shards, 0, {})
        injected.queued, injected.seen = flow.injected, flow.seen

        def of_task(group: Group, shard: int, number: int) -> ListInputs:
            handed = {name: flow.handed.get((name, shard), []) for name in group.computations}
            return ListInputs(self._compiled, injected, group, shard, handed, self._dice(number), self._ordered)

        return of_task


class _Frame(msgspec.Struct):
    to: _Member
    sender: int
    attempt: Attempt
    level: int
    rows: Inflow


class _Member:
    """Who sits on a slot, or has sat there and does not know that it was replaced."""

    def __init__(self, who: Member, buffer: ExchangeBuffer, host: Host) -> None:
        self.who = who
        self.buffer = buffer
        self.host = host
        self.work: Iterator[int | None] | None = None
        self.waits: int | None = None  # for the frames of a level
        self.steps = 0
        self.is_staged = False

    @property
    def is_ready(self) -> bool:
        return self.work is not None and (self.waits is None or self.buffer.is_complete(self.waits))

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


class SimulatedTasks:
    """The tasks of one run."""

    def __init__(self, driver: Driver, count: int, read: Callable[[Any], list[list[tuple[str, dict[str, Any]]]]]) -> None:
        """read: the rows of every split of what an epoch reads."""
        self.driver = driver
        self.count = count
        self._read = read
        self.membership = Membership(count)
        self._members: dict[int, _Member] = {}
        self._zombies: list[_Member] = []
        self._wire: list[_Frame] = []
        self._ids = 0
        self._refused: list[Receipt] = []
        self._keeps_frames = False

    # --- who is there

    def recycle(self) -> None:
        """Nothing becomes old here."""

    def gather(self, stopped: Callable[[], bool]) -> None:
        """Spark puts a process on every empty slot."""
        for slot in self.membership.missing:
            self._sit(slot)
        simulation = self.driver.simulation
        simulation.attempts += 1
        simulation.generations = max(simulation.generations, self.membership.generation)

    def status(self) -> RunMode:
        """It is not asked for."""
        return RunMode("resident")

    def close(self) -> None:
        """Nothing is open."""

    def _sit(self, slot: int) -> _Member | None:
        self._ids += 1
        who = Member(slot, self._ids, address=f"memory:{self._ids}")
        self.membership.hello(who)
        before = self._members.get(slot)
        buffer = ExchangeBuffer(self.count, trusting=not self.driver.epochs.guards.attempts)
        self._members[slot] = _Member(who, buffer, self.driver.simulation.host())
        return before

    def forget(self) -> None:
        """State caches and filters are gone."""
        for member in self._members.values():
            member.host = self.driver.simulation.host()

    # --- one attempt

    def read(self, takes: Any, now: int) -> SplitRows:
        """Rows that the driver reads, or what each task is to read."""
        splits = self._read(takes)
        if self.driver.simulation.dice("reads", self.driver.index).random() < 0.5:
            return SplitRows([row for rows in splits for row in rows])
        return SplitRows([], [[row for rows in splits[slot :: self.count] for row in rows] for slot in range(self.count)])

    def attempt(self, input: SplitRows, order: EpochOrder) -> list[Receipt]:
        """One attempt at an epoch. Raises TaskLost."""
        attempt = self.membership.begin()
        dice = self.driver.simulation.dice("slots", order.token.split("-")[0], attempt.number)
        for slot, member in self._members.items():
            member.begin(self._drive(member, attempt, self._own(order, slot), input))
        refused = self._refused = []
        early = dice.random() < 0.5  # what is left from older attempts comes first
        while self.membership.answers is None and not refused:
            self._turn(dice, attempt, early)
            self._strike(attempt)
            if not self.membership.is_current(attempt):
                self._give_up(dice)
                raise TaskLost("a task was lost")
        if refused:
            self._give_up(dice)
            return refused
        for member in self._members.values():
            member.work = None
        assert self.membership.answers is not None
        return [receipt for receipts in self.membership.answers for receipt in receipts]

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
        frame.to.buffer.put(frame.sender, frame.attempt, frame.level, frame.rows)

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
                    gone = self._sit(member.who.slot)
                    assert gone is member
                    self._zombies.append(member)
                else:
                    self.membership.lost(member.who, 0.0, fault.kind)
                    member.work = None
                    del self._members[member.who.slot]
                    self._wire = [frame for frame in self._wire if frame.to is not member]
                return

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
            member.work = None

    def run_orphans(self) -> None:
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
                    member.work = None

    # --- a task

    def _own(self, order: EpochOrder, slot: int) -> EpochOrder:
        return msgspec.structs.replace(order, before=None if order.before is None else part_of(order.before, slot, self.count))

    def _drive(self, member: _Member, attempt: Attempt, order: EpochOrder, input: SplitRows) -> Iterator[int | None]:
        """Drives a round, giving way between its steps; what is given is the level whose frames are waited for."""
        driver, slot = self.driver, member.who.slot
        simulation, index, shards = driver.simulation, driver.index, driver.epochs.shards
        rows = ListRows(
            driver.compiled,
            shards,
            self.count,
            lambda number: simulation.dice("attempt", order.epoch, number, str(attempt)),
            order.guards.order,
        )
        yield None  # the order is on its way
        member.buffer.begin(attempt)
        given = {
            level: mine
            for level, flow in rows.by_level(self._injected(input.read, order)).items()
            if (mine := rows.by_slot(flow).get(slot)) is not None
        }
        steps = Round(
            driver.compiled,
            order,
            slot,
            self.count,
            shards,
            rows=rows,
            given=given,
            reads=input.by_slot is not None,
            storage=simulation.storage,
            cache=member.host,
            point=lambda name, level, shard, number: simulation.at_task(index, name, number),
        ).steps()
        brought: Any = None
        while True:
            try:
                step = steps.send(brought)
            except StopIteration as end:
                receipts: list[Receipt] = end.value
                break
            brought = None
            if isinstance(step, ReadSplits):
                assert input.by_slot is not None
                brought = list(rows.by_level(self._injected(input.by_slot[slot], order)).items())
            elif isinstance(step, SendRows):
                for to_slot, to in sorted(self._members.items()):
                    if to_slot != slot:
                        flow = Inflow()
                        for some in step.rows.get(to_slot, ()):
                            flow.add(some)
                        self._wire.append(_Frame(to, slot, attempt, step.level, flow))
                        yield None
                continue
            elif isinstance(step, AwaitRows):
                member.buffer.put(slot, attempt, step.level, Inflow())
                yield step.level
                brought = member.buffer.take(step.level)
                continue
            elif isinstance(step, StageUnit):
                yield None
                step.unit.write()
                member.is_staged = True
            yield None
        for receipt in receipts:
            for delta in receipt.work.values():
                delta.millis = 0.0  # nothing is ever slow here
        if self.membership.answer(member.who, attempt, receipts) and any(receipt.failure for receipt in receipts):
            self._refused.extend(receipts)

    def _injected(self, rows: Iterable[tuple[str, dict[str, Any]]], order: EpochOrder) -> Injected:
        compiled = self.driver.compiled
        injected = Injected(compiled, self.driver.epochs.shards, order.now, order.before.injectors if order.before else {})
        for stream, row in rows:
            injected.add(compiled.topology.injectors[stream], row)
        return injected
