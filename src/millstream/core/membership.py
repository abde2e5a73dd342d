"""Generations and attempts: who takes part in an epoch of a resident run, and whose frames count. Pure: no socket, no clock of its own.

A *slot* is one resident task: a number from 0 up to the count of tasks, and for ever the same shards. Spark fills it, and fills it again when what sat there is
lost. A *generation* is one filling of all slots: everybody in it knows everybody's address. An *attempt* is one try at one epoch; its number grows with
every try of every epoch, and is never used twice in a run.

The driver's side, `Membership`:

| what happens | some slot is empty | all slots are filled |
| --- | --- | --- |
| somebody says hello for an empty slot | it sits down; if it was the last, a new generation begins | - |
| somebody says hello for a taken slot | who sat there is told to go, the newcomer sits down | the same, and a new generation begins |
| who sits there is lost | the slot is empty; it counts as a loss | the same; the generation, and the attempt in it, are over |
| the same, and others have said that they cannot reach it | the same, but it is the loss that was counted then | the same |
| somebody else is lost (told to go before) | nothing | nothing |
| somebody cannot even say hello | it counts as a loss | the same |
| who sits there goes as planned | the slot is empty, which is no loss | the same; the generation, and the attempt in it, are over |
| somebody cannot reach somebody | nothing | a new generation begins, and the attempt is over; it counts as a loss |
| an attempt is begun | refused | it gets the next number |
| an answer comes | dropped | counted, if it names this generation and attempt, once per slot; else dropped |

A task's side, `ExchangeBuffer`: frames come from other tasks, in any order and at any time. One of an older attempt than that at work is dropped: nobody will
commit it. A newer one is kept: its sender has got the order before us. A level is complete when every slot has sent its frame of it.

Rules
1. Attempts are compared as (generation, number): of two, the greater is the younger, whatever order they come in.
2. A frame is counted once per sender, level and attempt.
3. What was taken is over: a frame that comes again, or from a slot that does not exist, is dropped.
4. Losses are counted by time, and each once: a task that dies is often missed by its peers before its own connection closes. A host that dies, or a job that
   Spark gives up, takes many tasks along: different slots that are lost within `BURST` are one accident. More than `MOST_LOSSES` accidents within
   `LOSS_WINDOW` are none: the run ends, and says who was lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

MOST_LOSSES = 5
LOSS_WINDOW = 60.0  # seconds
BURST = 5.0  # seconds


class Attempt(msgspec.Struct, frozen=True, order=True):
    generation: int = 0
    number: int = 0


class Member(msgspec.Struct, frozen=True):
    """Who sits on a slot. id: of this filling, never used twice; address: where the others reach it."""

    slot: int
    id: int
    host: str = ""
    pid: int = 0
    address: str = ""


class _Accident(msgspec.Struct):
    """Losses that belong together."""

    at: float
    slots: set[int] = set()
    texts: list[str] = []

    def __str__(self) -> str:
        more = len(self.texts) - 1
        return self.texts[0] + (f" and {more} more at about the same time" if more else "")


class Membership:
    """The slots of a resident run, as its driver sees them."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.generation = 0
        self.losses = 0
        self._members: dict[int, Member] = {}
        self.attempt = Attempt()  # the one at work, or the last one
        self._answered: dict[int, Any] = {}
        self._recent: deque[_Accident] = deque(maxlen=MOST_LOSSES + 1)
        self._missed: set[int] = set()  # ids of members that somebody could not reach, and that have not answered since

    @property
    def members(self) -> list[Member]:
        return [self._members[slot] for slot in sorted(self._members)]

    @property
    def missing(self) -> list[int]:
        return [slot for slot in range(self.slots) if slot not in self._members]

    @property
    def is_complete(self) -> bool:
        return len(self._members) == self.slots

    def hello(self, who: Member) -> Member | None:
        """Somebody sits down. Returns who has to go. Afterwards, if the membership is complete, a new generation has begun."""
        if not 0 <= who.slot < self.slots:
            raise ValueError(f"there is no slot {who.slot}: there are {self.slots}")
        before = self._members.get(who.slot)
        self._members[who.slot] = who
        if self.is_complete:
            self.generation += 1
        self._answered = {}
        return before

    def lost(self, who: Member, now: float, why: str = "") -> bool:
        """Somebody is gone. Returns whether that was a loss: it sat on its slot until now."""
        if self._members.get(who.slot) != who:
            return False
        del self._members[who.slot]
        self._answered = {}
        if who.id not in self._missed:
            self._lose(now, f"task {who.slot} on {who.host} (process {who.pid}){': ' + why if why else ''}", [who.slot])
        self._missed.discard(who.id)
        return True

    def _lose(self, now: float, what: str, slots: Sequence[int]) -> None:
        self.losses += 1
        last = self._recent[-1] if self._recent else None
        if last is None or now - last.at > BURST or not last.slots.isdisjoint(slots):  # a slot that is lost again is another accident
            last = _Accident(now)
            self._recent.append(last)
        last.slots.update(slots)
        last.texts.append(what)

    def could_not_start(self, slot: int, now: float, why: str) -> None:
        """Somebody was to sit down and cannot: an accident like a loss."""
        self._lose(now, f"task {slot} could not start: {why}", [slot])

    def leave(self, who: Member) -> None:
        """Somebody goes as planned: an empty slot, and no loss."""
        if self._members.get(who.slot) == who:
            del self._members[who.slot]
            self._answered = {}

    def renew(self, now: float, why: str, missed: Sequence[int] = ()) -> None:
        """Everybody is there, and some slots (`missed`) cannot be reached: a new generation begins, and it counts as a loss."""
        if not self.is_complete:
            return
        self._lose(now, why, missed)
        self._missed |= {self._members[slot].id for slot in missed if slot in self._members}
        self._answered = {}
        self.generation += 1

    @property
    def last_losses(self) -> list[str]:
        return [text for accident in self._recent for text in accident.texts][-2:]

    def too_many(self, now: float) -> list[str]:
        """Rule 4: the last accidents, if they are too many; else nothing."""
        recent = [str(accident) for accident in self._recent if now - accident.at < LOSS_WINDOW]
        return recent if len(recent) > MOST_LOSSES else []

    def begin(self) -> Attempt:
        """The next attempt. All slots must be filled."""
        if not self.is_complete:
            raise ValueError(f"slots {self.missing} are empty")
        self.attempt = Attempt(self.generation, self.attempt.number + 1)
        self._answered = {}
        return self.attempt

    def is_current(self, attempt: Attempt) -> bool:
        """Whether an attempt can still be answered."""
        return self.is_complete and attempt == self.attempt and attempt.generation == self.generation

    def answer(self, who: Member, attempt: Attempt, what: Any) -> bool:
        """A member's answer to an attempt. Returns whether it counts."""
        if not self.is_current(attempt) or self._members.get(who.slot) != who or who.slot in self._answered:
            return False
        self._answered[who.slot] = what
        self._missed.discard(who.id)
        return True

    @property
    def answers(self) -> list[Any] | None:
        """The answers to the attempt at work, by slot, when all are there."""
        return [self._answered[slot] for slot in range(self.slots)] if len(self._answered) == self.slots else None


