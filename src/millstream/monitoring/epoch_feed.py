"""Hands on the epochs of a run, some at a time, to whoever wants each of them: a histogram, traces, logs.

Rules
1. Nothing is done on the path of an epoch: once a second, a thread of the run hands on what was committed since.
2. Each epoch is handed on once, in order. One that was let go of before (`engine/metrics.py` keeps the last minute) is missing.
3. Spans are made through OpenTelemetry's API alone, and only where the program has loaded it: exporters and sampling are the program's.
4. Log records go to the logger `millstream.epochs` at INFO, with the figures as fields: nothing is made while nobody listens.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from millstream.engine.metrics import PHASES, EpochStats, Metrics

Taker = Callable[[Sequence[EpochStats]], None]

log = logging.getLogger("millstream.epochs")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class EpochFeed:
    """The epochs of a run, for some takers."""

    def __init__(self, metrics: Metrics, takers: Sequence[Taker]) -> None:
        self._metrics, self.takers = metrics, list(takers)
        self._last = -1

    def pump(self) -> None:
        """Hands on what is new."""
        new = [one for one in self._metrics if one.epoch > self._last]
        if new:
            self._last = new[-1].epoch
            for taker in self.takers:
                taker(new)


class EpochLog:
    """A log record for each epoch."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline

    def __call__(self, epochs: Sequence[EpochStats]) -> None:
        if not log.isEnabledFor(logging.INFO):
            return
        for one in epochs:
            fields = {
                "pipeline": self._pipeline,
                "epoch": one.epoch,
                "records": one.records,
                "millis": round(one.millis, 3),
                "tries": one.tries,
            }
            phases = {f"{phase}_millis": round(millis, 3) for phase, millis in one.phases.items()}
            log.info("%s: epoch %d, %d records, %.1f ms", self._pipeline, one.epoch, one.records, one.millis, extra={**fields, **phases})


class JsonFormatter(logging.Formatter):
    """A log record as a line of JSON, with its own fields.

    >>> record = logging.makeLogRecord({"name": "n", "levelname": "INFO", "msg": "%d done", "args": (3,), "created": 0.5, "epoch": 7})
    >>> JsonFormatter().format(record)
    '{"time": 0.5, "level": "INFO", "logger": "n", "message": "3 done", "epoch": 7}'
    """

    def format(self, record: logging.LogRecord) -> str:
        said = {"time": record.created, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        own = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        error = {"error": self.formatException(record.exc_info)} if record.exc_info else {}
        return json.dumps({**said, **own, **error}, default=repr)


class EpochSpans:
    """A span for each epoch, with one for each of its phases."""

    def __init__(self, pipeline: str) -> None:
        from opentelemetry import trace

        self._pipeline, self._trace = pipeline, trace
        self._tracer = trace.get_tracer("millstream")

    def __call__(self, epochs: Sequence[EpochStats]) -> None:
        for one in epochs:
            end = one.at * 1_000_000
            at = end - int(one.millis * 1_000_000)
            span = self._tracer.start_span("millstream.epoch", start_time=at)
            for name, value in (("pipeline", self._pipeline), ("epoch", one.epoch), ("records", one.records), ("tries", one.tries)):
                span.set_attribute(f"millstream.{name}", value)
            if span.is_recording():
                within = self._trace.set_span_in_context(span)
                for phase in sorted(one.phases, key=_place):
                    child = self._tracer.start_span(f"millstream.{phase}", context=within, start_time=at)
                    at += int(one.phases[phase] * 1_000_000)
                    child.end(at)
            span.end(max(at, end))


def _place(phase: str) -> int:
    return PHASES.index(phase) if phase in PHASES else len(PHASES)


def takers_of(pipeline: str) -> list[Taker]:
    """Logs; and traces, where the program has loaded OpenTelemetry."""
    found: list[Any] = [EpochLog(pipeline)]
    if "opentelemetry" in sys.modules:
        found.append(EpochSpans(pipeline))
    return found
