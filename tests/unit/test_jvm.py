"""The archive of Spark's classes: made once, by one process, and used when it is complete."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from millstream.engine.spark import jvm
from millstream.engine.spark.error_text import reason, translated
from millstream.errors import Fenced, InputError


@pytest.fixture(autouse=True)
def _java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "java" / "bin").mkdir(parents=True)
    (tmp_path / "java" / "bin" / "java").write_text("#!/bin/sh\n")
    (tmp_path / "java" / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path / "cache"))


def test_the_first_short_run_makes_it_and_only_one_does() -> None:
    first = jvm.options(True)["spark.driver.extraJavaOptions"]
    assert "-XX:ArchiveClassesAtExit=" in first and "TieredStopAtLevel=1" in first
    assert "ArchiveClassesAtExit" not in jvm.options(True)["spark.driver.extraJavaOptions"]
    assert jvm.options(False) == {}, "a long run has Java's defaults"


def test_it_is_used_when_it_has_been_complete_for_a_while() -> None:
    kept = jvm.archive()
    assert kept is not None
    made = kept.with_suffix(".123.new")
    made.write_bytes(b"classes")
    assert not jvm.archive().exists(), "it may still be written"  # type: ignore[union-attr]
    os.utime(made, (time.time() - 60, time.time() - 60))
    assert jvm.archive().exists()  # type: ignore[union-attr]
    assert f"-XX:SharedArchiveFile={kept}" in jvm.options(True)["spark.driver.extraJavaOptions"]
    assert f"-XX:SharedArchiveFile={kept}" in jvm.options(False)["spark.driver.extraJavaOptions"]


def test_another_java_has_another_archive(tmp_path: Path) -> None:
    before = jvm.archive()
    os.utime(tmp_path / "java" / "bin" / "java", (1, 1))
    assert jvm.archive() != before


GOODBYE = [
    b"Traceback (most recent call last):\n",
    b'  File "/venv/pyspark/python/lib/pyspark.zip/pyspark/daemon.py", line 264, in manager\n',
    b'  File "/venv/pyspark/python/lib/pyspark.zip/pyspark/daemon.py", line 95, in worker\n',
    b"BrokenPipeError: [Errno 32] Broken pipe\n",
]


def test_the_goodbye_of_an_idle_worker_is_noise_and_every_other_traceback_is_shown_whole() -> None:
    theirs = [*GOODBYE[:2], b'  File "/code/words.py", line 3, in process_record\n', GOODBYE[3]]
    other = [*GOODBYE[:3], b"ValueError: no\n"]
    said = [b"a hook prints\n", b"WARN NativeCodeLoader: no\n", *GOODBYE, b"more\n", *theirs, *other, *GOODBYE, *GOODBYE[:2]]
    assert list(jvm.without_noise(said)) == [b"a hook prints\n", b"more\n", *theirs, *other, *GOODBYE[:2]]
    assert list(jvm.without_noise([GOODBYE[0], *other])) == [GOODBYE[0], *other], "two at once: nothing is lost"


STACK = """org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/in/a.json. SQLSTATE: KD001
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(QueryExecutionErrors.scala:1)
Caused by: org.apache.spark.SparkException: [MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records are detected in record
parsing: [tea,null]. SQLSTATE: 22023
\t... 30 more
"""


def test_a_reason_is_all_that_spark_says_and_none_of_its_stack() -> None:
    said = reason(STACK)
    assert "a.json" in said and "[tea,null]" in said and "scala" not in said and "SQLSTATE" not in said and "\n" not in said
    found = translated(RuntimeError(STACK), ("a hint",))
    assert isinstance(found, InputError) and "a.json" in str(found) and "a hint" in str(found) and len(str(found).splitlines()) <= 4
    assert isinstance(translated(RuntimeError("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log")), Fenced)
    other = RuntimeError("something else")
    assert translated(other) is other


def test_a_jvm_whose_session_could_not_be_made_is_heard_when_the_next_session_has_it(capfd: pytest.CaptureFixture[str]) -> None:
    jvm_process = []
    with pytest.raises(RuntimeError), jvm.quiet_start() as log:
        jvm_process.append(subprocess.Popen(["sh", "-c", "echo first >&2; read go; echo second >&2"], stdin=subprocess.PIPE))
        while "first" not in log.tail():
            time.sleep(0.01)
        raise RuntimeError("no session")
    jvm_process[0].communicate(b"\n")
    said = ""
    for _ in range(500):
        said += capfd.readouterr().err
        if said:
            break
        time.sleep(0.01)
    assert said == "second\n"
