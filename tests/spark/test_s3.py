"""A checkpoint and a sink in an object store (real local servers of S3 and Azure), through the same code as on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sparkkit import good, write

import azureserver
import millstream as ms
from computations import Sum
from millstream.state.storage import open_storage
from s3server import S3Server

pytestmark = pytest.mark.spark


@pytest.fixture(params=["s3", "azure"])
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = S3Server() if request.param == "s3" else azureserver.start()
    yield made
    made.stop()


def test_state_survives_a_restart_and_output_appears_once(spark: Any, tmp_path: Path, server: Any) -> None:
    checkpoint, output = server.url(), server.url()

    def run() -> ms.sinks.Memory:
        p = ms.Pipeline("s3")
        source = ms.sources.files(tmp_path / "in", schema="k string, n long, at long", format="json")
        sums = p.compute(Sum, p.inject("in", source, timestamp="at"), key="k", produces="sums")
        sink = ms.sinks.memory()
        p.emit(sums, sink)
        p.emit(sums, ms.sinks.files(output, storage_options=server.options))
        handle = p.run(
            spark,
            checkpoint=checkpoint,
            storage_options=server.options,
            spark_checkpoint=tmp_path / "spark",
            available_now=True,
            drain=False,
        )
        handle.await_termination()
        return sink

    write(tmp_path / "in", "a.json", good())
    assert [row.value for row in run().collected] == [1, 2, 3, 4, 5]
    write(tmp_path / "in", "b.json", good(100))
    assert [row.value for row in run().collected] == [6, 7, 8, 9, 10]
    files = open_storage(output, server.options)
    lines = [line for name in files.list("") if name.endswith(".jsonl") for line in files.read(name).splitlines()]
    assert len(lines) == 10
    assert not files.list("_staging")
    options = {"storage_options": json.dumps(server.options)}
    state = spark.read.format("millstream-state").options(**options).load(checkpoint)
    assert [(row.key, row.value) for row in state.collect()] == [("a", "10")]
    rows = spark.read.format("millstream").options(checkpoint=checkpoint, **options).load(output)
    assert sorted(int(row.value) for row in rows.collect()) == list(range(1, 11))
