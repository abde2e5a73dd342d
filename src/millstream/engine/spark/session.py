"""A local Spark session that is set up well, for those who bring none."""

from __future__ import annotations

import os
import sys
from typing import Any

#: Spark's default for local disks starts a process for every look at a file, three times an epoch: about 90 ms. Its offset log needs no
#: exclusive creation here, because the manifest decides who owns an epoch.
_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def local_session(name: str) -> Any:
    """Two tries per task are two tries too few when a worker is killed: local mode is told to retry like a cluster."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    cores = os.cpu_count() or 2
    session = (
        SparkSession.builder.appName(name)
        .master(f"local[{cores},4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(cores))
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "65536")
        .config("spark.python.worker.reuse", "true")
        .config("spark.shuffle.compress", "false")  # it never leaves this machine
        .config("spark.sql.streaming.checkpointFileManagerClass", _FILE_MANAGER)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session
