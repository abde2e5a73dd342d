"""When planned epochs begin, and when they do not: nothing is waited for too long, and nothing spins."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from plannedkit import KitEpochs, Told, pipeline, published

import millstream as ms
from millstream.core.outcome import Counts
from millstream.engine.receipts import Work
from millstream.engine.trigger import Pacing
from millstream.state.memory_storage import MemoryStorage


def paced(watermark: ms.watermarks.Policy | None = None, rows: list[int] | None = None) -> tuple[KitEpochs, Pacing]:
    epochs = KitEpochs(pipeline(watermark=watermark).program(), MemoryStorage(), {"in": Told(rows)})
    return epochs, Pacing(epochs, bounded=False, every=0.0, eager=False)


def quiet(epochs: KitEpochs, pacing: Pacing) -> int:
    """Turns until nothing is left to do at this time; the last epoch."""
    for _ in range(20):
        pacing._looked = -1e9  # a second has passed
        if not pacing._turn():
            assert epochs.latest is not None
            return epochs.latest.epoch
    raise AssertionError("it spins")


def test_a_watermark_that_a_callable_declares_moves_on_while_nothing_comes() -> None:
    said = [100]
    epochs, pacing = paced(ms.watermarks.declared(lambda: said[0]), [1])
    quiet(epochs, pacing)
    assert epochs.latest is not None and epochs.latest.computations["Passes"].low_watermark == 100
    said[0] = 200
    quiet(epochs, pacing)
    assert epochs.latest.computations["Passes"].low_watermark == 200


def test_an_injector_that_falls_silent_becomes_idle_in_time() -> None:
    epochs, pacing = paced(ms.watermarks.bounded("0ms", idle="10s"), [1])
    last = quiet(epochs, pacing)
    epochs.now += 5_000
    assert quiet(epochs, pacing) == last
    epochs.now += 5_000
    assert quiet(epochs, pacing) > last
    assert epochs.latest is not None and epochs.latest.injectors["in"].idle


@pytest.mark.parametrize("policy", [ms.watermarks.bounded("0ms"), ms.watermarks.declared(lambda: None)])
def test_nothing_happens_where_time_changes_nothing(policy: ms.watermarks.Policy) -> None:
    epochs, pacing = paced(policy, [1])
    last = quiet(epochs, pacing)
    epochs.now += 3_600_000
    assert quiet(epochs, pacing) == last


class Restless(KitEpochs):
    """A wall-clock timer is due in every epoch, and each emits a row."""

    def job(self, takes, order):  # type: ignore[no-untyped-def]
        assert len(self.made) < 50, "it does not end"
        receipts = super().job(takes, order)
        receipts[0].work["Passes"] = Work(segment=None, counts=Counts(next_wall=self.now), produced=1)
        for emission in self.topology.emissions:
            receipts[0].parts[emission.name] = self._part(emission, [order.epoch], order)
        return receipts


def test_a_run_that_always_has_something_to_do_can_be_stopped(tmp_path: Path) -> None:
    sink = ms.sinks.files(tmp_path, roll="5s")
    epochs = Restless(pipeline(sink).program(), MemoryStorage(), {"in": Told([1])})
    pacing = Pacing(epochs, bounded=False, every=0.0, eager=False)
    stop = iter([False, False, True])
    pacing.run(lambda: next(stop))
    assert epochs.latest is not None and not epochs.is_left_open()
    written = sorted(
        msgspec.json.decode(line)["value"] for name in published(tmp_path) for line in (tmp_path / name).read_bytes().splitlines()
    )
    assert written == epochs.made


def test_what_is_published_and_taken_away_is_not_published_again(tmp_path: Path) -> None:
    """A run that is killed while nothing comes in."""
    storage, sink = MemoryStorage(), ms.sinks.files(tmp_path, roll="5s")
    epochs = KitEpochs(pipeline(sink).program(), storage, {"in": Told([1])})
    pacing = Pacing(epochs, bounded=False, every=0.0, eager=False)
    quiet(epochs, pacing)
    epochs.now += 5_000
    quiet(epochs, pacing)
    for name in published(tmp_path):
        (tmp_path / name).unlink()
    KitEpochs(pipeline(sink).program(), storage, {"in": Told([1])}).resume()
    assert published(tmp_path) == []


def test_the_same_behind_a_drain(tmp_path: Path) -> None:
    storage, sink = MemoryStorage(), ms.sinks.files(tmp_path, roll="5s")
    epochs = KitEpochs(pipeline(sink).program(), storage, {"in": Told([1])}, bounded=True)
    Pacing(epochs, bounded=True, every=0.0, eager=False).run(lambda: False)
    epochs.drain(lambda: False)
    assert len(published(tmp_path)) == 1 and epochs.latest is not None and epochs.latest.drained
    for name in published(tmp_path):
        (tmp_path / name).unlink()
    again = KitEpochs(pipeline(sink).program(), storage, {"in": Told([1])}, bounded=True)
    again.resume()
    Pacing(again, bounded=True, every=0.0, eager=False).run(lambda: False)
    again.drain(lambda: False)
    assert published(tmp_path) == [] and again.latest == epochs.latest
