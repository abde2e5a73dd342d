"""Optional parts that are not installed: whatever needs one says so in one sentence, which can be pasted; and everything else works without."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from millstream import extras

ROOT = Path(__file__).parent.parent.parent
GRPC = ("grpc", "google", "grpc_health", "grpc_reflection")
SERVICE = (
    "needs the extra 'service', which is not installed (there is no module 'google'). In your clone of Millstream: pip install '.[service]'"
)
CLI = "from millstream.cli import main; raise SystemExit(main({}))"
TABLE = "import millstream as ms; visits = ms.service.Table('visits')\n"
README = TABLE + "with ms.testing.serving(visits) as address, ms.service.Client(address, 'visits') as client: pass"
RUN = """
import millstream as ms
p = ms.Pipeline("p")
p.emit(p.inject("in", ms.sources.files("nowhere", schema="k string, at long"), timestamp="at"), ms.sinks.service("127.0.0.1:1", "t"))
ms.testing.LocalRunner(p)
p.topology().emissions[0].sink.check()
"""


def without(modules: tuple[str, ...], code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A program on a machine that does not have some modules."""
    program = f"import sys; sys.modules.update(dict.fromkeys({modules!r}))\n{code}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=folder, timeout=60, env=os.environ)


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        README,
        TABLE + "ms.service.Client('127.0.0.1:1', 'visits')",
        CLI.format("['serve', 'tables', 'tables.py']"),
        CLI.format("['serve', 'checkpoint', 'nowhere']"),
        CLI.format("['kv', 'get', 'visits', 'tea']"),
        CLI.format("['partitions', 'list']"),
        RUN,
    ],
)
def test_the_state_service_without_grpc_says_which_extra_brings_it(code: str, tmp_path: Path) -> None:
    (tmp_path / "tables.py").write_text(TABLE)
    ran = without(GRPC, code, tmp_path)
    assert ran.returncode == 1 and SERVICE in ran.stderr, ran.stderr
    if code.startswith("from millstream.cli"):
        assert ran.stderr.count("\n") == 1


def test_millstream_works_without_any_extra(tmp_path: Path) -> None:
    every = tuple(module for modules in extras._BRINGS.values() for module in modules)
    code = "import millstream.cli; import millstream as ms; ms.service.Table('t'); ms.testing.LocalRunner; from millstream.cli import main; main(['--help'])"
    ran = without(every, code, tmp_path)
    assert ran.returncode == 0 and "serve" in ran.stdout, ran.stderr


SPARK = "running on Spark needs the extra 'spark', which is not installed (there is no module 'pyspark'). In your clone of Millstream: pip install '.[spark]'"
NO_RUN = """
import millstream as ms
p = ms.Pipeline("p")
p.emit(p.inject("in", ms.sources.rate(1), timestamp="timestamp"), ms.sinks.memory())
p.run(checkpoint="checkpoint", available_now=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [NO_RUN, CLI.format("['run', 'p.py', '--checkpoint', 'c', '--available-now']")])
def test_a_run_without_pyspark_says_which_extra_brings_it(code: str, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(NO_RUN.replace("p.run(", "# "))
    ran = without(extras._BRINGS["spark"], code, tmp_path)
    assert ran.returncode == 1 and SPARK in ran.stderr, ran.stderr


def test_a_module_that_no_extra_brings_is_an_ordinary_error() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), extras.needed("it"):
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401


def test_every_extra_that_is_named_exists() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras._BRINGS) <= set(declared)
