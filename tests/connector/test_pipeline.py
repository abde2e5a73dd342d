"""A whole pipeline with the connector at both ends, under kill -9 of the pusher, the sink and the driver: exactly the lines expected."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sourcekit import free_port
from waiting import until

pytestmark = pytest.mark.crash
on_spark = [pytest.mark.spark, pytest.mark.soak]

HERE = Path(__file__).parent


class Parts:
    """The three programs, each of which can be killed and started again."""

    def __init__(self, work: Path, lines: Path, store: list[str], *driver: str) -> None:
        self.work, self.lines, self.store, self.driver = work, lines, store, driver
        self.listen, self.sink = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        work.mkdir(parents=True, exist_ok=True)

    def start(self, name: str) -> None:
        cli = [sys.executable, "-m", "millstream.cli"]
        command = {
            "sink": [*cli, "sink", "run", "--listen", self.sink, "--cookie", "out", *self.store],
            "push": [
                *cli,
                "push",
                str(self.lines),
                "--address",
                self.listen,
                "--stream",
                "lines",
                "--cookie",
                "in",
                "--key",
                "key",
                "--time",
                "at",
                "--watermark",
                "1s",
            ],
            "driver": [sys.executable, str(HERE / "pipejob.py"), str(self.work), self.listen, self.sink, *self.driver],
        }[name]
        with open(self.work / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()

    def said(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self.work.glob("*.log")))


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Callable[..., Parts]]:
    made: list[Parts] = []

    def make(lines: Path, store: list[str], *driver: str) -> Parts:
        made.append(Parts(tmp_path / "work", lines, store, *driver))
        return made[-1]

    yield make
    for one in made:
        for name in list(one.running):
            one.kill(name)


def write_lines(path: Path, count: int) -> dict[str, list[dict[str, int]]]:
    """Lines in order of time, and what the sink must hold for each key."""
    dice = random.Random(1)
    sums: dict[str, int] = {}
    expected: dict[str, list[dict[str, int]]] = {}
    with open(path, "w", encoding="utf-8") as handle:
        for number in range(count):
            key, n = f"k{dice.randrange(20)}", dice.randrange(100)
            handle.write(json.dumps({"key": key, "at": 1_700_000_000_000 + number, "n": n, "number": number}) + "\n")
            sums[key] = sums.get(key, 0) + n
            expected.setdefault(key, []).append({"number": number, "sum": sums[key]})
    return expected


def gather(lines: list[str]) -> dict[str, list[dict[str, int]]]:
    found: dict[str, list[dict[str, int]]] = {}
    for line in lines:
        row = json.loads(line)
        found.setdefault(row["key"], []).append(row["value"])
    return found


def from_files(folder: Path) -> list[str]:
    lines: list[str] = []
    for shard in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "millstream.cli", "sink", "read", str(folder), f"pipe-w-sums-id-{shard}"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        lines += done.stdout.splitlines()
    return lines


def disturbed(parts: Parts, seed: int) -> None:
    """Runs to the end of the input: each part is killed once in turn, then some at random."""
    dice = random.Random(seed)
    for name in ("sink", "driver", "push"):
        parts.start(name)
    wait_for(
        parts,
        lambda: (parts.work / "checkpoint" / "manifests").exists() and len(list((parts.work / "checkpoint" / "manifests").iterdir())) >= 2,
    )
    for name in ("push", "sink", "driver", *[dice.choice(["push", "sink"]) for _ in range(4)]):
        time.sleep(dice.random())
        parts.kill(name)
        time.sleep(dice.random() * 0.5)
        parts.start(name)
    wait_for(parts, lambda: parts.running["push"].poll() is not None)
    assert parts.running["push"].returncode == 0, parts.said()


def wait_for(parts: Parts, condition: Callable[[], Any], seconds: float = 120) -> None:
    def holds() -> bool:
        assert parts.running["driver"].poll() is None, parts.said()
        return bool(condition())

    until(holds, seconds, parts.said, every=0.05)


@pytest.mark.parametrize("driver", [[], pytest.param(["spark"], marks=on_spark)], ids=["without a JVM", "on Spark"])
def test_the_sinks_committed_lines_are_exactly_the_lines_expected(parts: Callable[..., Parts], tmp_path: Path, driver: list[str]) -> None:
    expected = write_lines(tmp_path / "lines.json", 6_000)
    three = parts(tmp_path / "lines.json", ["--dir", str(tmp_path / "committed")], *driver)
    disturbed(three, 1)
    assert gather(from_files(tmp_path / "committed")) == expected


@pytest.mark.spark
@pytest.mark.soak
def test_the_same_into_postgresql(parts: Callable[..., Parts], tmp_path: Path, postgres: str) -> None:
    import psycopg

    expected = write_lines(tmp_path / "lines.json", 5_000)
    three = parts(tmp_path / "lines.json", ["--postgres", postgres, "--table", "pipe"], "spark")
    disturbed(three, 2)
    with psycopg.connect(postgres) as connection:
        rows = connection.execute("SELECT line FROM pipe ORDER BY worker, at").fetchall()
        connection.execute("DROP TABLE IF EXISTS pipe, pipe_staged, pipe_workers, pipe_left")
    assert gather([bytes(line).decode() for (line,) in rows]) == expected
