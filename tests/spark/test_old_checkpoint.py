"""A checkpoint that version 0.1 made is opened and carried on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import millstream as ms
import oldjob
import support
from millstream.core import step
from millstream.state.manifest import ManifestLog
from millstream.state.segment import runs
from millstream.state.storage import open_storage

pytestmark = pytest.mark.spark

DATA = Path(__file__).parent.parent / "data" / "checkpoint-0.1"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A copy where it can be gone on with: Spark's log names the files that were read by their paths."""
    shutil.copytree(DATA, tmp_path, dirs_exist_ok=True)
    for log in (tmp_path / "checkpoint" / "spark" / "sources" / "0").iterdir():
        log.write_text(log.read_text().replace("file:///WORK/", f"file://{tmp_path}/"))
    oldjob.write(tmp_path)
    return tmp_path


def test_the_checkpoint_is_caught_in_the_midst_of_everything(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "MAX_DUE", oldjob.MAX_DUE)
    manifest = ManifestLog(open_storage(work / "checkpoint")).latest()
    assert manifest is not None
    counter, totals = manifest.computations["Counter"], manifest.computations["Totals"]
    assert all(
        shard.timers > step.MAX_DUE and shard.next_low is not None and shard.next_low <= counter.low_watermark for shard in counter.shards
    )
    assert any(stored_ref.slices for stored_ref in manifest.pending), "productions wait on the strong edge"
    assert counter.dedup.dropped and all(shard.ids for shard in counter.shards)
    assert totals.shards[0].keys and set(manifest.sinks) == {"sums", "totals"}
    lengths = [len(runs(shard.segments)) for shard in counter.shards]
    assert lengths == [4, 10], "one shard is compacted, the other is not"
    named = {ref.name for shard in counter.shards for ref in shard.segments}
    assert any("-compaction-" in name and name not in named for name in open_storage(work / "checkpoint").list("units")), (
        "and its compaction lies there"
    )


def test_it_goes_on_and_ends_like_the_local_engine(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run(
        [sys.executable, str(support.HERE / "oldjob.py"), str(work), "--go-on"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(support.HERE), *sys.path])},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    monkeypatch.setattr(step, "MAX_DUE", oldjob.MAX_DUE)
    runner = ms.testing.LocalRunner(oldjob.pipeline(work), shards=2)
    for file in range(oldjob.FILES):
        runner.push("queries", *oldjob.rows(file))
        runner.epoch()
    runner.drain()
    for stream in ("sums", "totals"):
        assert support.per_key(support.json_rows(work / stream)) == support.per_key(runner.output(stream)), stream
        assert len(support.json_rows(work / stream)) == len(runner.output(stream)) > 20, stream
    support.assert_same_state(work / "checkpoint", runner)
