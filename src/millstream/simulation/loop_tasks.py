"""The tasks of a simulated micro-batch: one after the other, each with attempts that are lost, computed again, or overtaken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from millstream.core.topology import Group
from millstream.engine.receipts import EpochOrder, Receipt
from millstream.engine.task import Result, Task
from millstream.simulation.fakes import Host
from millstream.simulation.list_inputs import Handed, Injected, ListInputs
from millstream.state.heartbeat import RunMode

if TYPE_CHECKING:
    from millstream.simulation.driver import Driver

InputRows = Sequence[tuple[str, dict[str, Any]]]  # streams, and their rows


class LoopTasks:
    """Runs tasks in a loop, on hosts that are drawn by lot. read: the rows of what came in. Implements the epochs' TaskRunner."""

    def __init__(self, driver: Driver, read: Callable[[Any], InputRows]) -> None:
        self._driver = driver
        self._read = read
        self._hosts: list[Host] = []

    def forget(self) -> None:
        """Workers lose their state caches."""
        self._hosts = [self._driver.simulation.host() for _ in self._hosts]

    def status(self) -> RunMode:
        """Micro-batches."""
        return RunMode()

    def close(self) -> None:
        """Nothing is open."""

    def run(self, input: Any, order: EpochOrder) -> list[Receipt]:
        """All tasks of an epoch, level by level."""
        driver = self._driver
        simulation, topology, shards = driver.simulation, driver.compiled.topology, driver.epochs.shards
        if not self._hosts:
            self._hosts = [simulation.host() for _ in range(simulation.dice("hosts", order.token.split("-")[0]).randint(1, 4))]
        injected = Injected(driver.compiled, shards, order.now, order.before.injectors if order.before else {})
        for stream, row in self._read(input) if input is not None else ():
            injected.add(topology.injectors[stream], row)
        receipts: dict[int, Receipt] = {}
        handed: dict[tuple[str, int], list[Handed]] = {}
        again: list[tuple[int, Callable[[], Result]]] = []
        number = 0
        for groups in topology.levels:
            for group in groups:
                for shard in range(shards):
                    mine = {name: list(handed.get((name, shard), ())) for name in group.computations}
                    attempt = partial(self._attempt, driver.index, order, group, shard, number, injected, mine)
                    if simulation.hits("retry", driver.index, number):
                        attempt("lost")
                    for fault in simulation.take_due("zombie", driver.index, number):
                        simulation.sleep(driver.index + fault.later, partial(attempt, "zombie"))
                    receipt, sent = attempt("first")
                    receipts[number] = receipt
                    for one in (one for rows in sent.values() for one in rows.rows()):
                        to = topology.routes[one.route]
                        arrival = driver.compiled.arrival(to.stream, one.key, one.time, one.id, one.body)
                        handed.setdefault((to.computation, one.shard), []).append(Handed(receipt.unit, arrival))
                    if simulation.hits("recompute", driver.index, number):
                        again.append((number, partial(attempt, "again")))
                    number += 1
        for number, rerun in again:
            receipts[number] = rerun().receipt
        return list(receipts.values())

    def _attempt(
        self,
        index: int,
        order: EpochOrder,
        group: Group,
        shard: int,
        number: int,
        injected: Injected,
        handed: Mapping[str, list[Handed]],
        attempt: str,
    ) -> Result:
        """One attempt at a task, on some host."""
        driver, simulation = self._driver, self._driver.simulation
        dice = simulation.dice("attempt", order.epoch, number, attempt)
        task = Task(
            driver.compiled,
            order,
            group,
            shard,
            shards=driver.epochs.shards,
            storage=simulation.storage,
            cache=dice.choice(self._hosts),
            point=lambda name: simulation.at_task(index, name, number),
        )
        result = task.run(ListInputs(driver.compiled, injected, group, shard, handed, dice, order.guards.order))
        for delta in result.receipt.work.values():
            delta.millis = 0.0  # nothing is ever slow here
        return result
