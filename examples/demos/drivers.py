"""Drivers that are killed, each followed by another, until the pipeline has ended.

Rules
1. Kills are planned by epoch. One comes from outside, in the midst of the epoch that follows; one at a crash point inside an epoch
   (`millstream.faults`), between the commit and the publication of its output.
2. A kill is SIGKILL to the driver, its JVM and its Python workers, and none of them cleans up. So what they keep on local disk (Spark's
   shuffles, Millstream's replicas) is in the output directory, under `SCRATCH`.
3. A kill is noted when it has happened, so that a demo which is interrupted and goes on counts them all. What is left of the plan follows
   from the checkpoint: the epochs that are not committed yet.
4. A driver that ends otherwise is a failure, which shows the end of its log. Whatever ends the demo, no process is left behind.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from demos.driver import FILES_PER_EPOCH
from demos.live import Show
from demos.look import Onlooker, Sighting
from demos.processes import Child
from demos.traffic import Traffic
from millstream import faults

LOG = "driver.log"
STORY = ".story.json"
SCRATCH = ".scratch"
DRIVER = "demos.driver"

_LOOK_EVERY = 0.1
_SETTLED = 10.0


class Planned(msgspec.Struct, frozen=True):
    """A kill to come: at a crash point of an epoch, or from outside when the epoch is committed and the next one under way."""

    epoch: int
    point: str = ""


class Kill(msgspec.Struct, frozen=True):
    """A kill that has happened: the last epoch that was committed then, and the second of the demo up to which all was counted."""

    epoch: int
    second: int


class Story(msgspec.Struct):
    """What has happened in an output directory so far."""

    kills: list[Kill] = []
    ended: bool = False
    complete: bool = False  # reported and compared, too

    @staticmethod
    def of(output: Path) -> Story | None:
        """The story so far; None if there is none that can be read."""
        try:
            return msgspec.json.decode((output / STORY).read_bytes(), type=Story)
        except (OSError, msgspec.DecodeError):
            return None

    def note(self, output: Path) -> None:
        """Writes it down."""
        beside = output / f"{STORY}.unfinished"
        beside.write_bytes(msgspec.json.encode(self))
        os.replace(beside, output / STORY)


class DriverFailed(Exception):
    """A driver ended with an error that is not of our making. The text has the end of its log."""


def plan(traffic: Traffic, kills: int) -> list[Planned]:
    """Kills at equal distances: from outside, and at a crash point, in turn."""
    epochs = -(-traffic.files // FILES_PER_EPOCH)
    return [Planned((number + 1) * epochs // (kills + 1), "epoch.6-committed" if number % 2 else "") for number in range(kills)]


class Drivers:
    """Runs the pipeline of an output directory to its end, through its kills."""

    def __init__(self, output: Path, planned: Sequence[Planned], onlooker: Onlooker, show: Show, module: str = DRIVER) -> None:
        self.output = output
        self.planned = planned
        self.story = Story.of(output) or Story()
        self._onlooker = onlooker
        self._show = show
        self._module = module

    def run(self, beside: Callable[[], None]) -> None:
        """Starts drivers until one of them ends by itself. `beside` is called again and again meanwhile. Raises DriverFailed."""
        while not self.story.ended:
            seen = self._onlooker.look()
            kill = next((one for one in self.planned if one.epoch > seen.epoch), None)
            self._drive(kill, seen, beside)

    def _drive(self, kill: Planned | None, seen: Sighting, beside: Callable[[], None]) -> None:
        """One driver, until it ends or is killed."""
        number = len(self.story.kills) + 1
        with (self.output / LOG).open("a") as log:
            log.write(f"--- driver {number}\n")
        child = Child(self._module, str(self.output), log=self.output / LOG, env=self._environment(kill))
        whence = f"goes on after epoch {seen.epoch}" if seen.epoch >= 0 else "starts Spark, and the pipeline on it"
        self._show.event(f"driver {number} {whence} (process {child.pid})")
        self._show.doing(f"driver {number}: Spark is starting")
        try:
            while child.code is None:
                now = self._onlooker.look()
                self._show.seen(now)
                if now.epoch > seen.epoch:
                    self._show.doing(f"driver {number}: epoch {now.epoch + 1} is under way")
                    seen = now
                    if kill is not None and not kill.point and now.epoch >= kill.epoch:
                        time.sleep(min(1.0, max(0.05, now.epoch_seconds / 2)))
                        break
                beside()
                time.sleep(_LOOK_EVERY)
            self._after(child, kill, number)
        except KeyboardInterrupt:
            if child.code is None:
                child.kill()
                self._killed(number, "")
            raise
        finally:
            child.kill()

    def _environment(self, kill: Planned | None) -> dict[str, str]:
        scratch = (self.output / SCRATCH).absolute()
        (scratch / "spark").mkdir(parents=True, exist_ok=True)
        return {
            faults.VARIABLE: f"{kill.point}@{kill.epoch}" if kill is not None and kill.point else "",
            "SPARK_LOCAL_DIRS": str(scratch / "spark"),
            "MILLSTREAM_STATE_CACHE": str(scratch / "replicas"),
        }

    def _after(self, child: Child, kill: Planned | None, number: int) -> None:
        """What has become of a driver: it ended, it is to be killed, it killed itself at its crash point, or it failed."""
        code = child.code
        if code == 0:
            self.story.ended = True
            self.story.note(self.output)
            self._show.seen(self._onlooker.look())
            self._show.doing(f"driver {number}: Spark is ending")
            child.settle(_SETTLED)
            self._show.event(f"driver {number} has ended: all queries are processed, and event time has ended", "green")
            return
        if code is None:
            count = child.kill()
            epoch = self._onlooker.look().epoch
            self._killed(
                number, f"with its JVM and workers ({count} processes): epoch {epoch} is committed, epoch {epoch + 1} was under way"
            )
            return
        count = child.kill()
        epoch = self._onlooker.look().epoch
        if kill is None or not kill.point or code != -signal.SIGKILL or epoch != kill.epoch:
            raise DriverFailed(f"driver {number} ended with {code}. The end of {child.log}:\n\n{child.tail()}")
        self._killed(number, f"after the commit of epoch {epoch}, before its output was published")

    def _killed(self, number: int, how: str) -> None:
        seen = self._onlooker.look()
        self._show.seen(seen)
        self.story.kills.append(Kill(seen.epoch, seen.second))
        self.story.note(self.output)
        if how:
            self._show.event(f"kill -9 of driver {number}, {how}", "bold red")
