"""The demo without Spark: the generator, the pipeline on the local runner, the report."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import millstream as ms
from demos import BUCKET, DAY, picture
from demos.report import Found, match, pair, show
from demos.traffic import HiddenAnomaly, Traffic, Truth, World, generate, inject, write
from demos.zeitgeist import FORGET, PATIENCE, build

FEW = Traffic(seed=3, terms=8, seconds=300, rate=90.0, spikes=3, dips=2, files=10)
QUIET = msgspec.structs.replace(FEW, spikes=0, dips=0)
RARE = Traffic(seed=5, terms=10, seconds=200, rate=1.5, spikes=2, dips=0, files=3)
"""Terms that are silent for longer than `PATIENCE`, now and then."""


def queries(traffic: Traffic) -> tuple[list[dict[str, Any]], list[HiddenAnomaly]]:
    """The rows in order of arrival, and what was injected."""
    world = World(traffic)
    injected = inject(world)
    term, at = generate(world, injected)
    rows = [{"term": world.names[t], "at": a, "id": f"q{n}"} for n, (t, a) in enumerate(zip(term.tolist(), at.tolist(), strict=True))]
    return rows, [anomaly for _, anomaly in injected]


def run(
    rows: list[dict[str, Any]], epochs: int = 10, tracked: tuple[str, ...] = (), drain: bool = True, until: int = ms.END
) -> ms.testing.LocalRunner:
    """Runs the pipeline on rows that arrive in equal slices."""
    runner = ms.testing.LocalRunner(build("queries", "output", tracked=tracked, until=until))
    for part in np.array_split(np.arange(len(rows)), epochs):
        runner.push("queries", *(rows[i] for i in part))
        runner.epoch()
    if drain:
        runner.drain()
    return runner


def found(runner: ms.testing.LocalRunner) -> list[Found]:
    """The anomalies that a run produced."""
    return pair(sorted((value for _, value, _ in runner.output("anomalies")), key=lambda value: value["at"]))


def steady(seconds: int, per_second: int, term: str = "tea") -> list[dict[str, Any]]:
    """Queries at an even pace from the beginning of event time 100 s on."""
    gap = BUCKET // per_second
    return [{"term": term, "at": 100_000 + n * gap, "id": f"{term}-{n}"} for n in range(seconds * per_second)]


class TestTraffic:
    def test_same_seed_same_files(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            write(FEW, tmp_path / name)
        files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
        assert len(files) == FEW.files + 1
        assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)

    def test_another_seed_is_another_world(self) -> None:
        assert queries(FEW)[0][:50] != queries(msgspec.structs.replace(FEW, seed=4))[0][:50]

    def test_disorder_is_there_and_bounded(self) -> None:
        _, at = generate(World(FEW), [])
        behind = np.maximum.accumulate(at) - at
        assert 0 < behind.max() <= FEW.disorder

    def test_files_hold_arrival_order_and_their_ages_follow_it(self, tmp_path: Path) -> None:
        truth = write(FEW, tmp_path)
        files = sorted((tmp_path / "queries").iterdir())
        assert [f.stat().st_mtime for f in files] == sorted({f.stat().st_mtime for f in files})
        rows = [row for f in files for row in pq.read_table(f).to_pylist()]
        assert rows == [row | {"id": f"q{n:08d}"} for n, row in enumerate(queries(FEW)[0])]
        assert truth.queries == len(rows)

    def test_complete_traffic_is_kept_and_other_traffic_refused(self, tmp_path: Path) -> None:
        (tmp_path / ".queries.unfinished").mkdir()
        made = write(FEW, tmp_path)
        ages = [f.stat().st_ctime_ns for f in sorted((tmp_path / "queries").iterdir())]
        assert write(FEW, tmp_path) == made
        assert [f.stat().st_ctime_ns for f in sorted((tmp_path / "queries").iterdir())] == ages
        with pytest.raises(ValueError, match="other traffic"):
            write(QUIET, tmp_path)

    def test_injected_anomalies_keep_their_distance(self) -> None:
        traffic = Traffic()
        chosen = inject(World(traffic))
        assert [a.kind for _, a in chosen].count("dip") == traffic.dips
        for term, anomaly in chosen:
            assert anomaly.begin >= traffic.begin + traffic.quiet
            others = [a for t, a in chosen if t == term and a is not anomaly]
            assert all(a.begin >= anomaly.end + DAY // 2 or anomaly.begin >= a.end + DAY // 2 for a in others)

    def test_no_room_is_said(self) -> None:
        with pytest.raises(ValueError, match="room for"):
            inject(World(msgspec.structs.replace(FEW, dips=60)))


class TestZeros:
    def test_zeros_follow_the_last_query_for_a_while(self) -> None:
        runner = run([{"term": "tea", "at": 100_500, "id": "q"}], epochs=1, tracked=("tea",), drain=False)
        runner.advance_watermark("queries", 200_000)
        wanted = [{"term": "tea", "at": 100_000 + n * BUCKET, "actual": 1 if n == 0 else 0} for n in range(PATIENCE // BUCKET + 1)]
        assert [value for _, value, _ in runner.output("anomalies.forecasts")] == wanted
        assert runner.state("counts") == {}

    def test_the_end_of_the_traffic_brings_no_zeros(self) -> None:
        rows = [{"term": "tea", "at": at, "id": str(at)} for at in (100_500, 103_000)]
        told = [value for _, value, _ in run(rows, epochs=1, tracked=("tea",), until=104_000).output("anomalies.forecasts")]
        assert [(value["at"], value["actual"]) for value in told] == [(100_000, 1), (101_000, 0), (102_000, 0), (103_000, 1)]


class TestEpochs:
    @pytest.mark.slow
    def test_counts_and_verdicts_are_the_same_in_any_epochs(self) -> None:
        rows, injected = queries(RARE)
        ms.testing.assert_same_in_any_epochs(build("queries", "output", tracked=[injected[0].term], until=RARE.end), rows)
        assert len(found(run(rows, until=RARE.end))) == len(injected)

    @pytest.mark.slow
    def test_a_term_that_comes_back_after_it_was_forgotten(self) -> None:
        back = [{"term": "tea", "at": at, "id": f"back {at}"} for at in range(180_000 + FORGET, 185_000 + FORGET, 500)]
        ms.testing.assert_same_in_any_epochs(build("queries", "output", tracked=["tea"]), [*steady(65, 2), *back])

    @pytest.mark.slow
    def test_the_end_falls_into_any_epoch(self) -> None:
        """A drain may come before the last queries have moved the low watermark, so seconds of the traffic may be told in it."""
        rows, injected = queries(FEW)
        tracked = (injected[0].term,)
        ends = [run(rows, epochs, tracked, until=FEW.end) for epochs in (1, 4, 45)]
        for runner in ends[1:]:
            for stream in ("counts", "anomalies", "anomalies.forecasts"):
                assert sorted(runner.output(stream), key=repr) == sorted(ends[0].output(stream), key=repr)
            assert runner.state("anomalies") == ends[0].state("anomalies") != {}


class TestDetector:
    def test_finds_what_was_injected_and_nothing_else(self) -> None:
        rows, injected = queries(FEW)
        made = match(injected, found(run(rows, until=FEW.end)))
        assert {i.kind for i in injected} == {"spike", "dip"}
        assert (made.recall, made.precision) == (1.0, 1.0)
        assert all(f is not None and f.end is not None and abs(f.end - i.end) < 12_000 for i, f in made.matched)

    def test_quiet_traffic_raises_no_alarm(self) -> None:
        rows, _ = queries(QUIET)
        assert found(run(rows, until=FEW.end)) == []

    @pytest.mark.slow
    def test_a_crash_changes_nothing(self) -> None:
        rows, _ = queries(FEW)
        runner = ms.testing.LocalRunner(build("queries", "output"))
        for number, part in enumerate(np.array_split(np.arange(len(rows)), 10)):
            runner.push("queries", *(rows[i] for i in part))
            if number % 3 == 1:
                with pytest.raises(ms.testing.SimulatedCrash):
                    runner.epoch(crash=True)
            runner.epoch()
        runner.drain()
        assert runner.records("anomalies") == run(rows).records("anomalies")

    def test_forecasts_are_of_tracked_terms_only(self) -> None:
        rows, injected = queries(FEW)
        runner = run(rows, tracked=(injected[0].term,))
        forecasts = runner.output("anomalies.forecasts")
        assert {key for key, _, _ in forecasts} == {injected[0].term}
        judged = [value for _, value, _ in forecasts if "expected" in value]
        assert len(forecasts) - len(judged) == DAY // BUCKET
        assert np.mean([v["expected"] for v in judged]) == pytest.approx(np.mean([v["actual"] for v in judged]), rel=0.3)

    def test_a_term_that_stays_away_is_forgotten(self) -> None:
        runner = run([*steady(70, 2), *steady(70 + FORGET // BUCKET + 60, 2, "coffee")], epochs=5, drain=False)
        assert runner.state("anomalies", "tea") is not None
        last = max(at for _, _, at in runner.output("counts"))
        runner.advance_watermark("queries", last + 1)
        assert set(runner.state("anomalies")) == {"coffee"}


class TestReport:
    injected = [
        HiddenAnomaly("tea", "spike", 10_000, 20_000, 5.0),
        HiddenAnomaly("tea", "dip", 60_000, 70_000, 0.03),
        HiddenAnomaly("rum", "dip", 10_000, 20_000, 0.03),
    ]

    @staticmethod
    def event(term: str, kind: str, event: str, at: int) -> dict[str, Any]:
        return {"term": term, "kind": kind, "event": event, "at": at, "since": at - 3_000, "expected": 5.0, "actual": 50}

    def test_matching(self) -> None:
        events = [
            self.event("tea", "spike", "begin", 13_000),
            self.event("rum", "spike", "begin", 14_000),
            self.event("tea", "spike", "end", 16_000),
            self.event("tea", "spike", "begin", 19_000),
            self.event("tea", "dip", "begin", 72_000),
            self.event("rum", "dip", "begin", 90_000),
        ]
        made = match(self.injected, pair(events))
        assert [(i.term, i.kind, f and f.at, f and f.end) for i, f in made.matched] == [
            ("rum", "dip", None, None),
            ("tea", "spike", 13_000, 16_000),
            ("tea", "dip", 72_000, None),
        ]
        assert [(f.term, f.at) for f in made.false] == [("rum", 14_000), ("tea", 19_000), ("rum", 90_000)]
        assert (made.recall, made.precision, made.delays) == (2 / 3, 2 / 5, [3_000, 12_000])

    def test_nothing_injected_nothing_found(self) -> None:
        assert (match([], []).recall, match([], []).precision) == (1.0, 1.0)

    def test_the_table_says_what_its_times_are(self) -> None:
        begin = FEW.begin
        injected = HiddenAnomaly("tea", "spike", begin + 150_000, begin + 160_000, 5.0)
        seen = Found("tea", "spike", begin + 153_000, begin + 150_000, begin + 163_500, 50, 10.0)
        console = Console(width=160, file=io.StringIO(), record=True)
        show(match([injected], [seen]), Truth(FEW, [injected], 28_000), console)
        text = console.export_text()
        assert text.count("150.0") == 1 and " 3.0 " in text and " 3.5 " in text
        assert "Times are seconds of the demo. Its traffic lasts 300 s, and a day of the demo is 60 s" in text


class TestPicture:
    @pytest.mark.slow
    def test_its_times_are_those_of_the_table(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its axes are read before they become a picture."""
        plt = pytest.importorskip("matplotlib.pyplot")
        truth = write(FEW, tmp_path)
        runner = run(queries(FEW)[0], tracked=tuple(picture.tracked(truth)), until=FEW.end)
        (tmp_path / "forecasts").mkdir()
        lines = [msgspec.json.encode({"key": k, "timestamp": t, "value": v}) for k, v, t in runner.output("anomalies.forecasts")]
        (tmp_path / "forecasts" / "part-0.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        drawn: list[Any] = []
        monkeypatch.setattr(plt, "close", drawn.append)
        made = match(truth.injected, found(runner))
        assert picture.draw(tmp_path, truth, made, tmp_path / "zeitgeist.png", kills=[77]).stat().st_size > 20_000
        panels = {axis.get_title("left"): axis for axis in drawn[0].axes if axis.get_visible()}
        term = truth.injected[0].term
        assert panels.keys() == {injected.term for injected in truth.injected}
        assert [axis.get_xlim() for axis in panels.values()] == [(0, FEW.seconds)] * len(panels)
        assert {axis.get_xlabel() for axis in panels.values()} == {"", "time of the demo, s (a day is 60 s)"}
        begins = [(i.begin - FEW.begin) / 1_000 for i in truth.injected if i.term == term]
        assert {patch.get_x() for patch in panels[term].patches} == set(begins)
        assert all(77 in [x for line in axis.lines for x in line.get_xdata()] for axis in panels.values())


def test_the_command_hands_on_its_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import demos.run
    from demos.__main__ import main

    seen: dict[str, Any] = {}
    monkeypatch.setattr(demos.run, "run", lambda **given: seen.update(given) or 3)
    monkeypatch.setenv("PYTHONPATH", "")
    assert main(["--output", str(tmp_path), "--seed", "5", "--small"]) == 3
    assert seen == {"output": tmp_path, "seed": 5, "small": True, "fresh": False}
