"""One Spark session for the whole run; replicas in a folder of the run's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def _replicas(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["MILLSTREAM_REPLICAS"] = str(tmp_path_factory.mktemp("replicas"))
    # many short-lived JVMs: the quick compiler alone starts in half the time
    os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    os.environ["MILLSTREAM_CACHE"] = os.path.join(os.devnull, "none")  # no archive of classes: JVMs that are killed would leave half of one
    here = Path(__file__).parent  # the workers import the test modules that hold the computations
    folders = [here, here / "spark", here / "crash", here / "connector", os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(str(folder) for folder in folders)


@pytest.fixture(scope="session")
def spark(_replicas: None) -> Iterator[Any]:
    from millstream.engine.spark.session import local_session

    session = local_session("tests")
    yield session
    session.stop()
