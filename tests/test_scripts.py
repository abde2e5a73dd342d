"""The Makefile and the scripts behind it: what is installed when, and a word every few seconds."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PATIENTLY = ROOT / "scripts" / "patiently.py"


def planned(target: str, venv: Path) -> str:
    """What make would do."""
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"
    }  # we may be run by make ourselves
    command = ["make", "--no-print-directory", "-n", target, f"VENV={venv}"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def patiently(folder: Path, code: str, patience: float = 5.0) -> subprocess.CompletedProcess[str]:
    run = (
        f"import runpy, sys; main = runpy.run_path({str(PATIENTLY)!r})['main']; main.__globals__['SILENCE'] = {patience}; "
        "sys.exit(main('waiting ...', sys.argv[1], sys.argv[2:]))"
    )
    return subprocess.run([sys.executable, "-c", run, str(folder / "log"), sys.executable, "-c", code], capture_output=True, text=True)


class TestMake:
    def test_the_demo_installs_what_it_needs_and_setup_everything(self, tmp_path: Path) -> None:
        demo, setup = planned("demo", tmp_path / "venv"), planned("setup", tmp_path / "venv")
        assert f"install.sh python3 {tmp_path / 'venv'} demo " in demo and f"{tmp_path / 'venv'} dev " not in demo
        assert f"install.sh python3 {tmp_path / 'venv'} dev " in setup and f"{tmp_path / 'venv'} demo " not in setup
        assert demo.rstrip().endswith(f"{tmp_path / 'venv'}/bin/python -m demos --output demo-output")

    def test_nothing_is_installed_twice(self, tmp_path: Path) -> None:
        (tmp_path / ".installed-demo").touch()
        assert "install.sh" not in planned("demo", tmp_path) and " dev " in planned("setup", tmp_path)
        (tmp_path / ".installed").touch()
        assert "install.sh" not in planned("demo", tmp_path) + planned("setup", tmp_path)

    def test_setup_is_enough_for_the_demo(self, tmp_path: Path) -> None:
        touched = [line for line in planned("setup", tmp_path).splitlines() if line.startswith("touch")]
        assert touched == [f"touch {tmp_path}/.installed-demo {tmp_path}/.installed-docs {tmp_path}/.installed"]

    def test_what_is_installed_has_the_versions_of_the_lock_file(self, tmp_path: Path) -> None:
        lines = (ROOT / "constraints.txt").read_text().splitlines()
        assert not [line for line in lines[1:] if not re.fullmatch(r"[\w.-]+==[\w.!+-]+", line)], "no paths, and no addresses"
        locked = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in lines[1:]}
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        wanted = [Requirement(line) for some in [project["dependencies"], *project["optional-dependencies"].values()] for line in some]
        names = {canonicalize_name(one.name) for one in wanted} - {"millstream"}
        assert len(names) > 20 and names <= locked.keys()
        assert [
            str(one) for one in wanted if one.name != "millstream" and not one.specifier.contains(locked[canonicalize_name(one.name)])
        ] == []
        assert (ROOT / "scripts" / "install.sh").read_text().count("-c $here/../constraints.txt") == 1
        assert "--newest" in planned("lock", tmp_path) and "--newest" not in planned("setup", tmp_path / "other")


class TestPatiently:
    @pytest.mark.slow
    def test_it_says_what_it_waits_for_and_how_it_is_getting_on(self, tmp_path: Path) -> None:
        done = patiently(tmp_path, "import time; print('Collecting tea', flush=True); time.sleep(2.5); print('ready')", patience=0.0)
        lines = done.stdout.splitlines()
        assert done.returncode == 0 and lines[0] == "waiting ..." and lines[-1].startswith("done in ")
        assert any(line.endswith(" s  Collecting tea") for line in lines[1:-1]) and max(map(len, lines)) < 200
        assert (tmp_path / "log").read_text() == "Collecting tea\nready\n"

    def test_a_failure_shows_the_end_of_the_log(self, tmp_path: Path) -> None:
        done = patiently(tmp_path, "import sys; print('\\n'.join(f'line {n}' for n in range(100))); sys.exit('no network')")
        assert done.returncode == 1 and "done in" not in done.stdout
        assert "failed with exit code 1" in done.stdout and "no network" in done.stdout
        assert "line 99" in done.stdout and "line 9\n" not in done.stdout

    def test_in_a_terminal_one_line_is_rewritten(self, tmp_path: Path) -> None:
        ours, theirs = pty.openpty()
        code = "import time; print('Collecting tea', flush=True); time.sleep(1)"
        process = subprocess.Popen([sys.executable, PATIENTLY, "waiting ...", tmp_path / "log", sys.executable, "-c", code], stdout=theirs)
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 4096):
                shown += data
        except OSError:
            pass  # the other end is closed
        assert process.wait() == 0
        text = shown.decode()
        assert text.count("\r\n") == 2 and text.count("\r\x1b[K") > 2 and "s  Collecting tea" in text

    def test_an_interruption_ends_all_that_was_started(self, tmp_path: Path) -> None:
        code = f"import subprocess, sys; p = subprocess.Popen(['sleep', '60']); open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid) + '.'); p.wait()"
        process = subprocess.Popen(
            [sys.executable, PATIENTLY, "waiting ...", tmp_path / "log", sys.executable, "-c", code], stdout=subprocess.PIPE
        )
        end = time.monotonic() + 30
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("."):
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        pid = (tmp_path / "pid").read_text().rstrip(".")
        state = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True).stdout.strip()
        assert not state or state.startswith("Z")


def test_java_that_is_not_there_is_said(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", ROOT / "scripts" / "java.sh"], env={**os.environ, "JAVA_HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert (
        done.returncode == 1
        and f"JAVA_HOME is {tmp_path}, which has no bin/java" in done.stdout
        and "set JAVA_HOME to one you have" in done.stdout
    )


def test_java_that_is_too_old_is_said(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    done = subprocess.run(
        ["sh", ROOT / "scripts" / "java.sh"], env={**os.environ, "JAVA_HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 1 and f"found Java 11 ({java}); Spark needs 17 or newer" in done.stdout
