"""A real standalone cluster on loopback: a master and two workers as processes of their own, from the pip package."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest

import support

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.soak]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = Path(pyspark.__file__).parent
    folder, port = tmp_path_factory.mktemp("coordinator"), free_port()
    env = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1"}
    command = [str(home / "bin" / "spark-class")]
    master = [*command, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    processes = [subprocess.Popen(master, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)]
    url = f"spark://127.0.0.1:{port}"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            break
        except OSError:
            time.sleep(0.1)
    for index in range(2):
        worker = [
            *command,
            "org.apache.spark.deploy.worker.Worker",
            url,
            "--host",
            "127.0.0.1",
            "--cores",
            "1",
            "--memory",
            "1g",
            "--webui-port",
            "0",
            "-d",
            str(folder / str(index)),
        ]
        processes.append(subprocess.Popen(worker, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    yield url
    for process in processes:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait()


def executors() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line: Any = process.info["cmdline"] or []
        if any("CoarseGrainedExecutorBackend" in part for part in line) and "127.0.0.1" in " ".join(line):
            found.append(process)
    return found


def test_an_executor_killed_in_mid_epoch_and_a_stalled_attempt_overtaken_by_speculation(coordinator: str, tmp_path: Path) -> None:
    files = support.queries(7, 40)
    support.write_queries(tmp_path / "queries", files)
    killed_in, overtaken_in = files[2][5]["id"], files[4][5]["id"]
    process = support.start_job(
        tmp_path,
        "--drain",
        "--master",
        coordinator,
        "--shards",
        "2",
        "--stall",
        f"{killed_in}=6",
        "--stall",
        f"{overtaken_in}=8",
        "--conf",
        "spark.speculation=true",
        "--conf",
        "spark.speculation.interval=200ms",
        "--conf",
        "spark.speculation.quantile=0.3",
        "--conf",
        "spark.speculation.multiplier=2",
        "--conf",
        "spark.speculation.minTaskRuntime=500ms",
        "--conf",
        "spark.speculation.task.duration.threshold=4s",
    )
    try:
        marker = tmp_path / f"stalled-{killed_in}"
        deadline = time.monotonic() + 90
        while not marker.exists() and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()[0][-3000:]
            time.sleep(0.05)
        assert marker.exists()
        alive = executors()
        assert alive
        os.kill(alive[0].pid, signal.SIGKILL)
        said = process.communicate(timeout=120)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said[-3000:]
    assert (tmp_path / f"stalled-{overtaken_in}").exists()
    support.assert_same(tmp_path, support.oracle(tmp_path, files, drain=True))


def test_an_executor_of_a_resident_run_is_killed_in_mid_epoch(coordinator: str, tmp_path: Path) -> None:
    files = support.queries(7, 40)
    support.write_queries(tmp_path / "queries", files)
    killed_in = files[2][5]["id"]
    options = ["--drain", "--resident", "--tasks", "2", "--master", coordinator, "--shards", "2", "--stall", f"{killed_in}=6"]
    process = support.start_job(tmp_path, *options)
    try:
        marker = tmp_path / f"stalled-{killed_in}"
        deadline = time.monotonic() + 90
        while not marker.exists() and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()[0][-3000:]
            time.sleep(0.05)
        assert marker.exists()
        os.kill(executors()[0].pid, signal.SIGKILL)
        said = process.communicate(timeout=120)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said[-3000:]
    support.assert_same(tmp_path, support.oracle(tmp_path, files, drain=True))
