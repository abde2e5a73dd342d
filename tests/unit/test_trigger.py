"""When planned epochs begin, and when they do not: nothing is waited for too long, and nothing spins."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from plannedkit import KitEpochs, KitRunner, Told, pipeline, published

import millstream as ms
from millstream.core.outcome import Counts
from millstream.engine.receipts import Work
from millstream.engine.trigger import Trigger
from millstream.state.memory_storage import MemoryStorage


def paced(watermark: ms.watermarks.Policy | None = None, rows: list[int] | None = None) -> tuple[KitEpochs, Trigger]:
    epochs = KitEpochs(pipeline(watermark=watermark).program(), MemoryStorage(), {"in": Told(rows)})
    return epochs, epochs.trigger(bounded=False)


def quiet(epochs: KitEpochs, trigger: Trigger) -> int:
    """Turns until nothing is left to do at this time; the last epoch."""
    for _ in range(20):
        trigger._looked = -1e9  # a second has passed
        if not trigger.turn():
            assert epochs.latest is not None
            return epochs.latest.epoch
    raise AssertionError("it spins")


def test_a_watermark_that_a_callable_declares_moves_on_while_nothing_comes() -> None:
    said = [100]
    epochs, trigger = paced(ms.watermarks.declared(lambda: said[0]), [1])
    quiet(epochs, trigger)
    assert epochs.latest is not None and epochs.latest.computations["Passes"].low_watermark == 100
    said[0] = 200
    quiet(epochs, trigger)
    assert epochs.latest.computations["Passes"].low_watermark == 200


def test_an_injector_that_falls_silent_becomes_idle_in_time() -> None:
    epochs, trigger = paced(ms.watermarks.bounded("0ms", idle="10s"), [1])
    last = quiet(epochs, trigger)
    epochs.now += 5_000
    assert quiet(epochs, trigger) == last
    epochs.now += 5_000
    assert quiet(epochs, trigger) > last
    assert epochs.latest is not None and epochs.latest.injectors["in"].idle


@pytest.mark.parametrize("policy", [ms.watermarks.bounded("0ms"), ms.watermarks.declared(lambda: None)])
def test_nothing_happens_where_time_changes_nothing(policy: ms.watermarks.Policy) -> None:
    epochs, trigger = paced(policy, [1])
    last = quiet(epochs, trigger)
    epochs.now += 3_600_000
    assert quiet(epochs, trigger) == last


class Restless(KitRunner):
    """A wall-clock timer is due in every epoch, and each emits a row."""

    def run(self, input, order):  # type: ignore[no-untyped-def]
        assert len(self.made) < 50, "it does not end"
        receipts = super().run(input, order)
        receipts[0].work["Passes"] = Work(segment=None, counts=Counts(next_wall=order.now), produced=1)
        for emission in self.program.topology.emissions:
            receipts[0].parts[emission.name] = self.part(emission, [order.epoch], order)
        return receipts


def test_a_run_that_always_has_something_to_do_can_be_stopped(tmp_path: Path) -> None:
    sink = ms.sinks.files(tmp_path, roll="5s")
    epochs = KitEpochs(pipeline(sink).program(), MemoryStorage(), {"in": Told([1])}, runner=Restless)
    trigger = epochs.trigger(bounded=False)
    stop = iter([False, False, True])
    trigger.run(lambda: next(stop))
    assert epochs.latest is not None and not epochs.is_left_open()
    written = sorted(
        msgspec.json.decode(line)["value"] for name in published(tmp_path) for line in (tmp_path / name).read_bytes().splitlines()
    )
    assert written == epochs.kit.made


def test_what_is_published_and_taken_away_is_not_published_again(tmp_path: Path) -> None:
    """A run that is killed while nothing comes in."""
    storage, sink = MemoryStorage(), ms.sinks.files(tmp_path, roll="5s")
    epochs = KitEpochs(pipeline(sink).program(), storage, {"in": Told([1])})
    trigger = epochs.trigger(bounded=False)
    quiet(epochs, trigger)
    epochs.now += 5_000
    quiet(epochs, trigger)
    for name in published(tmp_path):
        (tmp_path / name).unlink()
    KitEpochs(pipeline(sink).program(), storage, {"in": Told([1])}).resume()
    assert published(tmp_path) == []


def test_the_same_behind_a_drain(tmp_path: Path) -> None:
    storage, sink = MemoryStorage(), ms.sinks.files(tmp_path, roll="5s")
    epochs = KitEpochs(pipeline(sink).program(), storage, {"in": Told([1])}, bounded=True)
    epochs.trigger(bounded=True).run(lambda: False)
    epochs.drain(lambda: False)
    assert len(published(tmp_path)) == 1 and epochs.latest is not None and epochs.latest.drained
    for name in published(tmp_path):
        (tmp_path / name).unlink()
    again = KitEpochs(pipeline(sink).program(), storage, {"in": Told([1])}, bounded=True)
    again.resume()
    again.trigger(bounded=True).run(lambda: False)
    again.drain(lambda: False)
    assert published(tmp_path) == [] and again.latest == epochs.latest
