"""The order of what the sink of Kafka does, in a thousand schedules: drivers are killed and replaced at any step, answers are lost, an old run goes on in the
middle of a new one's steps. And three wrong orders, which the schedules find."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafkafake
import msgspec
import pytest

from effort import first_seed, seeds
from millstream.errors import MillstreamError
from millstream.simulation.sink_checks import Stage, default_row
from millstream.sinks.kafka import MARKERS, KafkaSink


class Killed(BaseException):
    """A driver's process is gone."""


class CheckedSink(KafkaSink):
    def check(self) -> None:
        """The topics are there."""


class MarkerFirst(CheckedSink):
    """A twin: it reads the marker before older producers are shut out."""

    def begin(self, writer: Any) -> int | None:
        self.early = super()._read_marker(f"millstream.{writer.name}.0")
        return super().begin(writer)

    def _read_marker(self, id: str) -> Any:
        return self.early


class MarkerApart(CheckedSink):
    """A twin: the marker is in a transaction of its own."""

    def _commit_transaction(self, producer: Any, failed: Any) -> None:
        (transaction,) = [one for _, one in producer_states(producer) if one is not None]
        entries = [entry for entry in THE.broker.log if entry.transaction is transaction]
        apart = kafkafake.Transaction()
        for entry in entries:
            if entry.topic == MARKERS:
                entry.transaction = apart
        super()._commit_transaction(producer, failed)
        THE.broker.point("between")
        apart.state = kafkafake.COMMITTED


def producer_states(producer: Any) -> list[Any]:
    return [THE.broker.producers[producer._id]]


class THE:
    """What the schedule that runs is about."""

    broker: kafkafake.Broker


class Schedule:
    """Drivers on one checkpoint, by lot. forgets: the topic of the markers expires now and then."""

    def __init__(self, folder: Path, seed: int, kind: type[KafkaSink], forgets: bool) -> None:
        self.dice, self.kind, self.forgets = random.Random(seed), kind, forgets
        self.stage = Stage(folder, default_row)
        self.broker = THE.broker = kafkafake.Broker(self.point)
        self.epochs: list[tuple[int, Any]] = []  # committed in the checkpoint
        self.depth, self.calm = 0, False

    def point(self, name: str) -> None:
        lot = self.dice.random()
        if self.calm:
            return
        if lot < 0.06:
            raise Killed
        if lot < 0.1 and self.depth < 2:  # stopped here, while others take over
            self.depth += 1
            self.driver()
            self.depth -= 1
        elif lot < 0.14 and name in ("committed", "initialised"):
            raise kafkafake.KafkaException(kafkafake.KafkaError(kafkafake.KafkaError._TIMED_OUT, retriable=name == "committed"))
        elif lot < 0.16:
            self.broker.abort_all()

    def driver(self) -> None:
        """A run: publishes what was committed last, and some epochs of its own, until it is done, killed or replaced."""
        try:
            run = self.stage.run(self.kind("fake:1", "rows"))
            if self.epochs:
                run.commit(*self.epochs[-1], redo=True)
            for _ in range(self.dice.randrange(3)):
                epoch = len(self.epochs)
                parts = run.staged(epoch, range(4 * epoch, 4 * epoch + 4))
                if self.stage.runs.superseded(run.token):
                    return  # the commit would be refused
                self.epochs.append((epoch, parts))
                run.commit(epoch, parts)
        except (Killed, MillstreamError):
            pass
        if self.forgets and self.dice.random() < 0.3:
            self.broker.forget(MARKERS)

    def run(self) -> bool:
        """Whether readers find each row once, those of one key in their order."""
        for _ in range(6):
            self.driver()
        self.calm = True
        self.driver()
        found = [msgspec.json.decode(entry.message_value)["n"] for entry in self.broker.committed("rows")]
        by_key: dict[int, list[int]] = {}
        for n in found:
            by_key.setdefault(n % 5, []).append(n)
        return sorted(found) == [*range(4 * len(self.epochs))] and all(some == sorted(some) for some in by_key.values())


@pytest.fixture(autouse=True)
def without_waiting() -> Iterator[None]:
    stamina = pytest.importorskip("stamina")
    stamina.set_testing(True, attempts=6, cap=True)
    yield
    stamina.set_testing(False)


def wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: range, kind: type[KafkaSink], forgets: bool = False) -> list[int]:
    """The seeds with which rows are lost, doubled or out of order."""
    found = []
    for seed in numbers:
        schedule = Schedule(tmp_path / str(seed), seed, kind, forgets)
        monkeypatch.setitem(sys.modules, "confluent_kafka", schedule.broker.module())
        if not schedule.run():
            found.append(seed)
    return found


def test_rows_are_there_once_and_in_order_in_every_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong(tmp_path, monkeypatch, seeds(1000), CheckedSink) == []


@pytest.mark.parametrize(("kind", "forgets"), [(MarkerFirst, False), (MarkerApart, False), (CheckedSink, True)])
def test_wrong_orders_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[KafkaSink], forgets: bool) -> None:
    """A marker that is read too early, that is in a transaction of its own, or that expires."""
    assert wrong(tmp_path, monkeypatch, range(first_seed(), first_seed() + 60), kind, forgets)
