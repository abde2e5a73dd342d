"""One attempt of a resident task at one epoch: a generator without sockets that yields what it wants done, and is sent what that brings.

    ReadSplits  what this task is to read, keyed: (level, rows) pairs come back
    SendRows    rows of a level to other tasks: one message to each of them, also an empty one
    AwaitRows   the rows that other tasks have sent for a level come back
    RunTask     the task of a shard is about to run
    StageUnit   the unit is made durable

It returns the receipts. Sockets drive it in production (`worker`), lists and dice in the simulation (`simulation/resident_tasks`): the order of what happens,
and the moments of the crash points, are the same by construction.

Rules
1. The shards of a task are `shard % slots`.
2. All that an attempt stages lies in one unit, written once; rows for later levels travel before it is durable, because nothing counts before the manifest.
   "task.4-staging" is before that write, "task.4-staged" behind it.
3. A failure that retrying cannot fix is the only receipt.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any, NamedTuple, Protocol

from millstream.core.topology import Group
from millstream.engine.program import Compiled
from millstream.engine.receipts import EpochOrder, Receipt
from millstream.engine.routing import SentRows
from millstream.engine.staging import Unit, check_token
from millstream.engine.task import Cache, Inputs, Task
from millstream.state.compaction import unit_name
from millstream.state.storage import Storage


class ReadSplits(NamedTuple):
    pass


class SendRows(NamedTuple):
    level: int
    rows: Mapping[int, Sequence[Any]]  # by slot


class AwaitRows(NamedTuple):
    level: int


class RunTask(NamedTuple):
    level: int
    shard: int


class StageUnit(NamedTuple):
    unit: Unit


RoundStep = ReadSplits | SendRows | AwaitRows | RunTask | StageUnit


class RowFormat(Protocol):
    """How rows travel between tasks: Arrow tables, or lists."""

    def sent(self, rows: SentRows, unit: int) -> Any:
        """Productions of one task for one level."""

    def by_slot(self, rows: Any) -> Mapping[int, Any]:
        """Rows by the slot that owns them."""

    def inputs(self, received: Sequence[Any]) -> Callable[[Group, int, int], Inputs]:
        """The inputs of a level's tasks, by group, shard and number."""


@dataclass
class Round:
    """One attempt at one epoch, on all shards of a slot. given: by level, rows that the driver has read. reads: tasks read themselves. point: a crash point,
    with level, shard and the task's number among all tasks of the epoch."""

    compiled: Compiled
    order: EpochOrder
    slot: int
    slots: int
    shards: int
    rows: RowFormat
    given: InitVar[Mapping[int, Any]]
    reads: bool
    storage: Storage
    cache: Cache
    point: Callable[[str, int, int, int], None]

    def __post_init__(self, given: Mapping[int, Any]) -> None:
        self._mine: dict[int, list[Any]] = {level: [some] for level, some in given.items()}
        self._away: dict[int, dict[int, list[Any]]] = {}  # level, slot
        levels = self.compiled.topology.levels
        each = [(level, group, shard) for level, groups in enumerate(levels) for group in groups for shard in range(self.shards)]
        self._tasks = [
            (level, group, shard, number) for number, (level, group, shard) in enumerate(each) if shard % self.slots == self.slot
        ]

    def steps(self) -> Generator[RoundStep, Any, list[Receipt]]:
        if self.reads:
            for level, rows in (yield ReadSplits()):
                self._add(level, rows)
            yield from self._exchange(0)
        order = self.order
        unit = Unit(self.storage, unit_name(order.epoch, f"t{self.slot}", order.token))
        receipts: list[Receipt] = []
        for level in range(len(self.compiled.topology.levels)):
            if level:
                yield from self._exchange(level)
            inputs = self.rows.inputs(self._mine.pop(level, []))
            for _, group, shard, number in (task for task in self._tasks if task[0] == level):
                yield RunTask(level, shard)

                def point(name: str, at: tuple[int, int, int] = (level, shard, number)) -> None:
                    if name == "task.3-shuffled":  # rule 2: the points of step 4 surround the write
                        self.point(name, *at)

                task = Task(self.compiled, order, group, shard, self.shards, self.storage, self.cache, point, unit)
                result = task.run(inputs(group, shard, number))
                if result.receipt.failure:
                    return [result.receipt]
                receipts.append(result.receipt)
                for later, sent in result.sent.items():
                    self._add(later, self.rows.sent(sent, result.receipt.unit))
        check_token(self.storage, order)
        self._at_all("task.4-staging")
        yield StageUnit(unit)
        self._at_all("task.4-staged")
        return receipts

    def _at_all(self, name: str) -> None:
        for level, _, shard, number in self._tasks:
            self.point(name, level, shard, number)

    def _add(self, level: int, rows: Any) -> None:
        """Rows for a level: ours stay, those of others wait to be sent."""
        for slot, some in self.rows.by_slot(rows).items():
            if slot == self.slot:
                self._mine.setdefault(level, []).append(some)
            else:
                self._away.setdefault(level, {}).setdefault(slot, []).append(some)

    def _exchange(self, level: int) -> Generator[RoundStep, Any, None]:
        """Every task gets what we have for a level, and we get what they have."""
        if self.slots > 1:
            yield SendRows(level, self._away.pop(level, {}))
            received: Iterable[Any] = yield AwaitRows(level)
            self._mine.setdefault(level, []).extend(received)
