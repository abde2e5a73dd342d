"""Millstream: MillWheel's model of stream processing on Spark, from Python."""

from millstream import anomalies, connector, errors, monitoring, service, sinks, sources, testing, views
from millstream.core import watermark as watermarks
from millstream.core.computation import Computation
from millstream.core.dedup import dedup
from millstream.core.mapstate import MapState
from millstream.core.outcome import DROP
from millstream.core.record import Record, Timer
from millstream.core.time import BEGINNING, END, LOW_WATERMARK, WALL_CLOCK
from millstream.core.topology import ADAPTIVE, DEAD_LETTER, FAIL, PRODUCED, STRONG, WEAK
from millstream.operators import windows
from millstream.operators.expressions import col
from millstream.operators.streams import Stream
from millstream.pipeline import Pipeline
from millstream.reducers.base import Reducer
from millstream.reducers.extremes import bottom, first, last, top
from millstream.reducers.extremes import max as max
from millstream.reducers.extremes import min as min
from millstream.reducers.sums import count, mean, stats
from millstream.reducers.sums import sum as sum
from millstream.reducers.values import any_value, collect, count_distinct
from millstream.state import codec as codecs
from millstream.views import cdc as changes

__version__ = "0.2.0"

#: ms.sum, ms.min and ms.max are not in it: `from millstream import *` is to shadow no builtin.
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
    "anomalies",
    "any_value",
    "bottom",
    "changes",
    "codecs",
    "col",
    "collect",
    "connector",
    "count",
    "count_distinct",
    "dedup",
    "errors",
    "first",
    "last",
    "mean",
    "monitoring",
    "service",
    "sinks",
    "sources",
    "stats",
    "testing",
    "top",
    "views",
    "watermarks",
    "windows",
]
