"""Programs that are right and programs that are wrong, for the check of epochs, shards and instances."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

import millstream as ms

SOURCE = ms.sources.files("nowhere", schema="k string, n long, at long, id string", format="json")
ROWS = [{"k": "abc"[i % 3], "n": i % 5, "at": 1_000 + 70 * i, "id": str(i)} for i in range(30)]
MIXED = [{**row, "at": row["at"] + 400 * (at % 4)} for at, row in enumerate(ROWS)]  # out of order, for each key too


def pipeline(computation: Any, **options: Any) -> ms.Pipeline:
    p = ms.Pipeline("kit")
    stream = p.inject("in", SOURCE, timestamp="at", id="id", watermark=ms.watermarks.bounded("60ms"))
    p.compute(computation, stream, key="k", produces="out", name="Program", **options)
    return p


def key(record: ms.Record) -> Any:
    return record.key


class Running(ms.Computation):
    """A running sum, told each time."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += record.value["n"] if isinstance(record.value, dict) else record.value
        self.produce(self.state)


class Windows(ms.Computation):
    """Sums per window of 300."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        window = record.timestamp - record.timestamp % 300
        self.state[window] = self.state.get(window, 0) + (record.value["n"] if isinstance(record.value, dict) else record.value)
        self.set_timer("end", window + 300)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce(self.state.pop(timer.time - 300))


class Sessions(ms.Computation):
    """Records up to 200 ms without one."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        self.state.append(record.timestamp)
        self.set_timer("gap", record.timestamp + 200)

    def process_timer(self, timer: ms.Timer) -> None:
        last = timer.time - 200
        if not any(last < at < timer.time for at in self.state):
            session = [at for at in self.state if at <= last]
            self.state = [at for at in self.state if at > last]
            self.produce(len(session))


# --- not in the state


class OnSelf(ms.Computation):
    State = int
    seen = 0

    def process_record(self, record: ms.Record) -> None:
        self.seen += 1
        self.produce(self.seen)


class PerKeyOnSelf(ms.Computation):
    """Right as long as the instance lives. The cache beside it does no harm."""

    State = int

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.squares: dict[int, int] = {}

    def process_record(self, record: ms.Record) -> None:
        n = record.value["n"]
        self.squares[n] = n * n
        self.counts[self.key] = self.counts.get(self.key, 0) + self.squares[n]
        self.produce(self.counts[self.key])


class LeftForTheTimer(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.last = record.value["n"]
        self.set_timer("soon", record.timestamp + 100)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce(self.last)


class InASlot(ms.Computation):
    __slots__ = ("tally",)
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.tally = getattr(self, "tally", 0) + 1
        self.produce(self.tally)


class OnTheClass(ms.Computation):
    State = int
    seen: dict[str, dict[str, int]] = {"all": {}}

    def process_record(self, record: ms.Record) -> None:
        counts = self.seen["all"]
        counts[self.key] = counts.get(self.key, 0) + 1
        self.produce(counts[self.key])


COUNTER = itertools.count()


class InTheModule(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.produce(next(COUNTER))


class Given(ms.Computation):
    """Every instance is given the same list."""

    State = int

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def process_record(self, record: ms.Record) -> None:
        self.log.append(self.key)
        self.produce(len(self.log))


# --- not deterministic


class Dice(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.produce(random.SystemRandom().randrange(10**12))


class Clock(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.produce(time.time_ns())


class OwnDice(ms.Computation):
    """Each instance has its own, which does not outlive it."""

    State = int

    def __init__(self) -> None:
        self.dice = random.Random()

    def process_record(self, record: ms.Record) -> None:
        self.produce(self.dice.randrange(10**12))


class WhoAmI(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.produce(id(self))


# --- shards


class Neighbour(ms.Computation):
    """The key that was handled before this one, wherever that was. The same run always says the same: the first record begins anew."""

    State = int
    before: str | None = None

    def process_record(self, record: ms.Record) -> None:
        if record.value["id"] == "0":
            Neighbour.before = None
        self.produce(Neighbour.before)
        Neighbour.before = self.key


# --- epochs


class NewWindow(ms.Computation):
    """Believes that the old window was closed because a record of a new one is there."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        window = record.timestamp - record.timestamp % 300
        if self.state.get("window") != window:
            self.state = {"window": window, "count": 0}
            self.set_timer("end", window + 300)
        self.state["count"] += 1

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce(self.state["count"])


class PastTheEnd(ms.Computation):
    """The same, by the end of the window."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        if record.timestamp >= self.state.get("end", 0):
            self.state = {"end": record.timestamp - record.timestamp % 300 + 300, "sum": 0}
            self.set_timer("end", self.state["end"])
        self.state["sum"] += record.value["n"]

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce(self.state["sum"])


class AllOfIt(ms.Computation):
    """Keeps windows apart, and yet lets a timer take all of them."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        window = record.timestamp - record.timestamp % 300
        self.state[window] = self.state.get(window, 0) + 1
        self.set_timer("end", window + 300)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce(sum(self.state.values()))
        self.state = {}


class Gone(ms.Computation):
    """Raises where the timer has fired already."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        if record.value["id"] == "0":
            self.state["open"] = 0
            self.set_timer("close", record.timestamp + 100)
        elif self.key == "a":
            self.state["open"] += 1

    def process_timer(self, timer: ms.Timer) -> None:
        self.state.clear()


class HowFar(ms.Computation):
    """Tells how far time is."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.produce(self.low_watermark)
