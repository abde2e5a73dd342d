"""The handle of a run: what it shows, what it says, and what it does not say."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from sparkkit import BASE, write

import millstream as ms
from millstream.state import heartbeat
from millstream.state.storage import open_storage

pytestmark = pytest.mark.spark


class Count(ms.Computation):
    """Counts, and remembers when in a map."""

    State = ms.MapState

    def process_record(self, record: ms.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.produce({"n": self.state["n"]})


def counting(work: Path, format: str = "json", foreign: bool = False) -> ms.Pipeline:
    p = ms.Pipeline("counting")
    source = ms.sources.files(work / "in", schema="k string, at long", format="json")
    stream = p.inject("in", source.load if foreign else source, timestamp="at")
    p.emit(p.compute(Count, stream, key="k", produces="counts"), ms.sinks.files(work / "counts", format=format))
    return p


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_a_handle_shows_state_output_and_itself(spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], format: str) -> None:
    write(tmp_path / "in", "a.json", [{"k": key, "at": BASE + at} for at, key in enumerate(["tea", "<b>", "tea"])])
    handle = counting(tmp_path, format).run(spark, checkpoint=tmp_path / "checkpoint", available_now=True)
    handle.await_termination()
    assert handle.state("Count") == {"tea": {"n": 2}, "<b>": {"n": 1}}
    assert handle.state("Count", "tea") == {"n": 2} and handle.state("Count", "coffee") is None
    assert sorted((key, value["n"]) for key, value, _ in handle.output()) == [("<b>", 1), ("tea", 1), ("tea", 2)]
    assert handle.output("counts") == handle.output()
    with pytest.raises(ms.errors.DefinitionError, match="no computation is called 'Sum'; there are: Count"):
        handle.state("Sum")
    with pytest.raises(ms.errors.DefinitionError, match="no stream 'sums' goes to a sink; there are: counts"):
        handle.output("sums")
    assert repr(handle).startswith("<Millstream run of 'counting': ended, epoch ") and "3 records" in repr(handle)
    assert repr(handle.status()) == f"<{handle.status()}>" and "ended" in str(handle.status())
    assert handle._repr_html_().startswith("<pre>") and "Count" in handle._repr_html_()
    said = capfd.readouterr().err.splitlines()
    assert "Z counting: reading files in " in said[0] and said[-1].endswith(f"; 3 rows in {tmp_path}/counts/")
    assert all("Z counting: " in line for line in said), said


def test_a_run_that_is_quiet_or_stopped_says_nothing_that_nobody_asked_for(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "in", "a.json", [{"k": "tea", "at": BASE}])
    handle = counting(tmp_path).run(spark, checkpoint=tmp_path / "checkpoint", trigger="200ms", quiet=True)
    deadline = time.monotonic() + 60
    while handle.status().records < 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    sign = heartbeat.last_sign(open_storage(str(tmp_path / "checkpoint")))
    assert sign is not None and sign.is_alive(int(time.time() * 1000))
    handle.stop()
    assert handle.status().state == "stopped" and not handle.running
    out, err = capfd.readouterr()
    assert out == "" and err == ""
    sign = heartbeat.last_sign(open_storage(str(tmp_path / "checkpoint")))
    assert sign is not None and sign.state == "stopped" and not sign.is_alive(sign.at)


def test_a_run_without_input_says_for_whom_it_waits(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream import handle as module

    monkeypatch.setattr(module, "_QUIET_AFTER", 0.3)
    (tmp_path / "in").mkdir()
    handle = counting(tmp_path).run(spark, checkpoint=tmp_path / "checkpoint", trigger="200ms", quiet=True)
    deadline = time.monotonic() + 60
    while not (handle.status().waits_for and handle.status().epoch >= 0) and time.monotonic() < deadline:
        time.sleep(0.05)
    status = handle.status()
    handle.stop()
    assert status.waits_for == f"files in {tmp_path / 'in'}"
    assert f"waiting for files in {tmp_path / 'in'}" in str(status)
    assert handle.status().waits_for == "", "who has ended waits for nobody"


def test_the_whole_reason_of_sparks_error_is_told_in_one_message(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text(json.dumps({"k": "tea", "at": "soon"}) + "\n")
    handle = counting(tmp_path).run(spark, checkpoint=tmp_path / "checkpoint", available_now=True, quiet=True)
    with pytest.raises(ms.errors.InputError) as caught:
        handle.await_termination()
    said = str(caught.value)
    assert "a.json" in said and "soon" in said and len(said.splitlines()) < 8 and "at org.apache" not in said, said


def test_sparks_log_has_no_checksum_files_beside_it(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", [{"k": "tea", "at": BASE}])
    handle = counting(tmp_path, foreign=True).run(spark, checkpoint=tmp_path / "checkpoint", available_now=True, quiet=True)
    handle.await_termination()
    assert handle.query is not None and not handle.query.isActive
    written = [path.name for path in (tmp_path / "checkpoint" / "spark").rglob("*") if path.is_file()]
    assert "metadata" in written and not [name for name in written if name.endswith(".crc")], "each would cost a process"
    assert spark.conf.get("spark.sql.execution.arrow.maxBytesPerBatch") == "2147483647"


def test_the_status_of_a_run_gathers_what_its_parts_say_of_themselves(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.json", [{"k": f"k{i % 3}", "at": BASE + i, "id": str(i)} for i in range(12)])
    write(tmp_path / "in", "b.json", [{"k": f"k{i % 3}", "at": BASE + 100 + i, "id": f"b{i}"} for i in range(6)])
    p = ms.Pipeline("parts")
    source = ms.sources.files(tmp_path / "in", schema="k string, at long, id string", format="json", max_files_per_epoch=1)
    p.compute(Count, p.inject("in", source, timestamp="at", id="id"), key="k", produces="counts")
    p.emit("counts", ms.sinks.files(tmp_path / "out"))
    handle = p.run(spark, checkpoint=tmp_path / "checkpoint", available_now=True, shards=2)
    handle.await_termination()
    parts = handle.status().parts
    sink = parts["sinks"]["counts"]
    assert 2 <= sink.pop("parts") <= 4, "one of each shard that had rows, in each epoch"
    assert sink.pop("millis") > 0 and sink.pop("epoch") == handle.status().epoch
    assert sink == {"place": f"{tmp_path}/out/", "rows": 18, "epochs": 2, "own": None}
    assert parts["state_caches"]["Count"]["entries"] >= 3 and parts["state_caches"]["Count"]["loads"] >= 1
    assert parts["log"]["Count"]["segments"] >= 2 and parts["compactions"] == {"compacted": 0, "failed": 0, "since": None, "last_error": ""}
    assert parts["sources"] == {}
