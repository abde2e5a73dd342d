"""Metrics, traces and logs: every metric has something that moves it, and what is in deploy/ asks for metrics that exist."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pagekit import BEGIN, Shop

import millstream as ms
from millstream.core.dedup import DedupCounts
from millstream.core.topology import EdgeState
from millstream.engine.metrics import EpochStats, Metrics
from millstream.errors import NetworkError
from millstream.monitoring import prometheus
from millstream.monitoring.epoch_feed import EpochFeed, EpochLog, EpochSpans
from millstream.monitoring.observer import Look, Observer
from millstream.monitoring.web_server import tables_of
from millstream.state.heartbeat import Alive, Backlog, Figures, RunMode, ShardLoad, StateCacheStats, TaskSign
from millstream.state.manifest import ComputationState, Manifest, OutputState, Part, ShardState, WaitingParts
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import open_storage
from millstream.status.report import Overview, status_of
from taskkit import Given

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def samples(text: str) -> dict[str, float]:
    """By name and labels, what was told."""
    found = re.findall(r"^(millstream_\w+)(\{.*?\})? ([0-9.eE+-]+|NaN)$", text, re.MULTILINE)
    return {name + labels: float(value) for name, labels, value in found}


def moved(look: Look) -> dict[str, float]:
    """What is told of a look."""

    log: Any = None
    return samples(prometheus.text([prometheus.PipelineCollector([Observer(log, lambda: look)])]))


def looked(manifest: Manifest, sign: Alive) -> Look:
    return Look(Overview("/c", "i", 1, "1-a", status_of("p", manifest), True, sign), manifest)


def test_every_metric_is_moved_by_what_it_is_about() -> None:
    from millstream.core.watermark import Progress

    def manifest(n: int) -> Manifest:
        state = ComputationState(
            low_watermark=BEGIN + n, output=BEGIN + n, records=n, produced=2 * n, fired=3 * n, late=n, late_by={"rows": n}, dead=n, feeds=["rows"],
            dedup=DedupCounts(checked=n, dropped=n), shards=[ShardState(keys=n, timers=n, ids=n, segments=[])],
        )  # fmt: skip
        return Manifest(
            n, f"{n}-a", BEGIN + n, [(0, "1-a")],
            injectors={"rows": Progress(newest=BEGIN + 3 * n, watermark=BEGIN + n, used=BEGIN + n, records=n, idle=n > 1)},
            computations={"C": state}, edges={"s → C": EdgeState(stored=n > 1)}, refused=n, spent={"step": 10.0 * n}, written=n,
            outputs={"out": OutputState("s", "/out/", n)}, waiting={"out": WaitingParts(0, [Part(rows=n)])}, committed_at=BEGIN + n,
        )  # fmt: skip

    def sign(n: int) -> Alive:
        figures = Figures(
            backlogs={"rows": Backlog(n, "files", float(n))}, shards=[ShardLoad(0, n, n), ShardLoad(1, 5.0 * n, n)], busy=2, computations={"C": float(n)},
            published={"out": n}, retries=n, under_way=float(n), compactions={"compacted": n, "failed": n}, state_caches={"C": StateCacheStats(n, n, n, n, n)},
        )  # fmt: skip
        mode = RunMode("resident", losses=n, missing=[0] * n, tasks=[TaskSign(0, "h", 1, [0])] * n)
        return Alive("1-a", BEGIN, "h", 1, "running", mode=mode, figures=figures)

    one, two = moved(looked(manifest(1), sign(1))), moved(looked(manifest(2), sign(2)))
    told = {name.partition("{")[0] for name in one}
    unmoved = {name.partition("{")[0] for name in one if one[name] == two.get(name)}
    assert told == {name for name in prometheus.names() if name != "millstream_epoch_seconds"}
    assert unmoved <= {
        "millstream_driver_alive",
        "millstream_checkpoint_readable",
        "millstream_held_back_by",
        "millstream_waiting",
        "millstream_log_bytes",
    }, unmoved
    assert one['millstream_watermark_lag_seconds{computation="C",pipeline="p"}'] == 0.002
    gone = moved(looked(manifest(1), sign(1))._replace(overview=Overview("/c", "i", 1, "1-a", status_of("p", manifest(1)), False, sign(1))))
    assert (one['millstream_driver_alive{pipeline="p"}'], gone['millstream_driver_alive{pipeline="p"}']) == (1.0, 0.0)
    unread = moved(looked(manifest(1), sign(1))._replace(failed=True))
    assert (one['millstream_checkpoint_readable{pipeline="p"}'], unread['millstream_checkpoint_readable{pipeline="p"}']) == (1.0, 0.0)


def strong(work: Path) -> tuple[ms.Pipeline, Given]:
    class Slow(ms.Computation):
        State = int

        def process_record(self, record: ms.Record) -> None:
            self.state += 1

    p, source = ms.Pipeline("strong"), Given()
    rows = p.inject("rows", source, timestamp="at", id="id")
    first = p.compute(_Onward, rows, key="key", name="First", produces="first", production=ms.STRONG)
    p.compute(Slow, first, key="n", name="Second", produces="second")
    return p, source


class _Onward(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce({"n": record.value["n"]})


@pytest.mark.crash
def test_a_run_tells_what_it_does_and_a_stopped_one_what_it_did(tmp_path: Path) -> None:
    with Shop(tmp_path, metrics="127.0.0.1:0") as shop:
        shop.give(100)
        shop.give(1, do="fail")
        shop.wait()
        server = shop.handle._metrics
        assert server is not None
        with pytest.raises(NetworkError, match=server.address):
            prometheus.MetricsServer([], server.address)
        deadline = time.monotonic() + 20
        while True:
            with urllib.request.urlopen(server.url) as answer:
                found = samples(answer.read().decode())
            if found.get('millstream_epoch_seconds_count{phase="all",pipeline="shop"}') or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        assert found['millstream_records_total{computation="Totals",pipeline="shop"}'] == 101
        assert found['millstream_dead_letters_total{computation="Totals",pipeline="shop"}'] == 1
        assert found['millstream_epoch_seconds_count{phase="all",pipeline="shop"}'] >= 1
        assert found['millstream_log_bytes{computation="Totals",pipeline="shop"}'] > 0
        assert found['millstream_sink_published_epoch{pipeline="shop",sink="totals"}'] == found['millstream_epoch{pipeline="shop"}']
    log = ManifestLog(open_storage(str(shop.checkpoint)))
    stopped = samples(prometheus.text([prometheus.PipelineCollector([Observer(log)])]))
    assert stopped['millstream_driver_alive{pipeline="shop"}'] == 0
    assert stopped['millstream_records_total{computation="Totals",pipeline="shop"}'] == 101
    assert stopped['millstream_epoch_phase_seconds_total{phase="step",pipeline="shop"}'] > 0


@pytest.mark.crash
def test_productions_that_are_stored_for_a_computation_are_told(tmp_path: Path) -> None:
    with Shop(tmp_path, build=strong) as shop:
        shop.give(10)
        shop.wait()
        manifests = ManifestLog(open_storage(str(shop.checkpoint)))
        waiting = [manifests.read(epoch) for epoch in manifests.epochs()]
        most = max(status_of("strong", one).computations[1].waiting for one in waiting)
        assert most == 10 and all(one.computations["Second"].strong == ["first"] for one in waiting)


def test_no_key_and_no_value_is_in_a_metric() -> None:
    labels = {label for _, _, some in prometheus._FAMILIES.values() for label in some}
    assert labels == {"phase", "run", "mode", "injector", "counts", "computation", "stream", "kind", "name", "edge", "sink"}


class Numbers(msgspec.Struct, frozen=True):
    connections: int = 3
    bytes_read: int = 7
    name: str = "n"


def test_servers_tell_by_the_numbers_in_their_statistics() -> None:
    found = samples(prometheus.text([prometheus.StatsCollector("sink", Numbers, gauges=["connections"])]))
    assert found == {"millstream_sink_connections": 3, "millstream_sink_bytes_read_total": 7}


def test_what_a_source_says_of_itself_is_told() -> None:
    class Told(msgspec.Struct):
        server: Numbers = Numbers()
        watermark: int | None = 5
        held_by: str = "somebody"

    class Pushed:
        def stats(self) -> Told:
            return Told()

    found = samples(prometheus.text([prometheus.SourcesCollector("p", {"clicks": Pushed()})]))
    of = '{injector="clicks",pipeline="p"}'
    assert found == {f"millstream_source_{name}{of}": value for name, value in (("connections", 3), ("bytes_read", 7), ("watermark", 5))}


def test_each_epoch_is_handed_on_once_and_in_order() -> None:
    metrics, taken = Metrics(), []
    feed = EpochFeed(metrics, [lambda epochs: taken.extend(one.epoch for one in epochs)])
    for epoch in range(7):
        metrics.add(EpochStats(epoch, 1, 1.0, True))
        if epoch % 3 == 0:
            feed.pump()
            feed.pump()
    feed.pump()
    assert taken == list(range(7))


def test_an_epoch_is_a_span_with_its_phases_one_after_the_other() -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider, kept = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    spans = EpochSpans("p")
    spans._tracer = provider.get_tracer("millstream")
    spans([EpochStats(4, 9, 8.0, True, at=1_000_000, phases={"commit": 2.0, "plan": 1.0, "step": 5.0})])
    *phases, epoch = kept.get_finished_spans()
    assert [one.name for one in phases] == ["millstream.plan", "millstream.step", "millstream.commit"]
    assert epoch.attributes is not None and epoch.attributes["millstream.epoch"] == 4 and epoch.attributes["millstream.records"] == 9
    assert all(one.parent is not None and one.parent.span_id == epoch.context.span_id for one in phases)
    assert [one.end_time for one in phases[:-1]] == [one.start_time for one in phases[1:]]
    assert epoch.start_time == phases[0].start_time and epoch.end_time == 1_000_000 * 1_000_000 == phases[-1].end_time


def test_an_epoch_is_a_log_record_with_fields(caplog: pytest.LogCaptureFixture) -> None:
    epochs = [EpochStats(4, 9, 8.0, True, phases={"step": 5.0})]
    EpochLog("p")(epochs)
    assert not caplog.records  # nobody has asked
    with caplog.at_level(logging.INFO, "millstream.epochs"):
        EpochLog("p")(epochs)
    (record,) = caplog.records
    said = json.loads(ms.monitoring.JsonFormatter().format(record))
    assert (
        said["message"] == "p: epoch 4, 9 records, 8.0 ms"
        and said["step_millis"] == 5.0
        and said["records"] == 9
        and said["level"] == "INFO"
    )


def asked_for(text: str) -> set[str]:
    return {re.sub("_(bucket|count|sum)$", "", name) for name in re.findall(r"millstream_[a-z_]+", text)}


def test_the_dashboard_and_the_alerts_ask_for_metrics_that_exist() -> None:
    known = set(prometheus.names())
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    asked = asked_for(json.dumps(dashboard["panels"]))
    alerts = (DEPLOY / "alerts.yml").read_text()
    assert len(dashboard["panels"]) >= 10 and asked <= known, asked - known
    assert alerts.count("- alert:") >= 8 and asked_for(alerts) <= known, asked_for(alerts) - known
    import yaml

    rules = yaml.safe_load(alerts)["groups"][0]["rules"]
    assert all(set(rule) <= {"alert", "expr", "for", "labels", "annotations"} and rule["annotations"]["summary"] for rule in rules)


def test_promtool_takes_the_alerts() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    subprocess.run(["promtool", "check", "rules", str(DEPLOY / "alerts.yml")], check=True, capture_output=True)


@pytest.mark.crash
def test_a_sink_server_tells_too(tmp_path: Path) -> None:
    import sys

    command = [
        sys.executable,
        "-m",
        "millstream.cli",
        "sink",
        "run",
        "--dir",
        str(tmp_path),
        "--listen",
        "127.0.0.1:0",
        "--metrics",
        "127.0.0.1:0",
        "--quiet",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1]
            with urllib.request.urlopen(address) as answer:
                found = samples(answer.read().decode())
            assert found["millstream_sink_server_sessions"] == 0 and "millstream_sink_server_commits_total" in found
        finally:
            server.terminate()


@pytest.mark.crash
def test_a_node_of_the_state_service_tells_too_and_the_page_shows_its_tables(tmp_path: Path) -> None:
    import sys

    (tmp_path / "tables.py").write_text(
        'import millstream as ms\n\ntotals = ms.service.Table("totals", partitions=2, point=ms.service.HASH)\n'
    )
    command = [sys.executable, "-m", "millstream.cli", "serve", "tables", str(tmp_path / "tables.py"), "--dir", str(tmp_path / "node")]
    with subprocess.Popen([*command, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as node:
        try:
            assert node.stdout is not None
            said = next(line for line in node.stdout if "metrics are at" in line)
            with urllib.request.urlopen(said.split()[-1]) as answer:
                found = samples(answer.read().decode())
            assert sum(value for name, value in found.items() if name.startswith("millstream_partition_serving{")) == 2
            tell = tables_of(str(tmp_path / "node" / "registry"))()
            assert tell["tables"] == ["totals"] and len(tell["partitions"]) == 2 and list(tell["nodes"]) == ["n1"]
            assert {one["node"] for one in tell["partitions"]} == {"n1"}
        finally:
            node.terminate()
