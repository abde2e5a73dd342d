"""The user's test kit: a pipeline in one process, without Spark, on a hand-moved clock.

    runner = ms.testing.LocalRunner(pipeline)
    runner.push("queries", {"term": "tea", "at": 1_000, "id": "q1"})
    runner.run()                       # epochs until nothing is due
    runner.drain()                     # the input ends, every window closes
    assert runner.output("counts") == [("tea", 1, 2_000)]
"""

from __future__ import annotations

from typing import Any

from millstream.core.record import Timer
from millstream.core.topology import ADAPTIVE
from millstream.engine.local import Emitted, LocalEngine, SimulatedCrash
from millstream.errors import DefinitionError
from millstream.pipeline import Pipeline

__all__ = ["Emitted", "LocalRunner", "SimulatedCrash"]


class LocalRunner:
    """Runs a pipeline in memory: push records, move time, read outputs, state and timers, crash and resume.

    It runs the same step as the Spark engine, so what holds here for the order of records and timers holds there. It does not model
    sinks (read `output`), shuffles or failing machines.
    """

    def __init__(self, pipeline: Pipeline, *, shards: int = 2, now: int = 0) -> None:
        self._engine = LocalEngine(pipeline.program(), shards)
        self._engine.now = now

    def push(self, stream: str, *rows: dict[str, Any]) -> None:
        """Lets rows arrive on an injected stream in the next epoch."""
        for row in rows:
            self._engine.push(stream, row)

    def epoch(self, *, crash: bool = False) -> None:
        """Runs one epoch. With crash=True it dies just before the commit (`SimulatedCrash`): nothing of it remains, what was pushed is still to come."""
        self._engine.run_epoch(crash)

    def run(self, limit: int = 1_000) -> None:
        """Runs epochs until nothing is pending or due."""
        for _ in range(limit):
            if not self._engine.due():
                return
            self._engine.run_epoch()
        raise DefinitionError(f"after {limit} epochs there is still something due: does a timer keep setting another?")

    def advance_watermark(self, stream: str, to: int) -> None:
        """Moves an injected stream's watermark forward, as if its source had said so, and runs what is due."""
        if stream not in self._engine.injected:
            raise DefinitionError(f"no injected stream is called {stream!r}; there are: {', '.join(self._engine.injected)}")
        self._engine.progress[stream].watermark = max(self._engine.injected[stream], to)
        self._settle()

    def advance_clock(self, to: int) -> None:
        """Moves the wall clock forward and runs what is due."""
        if to < self._engine.now:
            raise ValueError(f"the clock stands at {self._engine.now} and does not go back to {to}")
        self._engine.now = to
        self._settle()

    def _settle(self) -> None:
        self._engine.run_epoch()
        self.run()

    def drain(self) -> None:
        """Ends the input: every low-watermark timer fires."""
        self._engine.drain()

    def output(self, stream: str) -> list[tuple[Any, Any, int]]:
        """What a stream has carried so far: (key, value, timestamp), in order per key."""
        return [(e.key, e.value, e.timestamp) for e in self.records(stream)]

    def records(self, stream: str) -> list[Emitted]:
        """The same with ids."""
        if stream not in self._engine.outputs:
            raise DefinitionError(f"no computation produces {stream!r}; streams: {', '.join(self._engine.outputs)}")
        return list(self._engine.outputs[stream])

    def state(self, computation: str, key: Any = None) -> Any:
        """A key's state (None if it has none), or with no key the states of all keys."""
        found = self._engine.state(computation)
        return found if key is None else found.get(key)

    def timers(self, computation: str, key: Any) -> list[Timer]:
        """A key's timers, in order of time."""
        return self._engine.timers(computation, key)

    def late(self, computation: str) -> int:
        """How many late records a computation has seen."""
        return self._engine.late[computation]

    def dead(self, computation: str) -> int:
        """How many dead letters a computation has written."""
        return self._engine.dead[computation]

    @property
    def duplicates(self) -> int:
        """How many repeated records were dropped."""
        return self._engine.duplicates

    def store(self, stream: str, computation: str, storing: bool = True) -> None:
        """Makes an adaptive edge store (or deliver at once again), as a slow consumer would."""
        edge = (stream, computation)
        if self._engine.topology.edges.get(edge) != ADAPTIVE:
            raise DefinitionError(f"the edge from {stream!r} into {computation!r} is not adaptive")
        (self._engine.storing.add if storing else self._engine.storing.discard)(edge)

    def low_watermark(self, computation: str) -> int:
        """A computation's low watermark after the last epoch."""
        return self._engine.low_watermarks[computation]
