"""When planned epochs begin, and when they do not: nothing is waited for too long, and nothing spins."""

from __future__ import annotations

import pytest
from plannedkit import KitEpochs, Told, pipeline

import millstream as ms
from millstream.engine.pacing import Pacing
from millstream.state.memory import MemoryStorage


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
