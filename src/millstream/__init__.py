"""Millstream: MillWheel's model of stream processing on Spark, from Python."""

from millstream import connector, errors, service, sinks, sources, testing, views
from millstream.core import watermark as watermarks
from millstream.core.computation import Computation
from millstream.core.dedup import dedup
from millstream.core.mapstate import MapState
from millstream.core.outcome import DROP
from millstream.core.record import Record, Timer
from millstream.core.time import BEGINNING, END, LOW_WATERMARK, WALL_CLOCK
from millstream.core.topology import ADAPTIVE, DEAD_LETTER, FAIL, PRODUCED, STRONG, WEAK
from millstream.pipeline import Pipeline, Stream
from millstream.reducers import (
    Reducer,
    any,
    bottom,
    collect,
    count,
    distinct,
    first,
    last,
    max,
    mean,
    min,
    stats,
    sum,
    top,
)
from millstream.state import codec as codecs
from millstream.views import cdc as changes

__version__ = "0.2.0"

__all__ = [
    "ADAPTIVE",
    "BEGINNING",
    "DEAD_LETTER",
    "DROP",
    "END",
    "FAIL",
    "LOW_WATERMARK",
    "PRODUCED",
    "STRONG",
    "WALL_CLOCK",
    "WEAK",
    "Computation",
    "MapState",
    "Pipeline",
    "Record",
    "Reducer",
    "Stream",
    "Timer",
    "any",
    "bottom",
    "changes",
    "codecs",
    "collect",
    "connector",
    "count",
    "dedup",
    "distinct",
    "errors",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "service",
    "sinks",
    "sources",
    "stats",
    "sum",
    "testing",
    "top",
    "views",
    "watermarks",
]
