"""A local Spark session that is set up well, for those who bring none.

Rules
1. A setting that is wrong for somebody can be changed: what the caller says wins.
2. Nothing of Spark's start-up is shown (log levels, Log4j, native libraries); if Spark does not start, the error has its last words (`jvm.py`).
3. `short` is for bounded runs, whose time goes into starting: see `jvm.py`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

from millstream.errors import MillstreamError

from . import jvm
from .versions import FILE_MANAGER, MICRO_BATCHES

#: Spark says here, once per try and with its whole stack, what a run then ends with in two lines; and what it does with a task whose job is over.
_HUSHED = (
    MICRO_BATCHES,
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.scheduler.DAGScheduler",
)

_QUERY_CONTEXTS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")  # PySpark logs what it raises

OWN_SESSION = "spark.millstream.resident"  # a session that was made for a resident run has a slot to spare

#: At any other value Spark asks an Arrow batch for its size after every row. The row cap alone bounds a batch then.
ARROW = {"spark.sql.execution.arrow.maxRecordsPerBatch": "65536", "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647"}


def local_settings(cores: int) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.python.worker.reuse": "true",
        "spark.python.unix.domain.socket.enabled": "true",  # an epoch of one record takes 0.7 of the time that it takes over TCP
        "spark.shuffle.compress": "false",  # it never leaves this machine
        # Spark's default for local disks starts a process for every look at a file, three times an epoch: about 90 ms. Its offset log needs no
        # exclusive creation here, because the manifest decides who owns an epoch.
        "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
        **ARROW,
    }


def local_session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None, short: bool = False, resident: bool = False
) -> Any:
    """The active session, or a new one. resident: with a slot to spare, and tries without end, for tasks that stay for months. Two tries per task are two
    tries too few when a worker is killed: local mode is told to retry like a cluster."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _find_modules_beside_the_script()
    cores = os.cpu_count() or 2
    local = master is None or master.startswith("local")
    builder = SparkSession.builder.appName(name).master(master or (f"local[{cores + 1},1000]" if resident else f"local[{cores},4]"))
    chosen = {**({**local_settings(cores), **jvm.options(short)} if local else ARROW), **(settings or {})}
    if resident and master is None:
        chosen[OWN_SESSION] = "true"
    for key, value in chosen.items():
        builder = builder.config(key, value)
    _hush_py4j()
    with jvm.quiet_start() as log:
        try:
            session = builder.getOrCreate()
        except Exception as error:
            raise MillstreamError(jvm.why_java_does_not_do() or f"Spark does not start: {error}\n{log.tail()}") from error
    session.sparkContext.setLogLevel("ERROR")
    if local:
        _without_checksum_files(session)
    return session


def _find_modules_beside_the_script() -> None:
    """Workers import what the script imports from its own folder, as Python itself does."""
    folder, known = sys.path[0] if sys.path else "", os.environ.get("PYTHONPATH", "")
    if os.path.isdir(folder) and folder not in known.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (known, folder)))


def _without_checksum_files(spark: Any) -> None:
    """Spark's log on a local disk has a hidden checksum file beside each file, and Hadoop starts a `chmod` for both: six processes an epoch, three
    without. What Spark has planned is compared with the manifests anyway."""
    with contextlib.suppress(Exception):
        java, hadoop = spark.sparkContext._jvm, spark.sparkContext._jsc.hadoopConfiguration()
        java.org.apache.hadoop.fs.FileSystem.get(java.java.net.URI("file:///"), hadoop).setWriteChecksum(False)


UTC = ("UTC", "Etc/UTC", "Z", "GMT", "Etc/GMT", "+00:00", "UTC+0", "Greenwich", "Universal", "Zulu")

#: Settings that a session of the user's should have: the values, and what another one costs.
_SUITABLE = {
    "spark.sql.adaptive.enabled": (("false",), "Spark plans every stage of every epoch anew"),
    "spark.sql.session.timeZone": (UTC, "SQL text over dates and times means that zone"),
}


def unsuitable(spark: Any) -> list[str]:
    """What of a session is not as Millstream would have it, each with what it costs. It works nevertheless."""
    found = [
        f"{name}={said} ({values[0]} is better: {cost})"
        for name, (values, cost) in _SUITABLE.items()
        if (said := spark.conf.get(name)) not in values
    ]
    master = spark.sparkContext.master
    if master.startswith("local") and "," not in master:
        found.append(f"master {master} (local[N,4] is better: without a number of tries, one lost worker process ends the run)")
    return found


def hush(spark: Any, at_length: bool = False) -> None:
    """Keeps Spark and py4j from logging at length the very error that a run is about to end with, tasks that are lost and run again, and PySpark's server of
    accumulators from telling that Java has gone. at_length: Spark itself goes on as it was told, as in a session of the user's."""
    _hush_py4j()
    with contextlib.suppress(Exception):
        log4j = spark.sparkContext._jvm.org.apache.logging.log4j
        for name in _HUSHED[:1] if at_length else _HUSHED:
            log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
    with contextlib.suppress(Exception):
        spark.sparkContext._accumulatorServer.handle_error = lambda request, client: None


def _hush_py4j() -> None:
    for name in ("py4j.clientserver", "py4j.java_gateway", None):
        logging.getLogger(name).addFilter(_no_echo)
    from pyspark.logger import PySparkLogger

    for name in _QUERY_CONTEXTS:
        PySparkLogger.getLogger(name).disabled = True


def _no_echo(record: logging.LogRecord) -> bool:
    """False for py4j's echo of an exception that is raised anyway."""
    echoes = ("exception while executing the Python Proxy", "xception while sending command", "KeyboardInterrupt while sending")
    return not any(sign in record.getMessage() for sign in echoes)
