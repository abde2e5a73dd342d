"""Keyed rows in the task, against dumb twins."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import some
from millstream.core.record import ListBatch
from millstream.engine.columns.arrow_rows import ALL, to_arrivals

rows = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "\0i7", "é"]),
        st.integers(0, 3),
        st.sampled_from(["x", "y", "é", "\U0001f600", "￿", None]),
        st.integers(-5, 5),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=40,
)


@given(rows, st.booleans())
@settings(max_examples=some(300), deadline=None)
def test_oracle_rows_come_in_the_order_of_key_time_id_and_stream(given_rows: list[Any], one_route: bool) -> None:
    given_rows = [(k, t, id, order, 0 if one_route else route) for k, t, id, order, route in given_rows]
    key, ts, ids, order, route = zip(*given_rows, strict=True)
    table = pa.table(
        {
            "key": pa.array(key, pa.string()),
            "ts": pa.array(ts, pa.int64()),
            "id": pa.array(ids, pa.string()),
            "ord": pa.array(order, pa.int64()),
            "route": pa.array(route, pa.int32()),
        }
    )
    streams = {0: "z-first", 1: "a-second"}
    batches: Any = {at: ListBatch(streams[at], [], []) for at in sorted(set(route))}
    found = to_arrivals(table, batches, ALL)

    def named(at: int) -> tuple[Any, ...]:
        k, t, id, o, r = given_rows[at]
        return k, t, id if id is not None else f"{o & 0xFFFFFFFFFFFFFFFF:016x}", streams[r]

    assert [named(at) for at in found.index] == sorted(map(named, range(len(given_rows))))
    assert sorted(found.index) == list(range(len(given_rows)))
    chosen = np.array([at for at in range(len(given_rows)) if at % 2 == 0], np.int64)
    assert [named(at) for at in to_arrivals(table, batches, chosen).index] == sorted(map(named, chosen.tolist()))


FROZEN = """
import gc
from millstream.engine.worker_process import PROCESS
before = gc.get_freeze_count()
PROCESS.end_task()
after = gc.get_freeze_count()
PROCESS.end_task()
print(before, after > 10_000, gc.get_freeze_count() == after, len(gc.get_objects()) < 2_000)
"""


@pytest.mark.slow
def test_what_a_worker_has_loaded_is_searched_for_garbage_only_once() -> None:
    said = subprocess.run([sys.executable, "-c", FROZEN], capture_output=True, text=True, check=True).stdout.split()
    assert said == ["0", "True", "True", "True"], said
    assert len(gc.get_objects()) > 2_000, "without it there is much to search"


def test_what_the_driver_says_is_decoded_once_per_process() -> None:
    from millstream.engine.worker_process import WorkerProcess

    process = WorkerProcess()
    calls: list[bytes] = []

    def decode(data: bytes) -> Any:
        calls.append(data)
        return object()

    first = process.decoded(b"one", decode)
    assert process.decoded(b"one", decode) is first and len(calls) == 1
    assert process.decoded(b"two", decode) is not first and len(calls) == 2