class ExchangeBuffer:
    """What other tasks have sent to one task. trusting: for tests that show what the attempt's number is for: nobody looks at it."""

    def __init__(self, slots: int, trusting: bool = False) -> None:
        self.slots = slots
        self._trusting = trusting
        self.attempt = Attempt()  # the one at work
        self._frames: dict[tuple[Attempt, int], dict[int, Any]] = {}
        self._taken: set[int] = set()  # levels of the attempt at work

    def begin(self, attempt: Attempt) -> None:
        """Work begins on an attempt. What older ones sent is let go of."""
        if attempt < self.attempt:
            raise ValueError(f"{attempt} is older than {self.attempt}, which is at work")
        self.attempt = attempt
        self._taken = set()
        if not self._trusting:
            self._frames = {where: frames for where, frames in self._frames.items() if where[0] >= attempt}

    def put(self, sender: int, attempt: Attempt, level: int, what: Any) -> bool:
        """A frame has come. Returns whether it is kept."""
        if not self._trusting and (attempt < self.attempt or (attempt == self.attempt and level in self._taken)):
            return False
        frames = self._frames.setdefault(self._place(attempt, level), {})
        if sender in frames or not 0 <= sender < self.slots:
            return False
        frames[sender] = what
        return True

    def _place(self, attempt: Attempt, level: int) -> tuple[Attempt, int]:
        return (Attempt() if self._trusting else attempt), level

    def is_complete(self, level: int) -> bool:
        return not self.missing(level)

    def missing(self, level: int) -> list[int]:
        frames = self._frames.get(self._place(self.attempt, level), {})
        return [slot for slot in range(self.slots) if slot not in frames]

    def take(self, level: int) -> Sequence[Any]:
        """The frames of a level by sender, which are then let go of."""
        self._taken.add(level)
        frames = self._frames.pop(self._place(self.attempt, level), {})
        return [frames[sender] for sender in sorted(frames)]
