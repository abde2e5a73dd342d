"""Metrics in Prometheus' form: of pipelines that are observed, and of servers that tell how they are doing.

Rules
1. Names begin with `millstream_`; counts end with `_total`, times are seconds, sizes bytes. Labels name pipelines, computations, injectors, streams and sinks:
   never keys, shards or values, of which there may be any number.
2. Counts are those of the manifests: they go on over restarts, and are the same whoever tells them.
3. A histogram needs every epoch, so only the run itself has one (`EpochSeconds`). Whoever looks from outside has the seconds of each phase as a count.
4. Whoever may reach the address may read the metrics: they have no keys and no values in them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from millstream.core.time import BEGINNING, END
from millstream.engine.metrics import EpochStats
from millstream.extras import needed
from millstream.monitoring.observer import Look, Observer
from millstream.network import cannot_listen, parse_address, written
from millstream.status.report import ComputationStatus

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_IDLE = 10  # seconds that a connection may be silent
_FAMILIES = {  # name without its prefix: kind, what it is, labels besides the pipeline
    "checkpoint_readable": ("gauge", "0 where the last look at the checkpoint failed", ()),
    "driver_alive": ("gauge", "1 while a driver is at work", ()),
    "epoch_under_way_seconds": ("gauge", "For how long the epoch at hand has been under way; 0 between epochs", ()),
    "epoch": ("gauge", "The last committed epoch", ()),
    "committed_timestamp_seconds": ("gauge", "When it was committed", ()),
    "epochs_total": ("counter", "Epochs that were committed", ()),
    "epoch_phase_seconds_total": ("counter", "Where the time of epochs went", ("phase",)),
    "epoch_retries_total": ("counter", "Attempts at epochs that were begun again, of this run", ()),
    "epoch_written_bytes_total": ("counter", "Bytes of deltas and stored productions", ()),
    "run_info": ("gauge", "The run that has committed it", ("run", "mode")),
    "refused_writes_total": ("counter", "Writes of runs that had been replaced", ()),
    "injected_total": ("counter", "Records of an injected stream", ("injector",)),
    "injector_watermark_seconds": ("gauge", "How far event time is complete where records come in", ("injector",)),
    "injector_idle": ("gauge", "1 while it holds nothing back because it is silent", ("injector",)),
    "source_backlog": ("gauge", "What a source has that nobody has read", ("injector", "counts")),
    "source_backlog_seconds": ("gauge", "How long that takes at the present rate", ("injector",)),
    "records_total": ("counter", "Records of a computation", ("computation",)),
    "produced_total": ("counter", "Its productions", ("computation",)),
    "fired_total": ("counter", "Timers that have fired", ("computation",)),
    "late_total": ("counter", "Records that came too late", ("computation", "stream")),
    "dead_letters_total": ("counter", "Records and timers for which a hook raised", ("computation",)),
    "low_watermark_seconds": ("gauge", "No record that is older is expected", ("computation",)),
    "watermark_lag_seconds": ("gauge", "How far the low watermark is behind the newest record", ("computation",)),
    "held_back_by": ("gauge", "What a low watermark waits for, always 1", ("computation", "kind", "name")),
    "keys": ("gauge", "Keys with state, or what is kept in columns", ("computation",)),
    "timers": ("gauge", "Timers that are set", ("computation",)),
    "log_bytes": ("gauge", "Bytes of its state in the log", ("computation",)),
    "waiting": ("gauge", "Productions that are stored for it", ("computation",)),
    "step_seconds": ("gauge", "What its steps took lately, in all shards", ("computation",)),
    "shard_step_seconds_max": ("gauge", "What the steps of the busiest shard took lately", ()),
    "shard_step_seconds_median": ("gauge", "The same of the shard in the middle", ()),
    "dedup_checked_total": ("counter", "Ids that were looked for", ("computation",)),
    "dedup_dropped_total": ("counter", "Repeated records", ("computation",)),
    "dedup_ids_held": ("gauge", "Ids that are remembered", ("computation",)),
    "edge_stored": ("gauge", "1 while an adaptive edge stores", ("edge",)),
    "sink_rows_total": ("counter", "Rows that went to a sink", ("sink",)),
    "sink_waiting_rows": ("gauge", "Committed rows that are to be published with later ones", ("sink",)),
    "sink_published_epoch": ("gauge", "The last epoch that was published in full", ("sink",)),
    "state_cache_loads": ("gauge", "State caches that the processes at work have loaded anew", ("computation",)),
    "compactions_total": ("counter", "Chains that were compacted, by this run", ()),
    "compactions_failed_total": ("counter", "Compactions that failed, of this run", ()),
    "resident_tasks": ("gauge", "Resident tasks that are there", ()),
    "resident_tasks_missing": ("gauge", "Resident tasks that are being replaced", ()),
    "resident_task_losses_total": ("counter", "Resident tasks that were lost, of this run", ()),
}


def names() -> list[str]:
    """All metrics of a pipeline, as Prometheus knows them."""
    return [f"millstream_{name}" for name in _FAMILIES] + ["millstream_epoch_seconds"]


class _Samples:
    """Families that are being filled."""

    def __init__(self) -> None:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        self.families = {
            name: kinds[kind](f"millstream_{name}", about, labels=["pipeline", *labels])
            for name, (kind, about, labels) in _FAMILIES.items()
        }

    def add(self, name: str, value: float | None, *labels: str) -> None:
        if value is not None:
            self.families[name].add_metric(list(labels), value)


class PipelineCollector:
    """Tells Prometheus of pipelines when it asks. Their names are their labels: no two of them may be the same."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def collect(self) -> Iterator[Any]:
        samples = _Samples()
        for observer in self._observers:
            _add(samples, observer.see().look)
        yield from samples.families.values()


