"""What the page shows, as data: from manifests that runs have written, and bounded whatever a pipeline has."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pagekit import BEGIN, Shop

from millstream.core.topology import EdgeState
from millstream.engine.metrics import EpochStats
from millstream.monitoring.graph_data import MOST_COMPUTATIONS, MOST_STREAMS
from millstream.monitoring.history import MOST_BARS, MOST_POINTS, RecentHistory
from millstream.monitoring.observer import Observer
from millstream.monitoring.page_data import MOST_CELLS, page_data
from millstream.state import heartbeat
from millstream.state.heartbeat import Alive, Figures, ShardLoad
from millstream.state.manifest import ComputationState, Manifest, ShardState
from millstream.state.manifest_log import ManifestLog
from millstream.state.segment import SegmentRef
from millstream.state.storage import open_storage
from millstream.status.report import Overview, status_of

GOLDEN = Path(__file__).parent / "golden.json"

#: What is another in every run.
VOLATILE = re.compile(
    r"(^|\.)(checkpoint|id|at|host|run|committed_at|looked_at|clock|epoch|epoch_millis|millis|rate|place|written|log_bytes|segments|bytes|"
    r"records_per_second|epochs_per_second|bars|times|heat|busy_shards|mode|compactions|state_caches|sentence|health|why)$"
)


def steady(value: Any, path: str = "") -> Any:
    """A page's data without what depends on clocks, processes and how records fell into epochs."""
    if isinstance(value, dict):
        return {name: "*" if VOLATILE.search(f"{path}.{name}") else steady(one, f"{path}.{name}") for name, one in value.items()}
    return [steady(one, path) for one in value] if isinstance(value, list) else value


