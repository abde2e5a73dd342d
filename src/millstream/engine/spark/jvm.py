"""Starting Spark's JVM: quietly, and soon.

Rules
1. What the JVM and Log4j say while they start is dropped, line by line; and so is the traceback of a Python worker that was idle when its JVM ended and could
   not say goodbye. All else on the JVM's stderr (Spark's errors, what hooks print in the workers) is passed on to ours, as long as we live.
2. Ctrl-C while the JVM starts ends us, and the JVM with us. PySpark would leave it behind, because it has not got as far as to notice.
3. The first short run leaves an archive of the classes that Spark loads in the user's cache (when its JVM ends, in the background), and later JVMs map it
   instead of loading and checking thousands of classes. Java does without one that does not fit. Deleting it costs a slower start.
4. A short run has the quick compiler alone and the simplest collector: it is over before anything else would pay. A long one has Java's defaults.
5. No thread of ours is at work in the JVM when the session, or the interpreter, ends. A thread that comes back into an interpreter that is being taken down
   aborts the process; a job whose session ends under it is told at length.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from millstream.state import cache_cleanup

JAVA = 17
_HUSHED = ("-Xlog:disable", "-Xlog:all=error:stderr")  # Java warns of an archive that it does without on stdout, which is the program's own
_SHORT = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_SETTLED = 5.0  # seconds after which a file that was being written is complete
_TRY_AGAIN = 600.0  # seconds after which another process may try to make the archive

_NOISE = re.compile(
    rb"Using incubator modules|default log4j profile|Setting default log level|To adjust logging level|NativeCodeLoader|Picked up JDK_JAVA_OPTIONS"
    rb"|Picked up JAVA_TOOL_OPTIONS|WARN Utils: (Your hostname|Set SPARK_LOCAL_IP|Service )|\[warning\]\[cds|sharing is only supported|shared archive file"
    rb"|Preparing|:: loading settings|Ivy Default Cache|The jars for the packages stored"
)


class StartLog:
    """The JVM's first words. They are kept back until it is up: if it does not start, they are in the error. A JVM whose session could not be made is up all
    the same, and the next session may have it: what it says from then on is shown."""

    def __init__(self, passed_on: int) -> None:
        self._passed_on = passed_on
        self._lines: deque[bytes] = deque(maxlen=50)
        self._held: list[bytes] | None = []
        self._lock = threading.Lock()

    def pass_on(self, reading: int) -> None:
        """Reads what the JVM says to its end (a thread), and shows what is no noise: now, or when the JVM is up."""
        with os.fdopen(reading, "rb") as given:
            for line in without_noise(self._noted(given)):
                with self._lock, contextlib.suppress(OSError):
                    if self._held is not None:
                        self._held.append(line)
                    else:
                        os.write(self._passed_on, line)
        os.close(self._passed_on)

    def _noted(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        for line in lines:
            self._lines.append(line)
            yield line

    def show(self, held: bool) -> None:
        """Whatever it says from now on is shown at once. held: what was kept back, too."""
        with self._lock, contextlib.suppress(OSError):
            lines, self._held = self._held or [], None
            for line in lines if held else ():
                os.write(self._passed_on, line)

    def tail(self) -> str:
        return b"".join(self._lines).decode(errors="replace")


@contextlib.contextmanager
def quiet_start() -> Iterator[StartLog]:
    """While it lasts, processes that are started have a pipe as their stderr, which is passed on without the noise."""
    kept = os.dup(2)
    log = StartLog(kept)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    threading.Thread(target=log.pass_on, args=(reading,), name="millstream-spark-stderr", daemon=True).start()
    try:
        with _killed_if_interrupted():
            yield log
        log.show(held=True)
    except BaseException:
        log.show(held=False)
        raise
    finally:
        os.dup2(kept, 2)  # ours again; the children keep the pipe


@contextlib.contextmanager
def _killed_if_interrupted() -> Iterator[None]:
    """Rule 2: what PySpark starts in here does not outlive an interrupt."""
    from pyspark import java_gateway

    started: list[subprocess.Popen[bytes]] = []
    popen = java_gateway.Popen

    def noted(*args: Any, **kwargs: Any) -> Any:
        started.append(popen(*args, **kwargs))
        return started[-1]

    java_gateway.Popen = noted
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        for process in started:
            with contextlib.suppress(OSError):
                process.kill()
        raise
    finally:
        java_gateway.Popen = popen


def without_noise(lines: Iterable[bytes]) -> Iterator[bytes]:
    """What of a JVM's stderr is worth showing. A traceback is kept back until its last line."""
    held: list[bytes] = []
    for line in lines:
        if line.startswith(b"Traceback (most recent call last)"):
            yield from held
            held = [line]
        elif held:
            held.append(line)
            if not line.startswith(b" "):
                yield from [] if _is_goodbye(held) else held
                held = []
        elif not _NOISE.search(line):
            yield line
    yield from held