def _add(samples: _Samples, look: Look) -> None:
    found, manifest = look.overview, look.manifest
    status = found.status if look.live is None else look.live
    name, add = status.pipeline, samples.add
    add("checkpoint_readable", float(not look.failed), name)
    add("driver_alive", float(found.alive), name)
    if manifest is None:
        return
    sign = found.last_sign
    add("epoch", manifest.epoch, name)
    add("epochs_total", manifest.epoch + 1, name)
    add("committed_timestamp_seconds", (manifest.now if manifest.committed_at is None else manifest.committed_at) / 1000, name)
    for phase, millis in manifest.spent.items():
        add("epoch_phase_seconds_total", millis / 1000, name, phase)
    add("epoch_written_bytes_total", manifest.written, name)
    add("run_info", 1, name, manifest.token, sign.mode.name if sign is not None else "")
    add("refused_writes_total", manifest.refused, name)
    for injector in status.injectors:
        add("injected_total", injector.records, name, injector.name)
        add("injector_watermark_seconds", _seconds(injector.watermark), name, injector.name)
        add("injector_idle", float(injector.idle), name, injector.name)
    for one in status.computations:
        _add_computation(samples, name, one)
    for edge, state in manifest.edges.items():
        add("edge_stored", float(state.stored), name, edge)
    for sink, output in manifest.outputs.items():
        waiting = manifest.waiting.get(sink)
        add("sink_rows_total", output.rows, name, sink)
        add("sink_waiting_rows", sum(part.rows for part in waiting.parts) if waiting is not None else 0, name, sink)
    if sign is not None:
        _add_figures(samples, name, look)


def _add_computation(samples: _Samples, pipeline: str, one: ComputationStatus) -> None:
    def add(name: str, value: float | None, *labels: str) -> None:
        samples.add(name, value, pipeline, one.name, *labels)

    add("records_total", one.records)
    add("produced_total", one.produced)
    add("fired_total", one.fired)
    for stream, late in one.late_by.items():
        add("late_total", late, stream)
    add("dead_letters_total", one.dead_letters)
    add("low_watermark_seconds", _seconds(one.low_watermark))
    add("watermark_lag_seconds", None if one.lag is None else one.lag / 1000)
    add("held_back_by", 1, one.held_back_by.what, one.held_back_by.name)
    add("keys", one.keys if one.windows is None else one.windows.partial_results)
    add("timers", one.timers)
    add("log_bytes", one.log_bytes)
    add("waiting", one.waiting)
    if one.dedup is not None:
        add("dedup_checked_total", one.dedup.checked)
        add("dedup_dropped_total", one.dedup.dropped)
    add("dedup_ids_held", one.ids_held)


def _add_figures(samples: _Samples, pipeline: str, look: Look) -> None:
    sign = look.overview.last_sign
    assert sign is not None
    figures, mode = sign.figures, sign.mode

    def add(name: str, value: float | None, *labels: str) -> None:
        samples.add(name, value, pipeline, *labels)

    for injector, backlog in figures.backlogs.items():
        add("source_backlog", backlog.left, injector, backlog.counts)
        add("source_backlog_seconds", backlog.seconds, injector)
    for computation, millis in figures.computations.items():
        add("step_seconds", millis / 1000, computation)
    loads = [one.millis / 1000 for one in figures.shards]
    add("shard_step_seconds_max", max(loads, default=0.0))
    add("shard_step_seconds_median", statistics.median(loads) if loads else 0.0)
    for computation, cache in figures.state_caches.items():
        add("state_cache_loads", cache.loads, computation)
    for sink, epoch in figures.published.items():
        add("sink_published_epoch", epoch, sink)
    add("compactions_total", figures.compactions.get("compacted"))
    add("compactions_failed_total", figures.compactions.get("failed"))
    add("epoch_retries_total", figures.retries)
    add("epoch_under_way_seconds", figures.under_way if look.overview.alive else 0.0)
    add("resident_tasks", len(mode.tasks))
    add("resident_tasks_missing", len(mode.missing))
    add("resident_task_losses_total", mode.losses)


