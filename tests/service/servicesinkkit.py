"""Epochs of many shards under long names, staged into a table of the state service: for the tests and for processes that they start."""

from __future__ import annotations

import json
from pathlib import Path

import millstream as ms
from millstream.sinks.base import DriverContext, Part, Sink, SinkRow, TaskContext
from millstream.state.storage import LocalStorage

MANY = 200
NAME = "totals_per_customer_and_day_" * 4  # a stream's name, of 112 letters


def many(address: str, work: Path, epoch: int, token: str = "1-x") -> tuple[Sink, DriverContext, list[Part]]:
    """An epoch of many shards under long names, staged and prepared, with one key for each shard."""
    sink = ms.sinks.service(address, "t", encode=lambda row: (row.key.encode(), json.dumps(row.value).encode()))
    context = DriverContext(LocalStorage(work), "p", NAME, token=token)
    tasks = [TaskContext(LocalStorage(work), NAME, epoch, f"p-{shard}", "a" * 40, token, "p", shard) for shard in range(MANY)]
    parts = [sink.stage(one, [SinkRow(f"k{one.shard}", 0, [epoch, one.shard])]) for one in tasks]
    sink.prepare(context, epoch, parts)
    return sink, context, parts
