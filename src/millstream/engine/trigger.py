"""When does the next epoch of planned sources begin? One epoch at a time: it takes all that is there when the one before has ended.

Rules
1. A micro-batch run has an epoch at every trigger. A resident one has none that would do nothing: no rows, nothing due, no watermark that moves, nothing
   that waits to be published.
2. What the last epoch has made due is done at once. What only time makes due is done in time: wall-clock timers at their moment, watermarks that follow the
   clock or a declaration, and an epoch that says that what the last one published need not be published again, at most once a second.
3. A source that can wake us does; the others are asked every `POLL` seconds.
4. A bounded run ends when no source has anything new; it has one epoch at least, so that there is something to drain.
5. A run that is left by `stop` publishes what waits, and ends with an epoch that has nothing to publish: the next run need not publish anything again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from millstream.engine.epochs import Epochs
from millstream.engine.plan import Position, declared, unsettled
from millstream.engine.source_planner import SourcePlanner
from millstream.sources.splits import SplitPlan
from millstream.state.manifest import Manifest

POLL = 0.02  # seconds
_LOOK = 1.0  # seconds


class _Idle(NamedTuple):
    """What follows from a manifest alone. due: moments at which something is due whatever comes in."""

    epoch: int
    position: Position
    is_unsettled: bool
    due: list[int]


class Trigger:
    """Runs the epochs of planned sources. every: the least time between two of them, in seconds. eager: an epoch at every turn, also if nothing happens."""

    def __init__(
        self, epochs: Epochs[Mapping[str, SplitPlan]], planner: SourcePlanner, *, bounded: bool, every: float, eager: bool
    ) -> None:
        self._epochs, self._planner = epochs, planner
        self._bounded, self._every, self._eager = bounded, every, eager
        self._event = threading.Event()
        self._looked = 0.0
        self._planning = 0.0  # seconds that the sources took to tell the last time
        self._idle: _Idle | None = None
        self._polls = not all([reader.wake(self._event.set) for reader in planner.readers.values()])

    def wake(self) -> None:
        self._event.set()

    def run(self, stopped: Callable[[], bool]) -> None:
        while not stopped():
            began = time.monotonic()
            self._event.clear()
            done = self.turn()
            if not done and self._bounded:
                return
            left = 0.0 if self._bounded else self._every - (time.monotonic() - began)
            if left > 0:
                self._epochs.stopping.wait(left)
            elif not done:
                self._event.wait(self._patience())
        self._flush()

    def turn(self) -> bool:
        """One epoch, if there is anything to do. Returns whether there was."""
        epochs = self._epochs
        with epochs.lock:
            if epochs.stopping.is_set():
                return False
            planning = time.perf_counter()
            reading, takes = self._planner.next(epochs.latest)
            self._planning = time.perf_counter() - planning
            if not reading.may_have_rows and not self._is_wanted():
                return False
            epochs.metrics.note("plan", planning)
            epochs.run(takes, reading)
            return True

    def _is_wanted(self) -> bool:
        latest = self._epochs.latest
        if latest is None:
            return True
        if self._bounded or self._eager:
            return not self._bounded
        idle = self._idle_after(latest)
        now = self._epochs.clock()
        if idle.is_unsettled or any(at <= now for at in idle.due):
            return True
        if time.monotonic() - self._looked < _LOOK:
            return False
        self._looked = time.monotonic()
        if self._epochs.may_repeat():
            return True
        said = declared(self._epochs.topology, self._planner.parts)
        return unsettled(self._epochs.topology, idle.position, now, said)

    def _idle_after(self, latest: Manifest) -> _Idle:
        """What is known of a manifest while nothing comes in: worked out once, and asked for many times a second."""
        if self._idle is None or self._idle.epoch != latest.epoch:
            topology = self._epochs.topology
            position = self._epochs.position(latest)
            rolls = {emission.name: emission.sink.roll_millis for emission in topology.emissions}
            due = [*position.next_wall.values(), *(waiting.since + rolls.get(name, 0) for name, waiting in latest.waiting.items())]
            self._idle = _Idle(latest.epoch, position, unsettled(topology, position), due)
        return self._idle

    def _patience(self) -> float:
        """For how long nothing needs to be done. A source that is slow to tell is asked less often."""
        seconds = max(POLL, 5 * self._planning) if self._polls else _LOOK
        latest = self._epochs.latest
        if latest is not None:
            now = self._epochs.clock()
            seconds = min([seconds, *((at - now) / 1000 for at in self._idle_after(latest).due)])
        return max(0.0, seconds)

    def _flush(self) -> None:
        """Rule 5. What is due all the time, as in a cycle that goes round for ever, does not keep a run from its end."""
        epochs = self._epochs
        with epochs.lock:
            if epochs.latest is not None and epochs.latest.waiting:
                epochs.run({}, msgspec.structs.replace(self._planner.nothing(epochs.latest), flush=True))
            if epochs.is_left_open():
                epochs.close_off()