def _seconds(time: int) -> float | None:
    return time / 1000 if BEGINNING < time < END else None


class EpochSeconds:
    """A histogram of what epochs take, by phase, and as a whole (phase "all"). Takes epochs as they come."""

    def __init__(self, registry: Any, pipeline: str) -> None:
        from prometheus_client import Histogram

        about = "What an epoch takes, by phase; as a whole it is the phase all"
        self._histogram = Histogram("millstream_epoch_seconds", about, ["pipeline", "phase"], registry=registry, buckets=_BUCKETS)
        self._pipeline = pipeline

    def __call__(self, epochs: Iterable[EpochStats]) -> None:
        for one in epochs:
            self._histogram.labels(self._pipeline, "all").observe(one.millis / 1000)
            for phase, millis in one.phases.items():
                self._histogram.labels(self._pipeline, phase).observe(millis / 1000)


class StatsCollector:
    """Tells of a server by the numbers in its statistics: `millstream_<what>_<field>`. gauges: the fields that may fall."""

    def __init__(self, what: str, stats: Callable[[], msgspec.Struct], gauges: Sequence[str] = ()) -> None:
        self._what, self._stats, self._gauges = what, stats, frozenset(gauges)

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for field, value in msgspec.structs.asdict(self._stats()).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                kind = GaugeMetricFamily if field in self._gauges else CounterMetricFamily
                yield kind(
                    f"millstream_{self._what}_{field}", f"{field.replace('_', ' ')} of the {self._what.replace('_', ' ')}", value=value
                )


class SourcesCollector:
    """Tells of sources by the numbers in their statistics: `millstream_source_<field>`, by injector."""

    def __init__(self, pipeline: str, sources: Mapping[str, Any]) -> None:
        self._pipeline, self._sources = pipeline, sources

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        families: dict[str, Any] = {}
        for name, source in self._sources.items():
            stats = source.stats()
            found = {} if stats is None else msgspec.to_builtins(stats)
            for field, value in {**found, **(found.get("server") or {})}.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    about = f"{field.replace('_', ' ')} of a source, as it says"
                    family = families.setdefault(
                        field, GaugeMetricFamily(f"millstream_source_{field}", about, labels=["pipeline", "injector"])
                    )
                    family.add_metric([self._pipeline, name], value)
        yield from families.values()


class NodeCollector:
    """Tells of a node of the state service, by partition. partitions: those that it has, as its manager knows them."""

    def __init__(self, node: str, partitions: Callable[[], Iterable[Any]]) -> None:
        self._node, self._partitions = node, partitions

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ["node", "table", "partition"]
        serving = GaugeMetricFamily("millstream_partition_serving", "1 while a partition answers and takes writes", labels=labels)
        writes = CounterMetricFamily("millstream_partition_log_position_total", "Records in its log", labels=labels)
        unsaved = GaugeMetricFamily("millstream_partition_unsaved_bytes", "Bytes that its log has and no snapshot", labels=labels)
        for one in list(self._partitions()):
            named = [self._node, one.descriptor.table, str(one.descriptor.id)]
            serving.add_metric(named, float(one.state == "serving"))
            if one.state in ("serving", "read-only"):
                writes.add_metric(named, one.store.applied)
                unsaved.add_metric(named, one.unsaved)
        yield from (serving, writes, unsaved)


class MetricsServer:
    """Serves metrics until `stop`. registry: of `prometheus_client`, what is served."""

    def __init__(self, collectors: Sequence[Any], listen: str) -> None:
        with needed("metrics"):
            from prometheus_client import CollectorRegistry, start_http_server
        host, port = parse_address(listen)
        self.registry = CollectorRegistry()
        for collector in collectors:
            self.registry.register(collector)
        try:
            self._server, self._thread = start_http_server(port, host, self.registry)
        except OSError as error:
            raise cannot_listen(host, port, error) from error
        handler: Any = self._server.RequestHandlerClass
        self._server.RequestHandlerClass = type("Handler", (handler,), {"timeout": _IDLE})
        self.address = written(host, self._server.server_port)

    @property
    def url(self) -> str:
        return f"http://{self.address}/metrics"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


@contextmanager
def served(collectors: Sequence[Any], listen: str | None, say: Callable[[str], None]) -> Iterator[None]:
    """Serves metrics beside something else, if somebody has said where."""
    if listen is None:
        yield
        return
    server = MetricsServer(collectors, listen)
    say(f"metrics are at {server.url}")
    try:
        yield
    finally:
        server.stop()


def text(collectors: Sequence[Any]) -> str:
    """What a server would say now."""
    with needed("metrics"):
        from prometheus_client import CollectorRegistry, generate_latest
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return generate_latest(registry).decode()
