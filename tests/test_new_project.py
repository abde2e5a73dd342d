"""`millstream new`: what it makes works as it is, and nothing that is there is touched."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import millstream as ms
from millstream.cli import main

ROOT = Path(__file__).parent.parent
KINDS = pytest.mark.parametrize("options", [[], ["--kafka"]], ids=["files", "kafka"])


@pytest.fixture
def made(options: list[str], tmp_path: Path) -> Path:
    assert main(["new", str(tmp_path / "tea-shop"), *options]) == 0
    return tmp_path / "tea-shop"


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "MILLSTREAM_STATE_CACHE": str(folder.parent / "caches")}
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run([sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=180)


@KINDS
@pytest.mark.slow
def test_its_test_passes_and_can_fail(made: Path, options: list[str]) -> None:
    done = run(made, "pytest", "-p", "no:cacheprovider")
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr
    pipeline = made / "pipeline.py"
    pipeline.write_text(pipeline.read_text().replace('tumbling("1m")', 'tumbling("2m")'))
    assert "1 failed, 1 passed" in run(made, "pytest", "-p", "no:cacheprovider").stdout


@KINDS
def test_its_pipeline_is_five_lines_that_count_per_minute(made: Path, options: list[str]) -> None:
    text = (made / "pipeline.py").read_text()
    assert len(text.partition("pipeline = ")[2].splitlines()) <= 6 and max(map(len, text.splitlines())) <= 140
    pipeline = runpy.run_path(str(made / "pipeline.py"))["pipeline"]
    (emission,) = pipeline.topology().emissions
    runner = ms.testing.LocalRunner(pipeline)
    source = {"kafka_source": "clicks-0", "kafka_id": "0"} if options else {"id": "0"}
    runner.push("clicks", {"page": "tea", "at": 61_000, **source})
    runner.drain()
    ((_, value, timestamp),) = runner.output(emission.stream)
    assert (value["page"], value["start"], value["clicks"], timestamp) == ("tea", 60_000, 1, 119_999)


@KINDS
def test_its_files_say_the_same(made: Path, options: list[str]) -> None:
    project = tomllib.loads((made / "pyproject.toml").read_text())["project"]
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(rf"^millstream\[(.*)\]>={re.escape(ms.__version__)}$", project["dependencies"][0])
    assert set(extras.split(",")) == {"spark", *(["kafka"] if options else [])} <= ours["optional-dependencies"].keys()
    readme, workflow = (made / "README.md").read_text(), (made / ".github" / "workflows" / "test.yml").read_text()
    assert project["name"] == "tea-shop" and readme.startswith("# tea-shop\n") and len(readme.splitlines()) <= 10
    steps = re.findall(r"- run: (.+)", workflow)
    assert steps == [line.strip() for line in readme.splitlines() if line.startswith("    ")][:2]
    assert "$" not in "".join(file.read_text() for file in made.rglob("*") if file.is_file())


@pytest.mark.parametrize("options", [[]])
def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "pipeline.py").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("taken", "file"):
        assert main(["new", str(tmp_path / name)]) == 2
        assert "is not an empty folder" in capsys.readouterr().err
    assert (tmp_path / "taken" / "pipeline.py").read_text() == (tmp_path / "file").read_text() == "mine"
    assert [file.name for file in (tmp_path / "taken").iterdir()] == ["pipeline.py"]
    (tmp_path / "empty").mkdir()
    assert main(["new", str(tmp_path / "empty")]) == 0 and (tmp_path / "empty" / "pipeline.py").exists()


@pytest.mark.parametrize("name", ["tea shop", "1st", "-x-", "tea'", "tea_", ".."])
def test_a_name_that_would_not_do_makes_nothing(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", f"{tmp_path}/{name}"]) == 2
    assert "is no name for a project" in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.spark
def test_what_it_says_to_do_next_can_be_pasted(tmp_path: Path) -> None:
    said = run(tmp_path, "millstream.cli", "new", "clicks").stdout
    commands = [line.strip() for line in said.splitlines() if line.startswith("    ")]
    assert commands[0] == "cd clicks" and "pip install" in commands[1]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "millstream").write_text(f'#!/bin/sh\nexec {sys.executable} -m millstream.cli "$@"\n')
    (tmp_path / "bin" / "millstream").chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "MILLSTREAM_STATE_CACHE": str(tmp_path / "caches")}
    environment["PATH"] = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = "set -e\n" + "\n".join([commands[0], *commands[2:]])
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line)["value"] for line in done.stdout.splitlines() if line.startswith("{")]
    assert sorted((row["page"], row["clicks"]) for row in rows) == [("rum", 1), ("tea", 1), ("tea", 2)]
