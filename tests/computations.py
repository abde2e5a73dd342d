"""Computations that tests of several kinds use. Values are numbers, or rows whose number is n."""

from __future__ import annotations

import millstream as ms


def number(record: ms.Record) -> int:
    """What a record says."""
    return record.value["n"] if isinstance(record.value, dict) else record.value  # type: ignore[no-any-return]


class Sum(ms.Computation):
    """A running sum, told each time."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += number(record)
        self.produce(self.state)


class Windows(ms.Computation):
    """Sums per window, each told when its window is complete."""

    State = dict
    size = 100

    def process_record(self, record: ms.Record) -> None:
        window = record.timestamp - record.timestamp % self.size
        self.state[window] = self.state.get(window, 0) + number(record)
        self.set_timer("window", window + self.size)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce(self.state.pop(timer.time - self.size))


class WindowCounts(ms.Computation):
    """Records per window, each told when its window is complete."""

    State = dict
    size = 10

    def process_record(self, record: ms.Record) -> None:
        end = record.timestamp - record.timestamp % self.size + self.size
        self.state[end] = self.state.get(end, 0) + 1
        self.set_timer("window", end)

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce(self.state.pop(timer.time))


class Gather(ms.Computation):
    """All that came, in its order."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        self.state.append(record.value)
