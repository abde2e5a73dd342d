"""`millstream metrics`: metrics of one or several checkpoints in Prometheus' form, once or for whoever asks, wherever their drivers are."""

from __future__ import annotations

import argparse

from millstream.cli.arguments import METRICS, Commands, failed, storage_of, storage_option, until_stopped
from millstream.monitoring import prometheus
from millstream.monitoring.observer import Observer
from millstream.state.manifest_log import ManifestLog


def add_command(commands: Commands) -> None:
    metrics = commands.add_parser(
        "metrics",
        help="metrics of pipelines, for Prometheus",
        description="Tells Prometheus how pipelines are doing: running, stopped or elsewhere. It reads their checkpoints.",
    )
    metrics.add_argument("checkpoint", metavar="CHECKPOINT", nargs="+", help="directories or object stores' URLs")
    metrics.add_argument(
        "--listen", metavar="HOST:PORT", default=METRICS, help=f"where they are served ({METRICS}); port 0 is any free one"
    )
    metrics.add_argument("--once", action="store_true", help="print them, and end")
    storage_option(metrics)
    metrics.set_defaults(command=_metrics)


def _metrics(args: argparse.Namespace) -> int:
    observers = [Observer(ManifestLog(storage_of(args, where))) for where in args.checkpoint]
    looks = [observer.see().look for observer in observers]
    for where, look in zip(args.checkpoint, looks, strict=True):
        if look.failed and args.once:
            return failed(f"{where} cannot be looked at: {look.error}")
    names = [look.overview.status.pipeline for look in looks if not look.failed]
    if twice := {name for name in names if names.count(name) > 1}:
        return failed(
            f"two of these checkpoints are of pipeline {min(twice)!r}, which Prometheus could not tell apart: give them one by one"
        )
    collectors = [prometheus.PipelineCollector(observers)]
    if args.once:
        print(prometheus.text(collectors), end="")
        return 0
    stopping = until_stopped()
    server = prometheus.MetricsServer(collectors, args.listen)
    print(f"metrics are at {server.url} (Ctrl-C ends it)", flush=True)
    while not stopping.wait(1.0):
        pass
    server.stop()
    print(f"metrics at {server.address} have ended")
    return 0
