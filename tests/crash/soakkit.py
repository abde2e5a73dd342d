"""What the soaks share: input that comes all the time, from files and from a program that pushes, and the job, which can be killed in several ways."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import soakjob

from millstream.connector.source.push import PushClient
from millstream.state.manifest_log import ManifestLog
from millstream.state.segment import runs
from millstream.state.storage import open_storage

HERE = Path(__file__).parent
KEYS = 20_000
START = 1_700_000_000_000


def free_address() -> str:
    """Where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def newest(work: Path) -> int:
    """The last epoch that is committed."""
    folder = work / "checkpoint" / "manifests"
    return max((int(path.stem) for path in folder.glob("*.json")), default=-1) if folder.exists() else -1


def log_size(work: Path) -> tuple[int, int]:
    """The longest chain of segments that the newest manifest names, and how many objects lie in the checkpoint."""
    latest = ManifestLog(open_storage(str(work / "checkpoint"))).latest()
    assert latest is not None
    chains = [len(runs(shard.segments)) for state in latest.computations.values() for shard in state.shards]
    return max(chains), sum(1 for _ in (work / "checkpoint" / "units").iterdir())


def verified(work: Path) -> dict[str, Any]:
    """What the verifier found."""
    done = subprocess.run([sys.executable, str(HERE / "soakverify.py"), str(work)], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Feeder(threading.Thread):
    """Gives each injector its records twice a second, 1 % of the records of files repeated, slightly out of order. push: where the first injector's are pushed
    to, one by one; its files are then only for the verifier, who must know what there was."""

    def __init__(self, work: Path, rate: int, push: str | None = None, keys: int = KEYS) -> None:
        super().__init__(daemon=True)
        self.work, self.rate, self.keys, self.ends = work, rate, keys, threading.Event()
        self.written = 0
        self.client = None if push is None else PushClient(push, cookie="soak", patience=None)
        for source in soakjob.SOURCES:
            (work / source).mkdir(parents=True)

    def run(self) -> None:
        dice = random.Random(7)
        number = dict.fromkeys(soakjob.SOURCES, 0)
        began, index = time.monotonic(), 0
        if self.client is not None:
            self.client.notify(soakjob.SOURCES[0])
        while not self.ends.is_set():
            index += 1
            for source in soakjob.SOURCES:
                rows = []
                for _ in range(max(1, self.rate // 6)):
                    at = START + int((time.monotonic() - began) * 1000)
                    rows.append(
                        {
                            "key": f"k{dice.randrange(self.keys)}",
                            "n": dice.randrange(1000),
                            "at": at,
                            "id": f"{source}-{number[source]:09d}",
                        }
                    )
                    number[source] += 1
                if self.client is not None and source == soakjob.SOURCES[0]:
                    for row in rows:  # ids of one length: records of one moment come in the order of their ids, as text
                        self.client.send(
                            source, 10**9 + int(row["id"][-9:]), json.dumps(row).encode(), event_time=row["at"], key=row["key"]
                        )
                else:
                    rows += dice.sample(rows, len(rows) // 100)
                hidden = self.work / source / f".{index:06d}"
                hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
                hidden.rename(self.work / source / f"{index:06d}.json")
                self.written += len(rows)
            self.ends.wait(0.5)

    def end(self) -> None:
        """No more input."""
        self.ends.set()
        self.join()


class Job:
    """The program of the soak, as a process group of its own."""

    def __init__(self, work: Path, *args: str) -> None:
        self.work = work
        self.before = newest(work)
        with open(work / "job.log", "ab") as log:
            command = [sys.executable, str(HERE / "soakjob.py"), str(work), *args]
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def until_it_commits(self, more: int = 1, seconds: float = 120.0) -> None:
        """Until it has committed so many epochs more than there are now (at first: than there were when it was started)."""
        deadline = time.monotonic() + seconds
        wanted = self.before + more
        while newest(self.work) < wanted:
            assert self.process.poll() is None and time.monotonic() < deadline, self.said()
            time.sleep(0.02)
        self.before = newest(self.work)

    def workers(self) -> list[psutil.Process]:
        """The processes in which resident tasks live: those that Spark's daemon has forked."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                parent = process.parent()
                if parent is not None and "pyspark.daemon" in process.cmdline() and "pyspark.daemon" in parent.cmdline():
                    found.append(process)
            except psutil.Error:
                pass
        return found

    def kill_worker(self, dice: random.Random) -> None:
        """kill -9 of a resident task, when both are there; waits for the next commit."""
        deadline = time.monotonic() + 60
        while len(found := self.workers()) < 2:
            assert self.process.poll() is None and time.monotonic() < deadline, self.said()
            time.sleep(0.05)
        os.kill(dice.choice(found).pid, signal.SIGKILL)
        self.before = newest(self.work)
        self.until_it_commits()

    def kill(self) -> None:
        """kill -9 of everything."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Ends it as an operator would."""
        self.process.send_signal(signal.SIGTERM)
        self.ended()

    def ended(self, seconds: float = 120.0) -> None:
        """Waits for its end, which must be a good one."""
        assert self.process.wait(seconds) == 0, self.said()

    def close(self) -> None:
        """However it is."""
        if self.process.poll() is None:
            self.kill()

    def said(self) -> str:
        return (self.work / "job.log").read_text()[-3000:]
