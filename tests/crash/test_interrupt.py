"""Ctrl-C, whenever it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.crash]

PROGRAM = """
import millstream as ms

class Count(ms.Computation):
    State = int
    def process_record(self, record):
        self.state += 1

pipeline = ms.Pipeline("interrupted")
pipeline.compute(Count, pipeline.inject("in", ms.sources.rate(1), timestamp="timestamp"), key="value")
"""


def alive(session: int) -> list[str]:
    """The processes of a session that are still there."""
    found = []
    for process in psutil.process_iter(["name", "status"]):
        try:
            if os.getsid(process.pid) == session and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.info["name"])
        except (ProcessLookupError, psutil.Error):
            pass
    return found


@pytest.mark.parametrize("wait_for_java", [0.1, 1.5])
def test_ctrl_c_while_the_jvm_starts_ends_with_a_word_and_leaves_no_process_behind(tmp_path: Path, wait_for_java: float) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "millstream.cli", "run", "program.py"]
    with open(tmp_path / "said", "w") as said:
        child = subprocess.Popen(command, cwd=tmp_path, stdout=said, stderr=said, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while "java" not in alive(child.pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(wait_for_java)
        os.killpg(child.pid, signal.SIGINT)
        assert child.wait(60) in (0, 130)
        deadline = time.monotonic() + 30
        while alive(child.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert alive(child.pid) == []
    finally:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    text = (tmp_path / "said").read_text()
    assert "Traceback" not in text and ("interrupted" in text or "stopped" in text), text


def test_ctrl_c_while_millstream_is_imported_is_as_calm(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with open(tmp_path / "said", "w") as said:
        command = [sys.executable, "-c", "from millstream_command import main; raise SystemExit(main())", "run", "program.py"]
        child = subprocess.Popen(command, cwd=tmp_path, stdout=said, stderr=said, start_new_session=True)
    deadline = time.monotonic() + 60
    while "libarrow" not in Path(f"/proc/{child.pid}/maps").read_text() and time.monotonic() < deadline:
        time.sleep(0.005)  # when it is mapped, most modules are still to come
    os.kill(child.pid, signal.SIGINT)
    assert child.wait(60) == 130
    assert (tmp_path / "said").read_text().startswith("millstream: interrupted")


def test_a_terminal_that_a_killed_view_has_left_without_a_cursor_gets_it_back() -> None:
    import pty

    parent, child = pty.openpty()
    done = subprocess.run([sys.executable, "-m", "millstream.cli", "--version"], stdout=child, timeout=60, check=True)
    os.close(child)
    shown = os.read(parent, 1000)
    assert done.returncode == 0 and b"\x1b[?25h" in shown and b"millstream 0" in shown
