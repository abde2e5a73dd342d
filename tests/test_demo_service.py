"""The demo of live state: its judge, and once on Spark (with make soak) as a whole."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from demos.asked import run
from demos.asked.judge import AnswerJudge
from millstream.anomalies.counts import CountModel
from millstream.readable import listing as readable
from millstream.state.manifest_log import ManifestLog
from millstream.state.reader import CommittedState
from millstream.state.storage import open_storage
from support import small_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return small_checkpoint(tmp_path / "checkpoint")


def test_the_judge_takes_what_the_checkpoint_says_and_nothing_else(checkpoint: Path) -> None:
    log = ManifestLog(open_storage(checkpoint))
    manifest = log.latest()
    assert manifest is not None
    computation = sorted(manifest.computations)[0]
    with CommittedState(log).at(manifest.epoch) as cut:
        listing = readable.plain_listing(readable.listed(cut, computation, 1))
        row = readable.plain_listing(readable.looked_up(cut, computation, [listing["rows"][0]["key"]]))["rows"][0]
    judge = AnswerJudge(checkpoint)
    key = row["key"]
    assert judge.compare(computation, key, manifest.epoch, msgspec.json.encode(row)) is True
    assert judge.compare(computation, key, manifest.epoch, msgspec.json.encode({**row, "shard": -1})) is False
    assert judge.compare(computation, key, manifest.epoch, None) is False
    assert judge.compare(computation, "nobody", manifest.epoch, None) is True
    assert (judge.compared, len(judge.wrong)) == (4, 2)
    assert judge.compare(computation, key, 10_000, None) is None


def test_a_model_is_told_in_few_words() -> None:
    traffic = run.SMALL
    model = CountModel(next=traffic.begin // 1000 + 70, open="spike")
    said = run.told(msgspec.to_builtins(model), traffic)
    assert said.startswith("second   70, expects") and said.endswith("a spike is open")


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "queries").mkdir()
    console = Console(file=io.StringIO(), width=200)
    assert run.run(tmp_path, console=console) == 1
    assert "which this demo has not made" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.crash
def test_the_demo_as_a_whole(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=200)
    assert run.run(tmp_path / "asked", small=True, console=console) == 0
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "0 differ from what the checkpoint says" in said and "kill -9 of driver 1" in said