def _is_goodbye(traceback: list[bytes]) -> bool:
    """Whether a traceback is that of a worker whose JVM has ended: PySpark's own code, which found nobody at the other end."""
    frames = [line for line in traceback if line.startswith(b'  File "')]
    return traceback[-1].startswith(b"BrokenPipeError") and all(b"pyspark/daemon.py" in line for line in frames)


def java() -> str | None:
    """The Java that Spark would start: that of JAVA_HOME if it is set, and then no other; None if there is none."""
    return shutil.which("java", path=os.path.join(os.environ["JAVA_HOME"], "bin") if os.environ.get("JAVA_HOME") else None)


def why_java_does_not_do() -> str | None:
    """What is wrong with the Java that is there, and how to get one that will do; None if nothing is."""
    found, version = java(), ""
    if found is not None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=30).stderr
            version = next(iter(re.findall(r'version "(\d+)', said)), "")
        if version and int(version) >= JAVA:
            return None
    home = os.environ.get("JAVA_HOME")
    which = (
        f"{found} is Java {version or 'of an unknown version'}"
        if found is not None
        else f"JAVA_HOME is {home}, which has no bin/java"
        if home
        else "there is no java on the PATH, and JAVA_HOME is not set"
    )
    return (
        f"Spark needs Java {JAVA} or newer: {which}. Install one (Debian, Ubuntu: apt install openjdk-17-jre-headless; Fedora: dnf install "
        f"java-17-openjdk-headless; macOS: brew install openjdk@17), or set JAVA_HOME to one you have, and run the command again."
    )


def options(short: bool) -> dict[str, str]:
    """Settings of the JVM. short: little work is expected, and most of the time goes into starting."""
    given = list(_SHORT) if short else []
    kept = archive()
    if kept is not None and kept.exists():
        given += ["-Xshare:auto", f"-XX:SharedArchiveFile={kept}", *_HUSHED]
    elif kept is not None and short and _may_make(kept):
        given += [f"-XX:ArchiveClassesAtExit={kept.with_suffix(f'.{os.getpid()}.new')}", *_HUSHED]
    return {"spark.driver.extraJavaOptions": " ".join(given)} if given else {}


def cache_folder() -> Path:
    return Path(os.environ.get("MILLSTREAM_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millstream")


def archive() -> Path | None:
    """Where the archive of Spark's classes is kept for this Java and this PySpark; None where nothing can be kept."""
    import pyspark

    ours = java()
    if ours is None:
        return None
    found = os.path.realpath(ours)
    what = f"{pyspark.__version__} {pyspark.__file__} {found} {os.stat(found).st_mtime_ns}"
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    kept = folder / f"spark-classes-{hashlib.blake2b(what.encode(), digest_size=8).hexdigest()}.jsa"
    for made in [] if kept.exists() else folder.glob(f"{kept.stem}.*.new"):
        with contextlib.suppress(OSError):
            if time.time() - made.stat().st_mtime > _SETTLED:
                made.rename(kept)
                for old in cache_cleanup.archives(folder):
                    cache_cleanup.remove(old)
    return kept


def _may_make(kept: Path) -> bool:
    """Whether this process is the one that makes the archive: one at a time tries."""
    marker = kept.with_suffix(".making")
    with contextlib.suppress(OSError):
        if marker.exists() and time.time() - marker.stat().st_mtime < _TRY_AGAIN:
            return False
        marker.touch()
        return os.access(kept.parent, os.W_OK)
    return False


def warm_up(spark: Any) -> Callable[[], None]:
    """Starts the Python workers, and has Spark load what a task needs, while the driver still prepares the query. Rule 5: whoever started it calls what is
    returned, before the session ends or the process does. It waits, some seconds at the most: cancelling would have Spark tell of a job that failed."""

    def touch(batches: Iterator[Any]) -> Iterator[Any]:
        import millstream.engine.spark.task_function  # noqa: F401

        yield from batches

    def work() -> None:
        with contextlib.suppress(Exception):
            cores = spark.sparkContext.defaultParallelism
            spark.range(0, cores, 1, cores).repartition(cores).mapInArrow(touch, "id long").toArrow()

    thread = threading.Thread(target=work, name="millstream-warm-up", daemon=True)
    thread.start()
    return thread.join