@pytest.mark.crash
def test_the_data_of_a_run_are_those_that_were_agreed_on(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        shop.give(300)
        shop.wait()
        shop.give(1, do="hold", key="holder")
        shop.give(2, do="fail")
        shop.give(100)
        shop.wait()
        shop.give(3, at=BEGIN - 9_000, key="late")
        shop.give(1)
        shop.wait()
    _, _, data, encoded = Observer(ManifestLog(open_storage(str(shop.checkpoint)))).see()
    assert data.word == "stopped"
    found = steady(json.loads(encoded))
    if os.environ.get("MILLSTREAM_WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(GOLDEN.read_text()), "MILLSTREAM_WRITE_GOLDEN=1 writes it anew: look at the difference"


@pytest.mark.crash
def test_who_holds_time_back_is_followed_to_the_key(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        shop.give(100)
        shop.give(1, do="hold", key="holder")
        shop.give(200)
        shop.wait()
        shop.give(10)
        shop.wait()
        data = Observer(shop.handle._epochs.log, shop.handle.look).see().data
        assert data.path[-1] == "computation:Totals" and "key 'holder'" in data.path_text
        held = [(edge.source, edge.target) for edge in data.streams if edge.holds]
        assert ("computation:Totals", "computation:names") in held
        totals = next(one for one in data.computations if one.name == "Totals")
        names = next(one for one in data.computations if one.name == "names")
        assert totals.health == "holding" and totals.own_lag and names.own_lag == 0 and names.inherited_lag and names.lag == totals.lag
        shop.give(1, do="release", key="holder")
        shop.give(10)
        shop.wait()
        shop.give(1)
        shop.wait()
        time.sleep(1.0)
        data = Observer(shop.handle._epochs.log, shop.handle.look).see().data
        assert not any(one.health == "holding" for one in data.computations)


def overview(manifest: Manifest | None, sign: Alive | None = None, alive: bool = False) -> Overview:
    status = status_of("p", manifest)
    return Overview("/c", "id", 4, None if manifest is None else manifest.token, status, alive, sign)


def sign(state: str, age: int = 0) -> Alive:
    return Alive(run="1-a", at=int(time.time() * 1000) - age, host="h", pid=7, state=state)


@pytest.mark.parametrize(
    ("of", "word"),
    [
        (overview(None), "new"),
        (overview(Manifest(3, "1-a", 0, [(0, "1-a")])), "stopped"),
        (overview(Manifest(3, "1-a", 0, [(0, "1-a")]), sign("running"), alive=True), "running"),
        (overview(Manifest(3, "1-a", 0, [(0, "1-a")]), sign("running", 60_000)), "killed"),
        (overview(Manifest(3, "1-a", 0, [(0, "1-a")]), sign("failed")), "failed"),
        (overview(Manifest(3, "1-a", 0, [(0, "1-a")], drained=True), sign("ended")), "ended"),
    ],
)
def test_a_pipeline_is_told_in_one_word(of: Overview, word: str) -> None:
    manifest = None if of.token is None else Manifest(3, "1-a", 0, [(0, "1-a")], drained=of.status.drained)
    data = page_data(of, manifest, RecentHistory(), now=0)
    assert data.word == word and data.sentence.endswith(".")


def test_a_run_that_was_replaced_says_so() -> None:
    manifest = Manifest(3, "1-a", 0, [(0, "1-a")])
    live = status_of("p", manifest)
    live.state = "failed"
    data = page_data(overview(manifest), manifest, RecentHistory(), now=0, live=live, error="Fenced: run 2-b owns it")
    assert data.word == "replaced" and "2-b" in data.sentence


def wide(computations: int, shards: int) -> Manifest:
    """A manifest of a pipeline that is large in both ways, each computation behind the other."""
    one = ShardState(segments=[SegmentRef("u", 0, 9, 1, 0, 0)], keys=3, low_watermark=5)
    found = {
        f"c{at}": ComputationState(
            low_watermark=10_000 - at, shards=[one] * shards, feeds=[f"c{at - 1}" if at else "in"], streams=[f"c{at}"], output=10_000 - at
        )
        for at in range(computations)
    }
    from millstream.core.watermark import Progress

    return Manifest(
        9,
        "1-a",
        20_000,
        [(0, "1-a")],
        injectors={"in": Progress(newest=20_000, watermark=10_000, used=10_000, records=5)},
        computations=found,
    )


def test_a_pipeline_of_any_size_is_a_page_of_bounded_size() -> None:
    history = RecentHistory()
    manifest = wide(computations=400, shards=4_000)
    for epoch in range(3 * MOST_POINTS):
        history.add(
            msgspec.structs.replace(manifest, epoch=epoch, committed_at=epoch * 100), [EpochStats(epoch, 1, 5.0, True, at=epoch * 1_000)]
        )
    figures = Figures(shards=[ShardLoad(at, float(at), 1) for at in range(512)], busy=4_000)
    data = page_data(overview(manifest, msgspec.structs.replace(sign("running"), figures=figures), True), manifest, history, now=0)
    assert len(data.computations) == MOST_COMPUTATIONS and data.more_computations == 150
    assert len(data.streams) <= MOST_STREAMS and len(data.heat) <= MOST_CELLS and len(data.bars) == MOST_BARS
    assert {one.name for one in data.computations} == {f"c{at}" for at in range(150, 400)}  # those that are furthest behind
    assert sum(cell.keys for cell in data.heat) == 400 * 4_000 * 3
    size = len(msgspec.json.encode(data))
    assert size < 400_000, size


def test_only_the_reader_of_an_edge_that_stores_is_slow() -> None:
    manifest = wide(12, 1)
    manifest.edges = {"c0 → c1": EdgeState(), "c10 → c11": EdgeState(stored=True)}
    data = page_data(overview(manifest, sign("running"), alive=True), manifest, RecentHistory(), now=0)
    assert [one.name for one in data.computations if one.health == "slow"] == ["c11"]  # and not c1


def test_speeds_are_differences_between_two_looks() -> None:
    history = RecentHistory()
    for at in range(12):
        manifest = wide(2, 1)
        manifest.epoch, manifest.committed_at = at, at * 1_000
        manifest.computations["c0"].records = 50 * at
        history.add(manifest)
    running = overview(manifest, sign("running"), alive=True)
    data = page_data(running, manifest, history, now=11_000)
    assert [one.rate for one in data.computations] == [50.0, 0.0] and [one.rate for one in data.streams] == [50.0, 0.0]
    silent = page_data(running, manifest, history, now=16_000)
    assert [one.rate for one in silent.computations] == [33.33, 0.0]  # nothing has come for five seconds
    assert [one.rate for one in page_data(running, manifest, history, now=60_000).computations] == [0.0, 0.0]
    stopped = page_data(overview(manifest), manifest, history, now=0)
    assert [one.rate for one in stopped.computations] == [0.0, 0.0]  # what it had once is no speed


def test_epochs_of_a_second_are_one_bar_and_a_new_run_begins_another() -> None:
    history = RecentHistory()
    manifest = Manifest(5, "2-b", 0, [(0, "1-a"), (4, "2-b")])
    history.add(manifest, [EpochStats(at, 10, 4.0 + at, True, at=1_000 + at, phases={"step": float(at)}, tries=at == 2) for at in range(6)])
    one, two = history.bars
    assert (one.first, one.last, one.epochs, one.records, one.tries, one.is_new_run) == (0, 3, 4, 40, 1, False)
    assert (two.first, two.last, two.is_new_run) == (4, 5, True)
    assert one.phases == {"step": 1.5} and one.millis == 5.5
    history.add(manifest, [EpochStats(5, 10, 4.0, True, at=1_005)])
    assert len(history.bars) == 2  # what was added before is passed over


@pytest.mark.crash
def test_whoever_comes_later_to_a_checkpoint_finds_its_past_and_what_its_driver_measures(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        for _ in range(6):
            shop.give(50)
            shop.wait()
        shop.handle._sign("running")
        data = Observer(ManifestLog(open_storage(str(shop.checkpoint)))).see().data
        assert data.word == "running" and len(data.bars) >= 5 and data.bars[-1].last == data.epoch
        assert (
            any(bar.phases["step"] > 0 for bar in data.bars) and any(cell.millis > 0 for cell in data.heat) and data.mode.name == "resident"
        )
        assert heartbeat.last_sign(open_storage(str(shop.checkpoint))) is not None


def test_another_checkpoint_in_the_place_of_one_begins_anew() -> None:
    history = RecentHistory()
    for epoch in (35, 36, 0, 1):
        history.add(
            Manifest(epoch, "1-a", 0, [(0, "1-a")], committed_at=1_000 * epoch), [EpochStats(epoch, 1, 1.0, True, at=1_000 * epoch)]
        )
    assert [point.epoch for point in history.points] == [0, 1] and [bar.first for bar in history.bars] == [0, 1]


class Hanging(ManifestLog):
    """A store that does not answer any more."""

    is_away = False

    def epochs(self) -> list[int]:
        if self.is_away:
            raise OSError("the store is away")
        return super().epochs()


@pytest.mark.crash
def test_what_cannot_be_read_any_more_shows_what_it_was_and_counts_as_unreadable(tmp_path: Path) -> None:
    with Shop(tmp_path) as shop:
        shop.give(10)
        shop.wait()
        shop.handle._sign("running")
        log = Hanging(open_storage(str(shop.checkpoint)))
        observer = Observer(log)
        assert observer.see().data.is_live and observer.see().look.overview.alive
        log.is_away = True
        deadline = time.monotonic() + 20
        while not observer.see().look.failed:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        view = observer.see()
        assert view.data.word == "unreadable" and "the store is away" in view.data.sentence and view.data.records == 10
        assert not view.data.is_live and not view.look.overview.alive
        log.is_away = False
        while observer.see().look.failed:
            assert time.monotonic() < deadline
            time.sleep(0.05)
