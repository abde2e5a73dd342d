"""The demo of views from nothing to the picture: users, a pipeline whose drivers are killed, a judge, the verdict.

Rules
1. A directory is the demo's or empty. One that it has made before is cleared, by name; any other that has one of these names is refused.
2. Drivers are killed with SIGKILL, with their JVM and workers: once in the midst of an epoch, once between a commit and its publication.
3. The last line says whether what is published is what SQL says. If not, the exit code is 1.
4. However the demo ends, none of its processes is left behind.
"""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from demos import place
from demos.commands import pasteable
from demos.people import picture
from demos.people.judge import differences, history, published
from demos.people.tree import TreeSight, TreeWatcher
from demos.people.world import CHECKPOINT, RISING, USERS, VIEWS, PeopleWorld, write
from demos.processes import Child
from millstream import faults
from millstream.errors import MissingExtra

DRIVER = "demos.people.driver"
LOG, PICTURE, SCRATCH, MARK = "driver.log", "views.png", ".scratch", ".people"
SMALL = PeopleWorld(users=40_000, load=1, news=14, each=4_000)
_MADE = (USERS, f".{USERS}.unfinished", CHECKPOINT, *VIEWS, LOG, PICTURE, SCRATCH)
_LOOK_EVERY = 0.15
_TELL_EVERY = 10.0


def run(output: Path, seed: int = 7, small: bool = False, console: Console | None = None) -> int:
    """Runs the demo in a directory. Returns 0; 1 if something differs or fails; 130 if it was interrupted."""
    console = console or Console()
    world = msgspec.structs.replace(SMALL if small else PeopleWorld(), seed=seed)
    if not place.take(output, _MADE, MARK, console):
        return 1
    try:
        return _Demo(output, world, console).run()
    except KeyboardInterrupt:
        console.print("interrupted: its processes are killed. The same command begins anew.", highlight=False)
        return 130


class _Demo:
    def __init__(self, output: Path, world: PeopleWorld, console: Console) -> None:
        self.output = output
        self.world = world
        self.console = console
        self.watcher = TreeWatcher(output)
        self.kills: list[int] = []
        self.began = time.monotonic()

    def run(self) -> int:
        world = self.world
        self._say(
            f"making {world.users:,} users and {world.news} files of news about them, for four views to follow; about a minute and a half in all"
        )
        rows = write(world, self.output)
        self._say(f"{world.users:,} users, and {rows - world.users:,} pieces of news about them, are in {self.output / USERS}")
        plan = [(world.epochs // 3, ""), (2 * world.epochs // 3, "epoch.6-committed")]
        for number in range(1, len(plan) + 2):
            code = self._drive(number, plan[number - 1] if number <= len(plan) else None)
            if code is not None:
                return code
        with self.console.status("asking DuckDB, and drawing the picture"):
            compared, wrong = differences(self.output)
            verdict = f"{len(wrong)} differences in {compared:,} rows, after {len(self.kills)} kills"
            drawn = self._draw(verdict)
        self._report()
        self.console.print(drawn, highlight=False, soft_wrap=True)
        self.console.print("Look inside:", style="dim", highlight=False)
        for words in ((), ("countries", "--key", RISING), ("names", "--key", "Sue", "--origins", "--limit", "5")):
            self.console.print(
                pasteable("view", self.output / CHECKPOINT, *words), style="dim", highlight=False, markup=False, soft_wrap=True
            )
        shutil.rmtree(self.output / SCRATCH, ignore_errors=True)
        for line in wrong[:10]:
            self.console.print(line, style="red", highlight=False)
        style = "bold red" if wrong else "bold green"
        said = f"{verdict}: what the views published is {'NOT ' if wrong else ''}what DuckDB says of the same files ({self._seconds()} s)"
        self.console.print(said, style=style, highlight=False, soft_wrap=True)
        return 1 if wrong else 0

    def _drive(self, number: int, kill: tuple[int, str] | None) -> int | None:
        """One driver, until it ends or is killed. An exit code if it has failed."""
        scratch = (self.output / SCRATCH).absolute()
        (scratch / "spark").mkdir(parents=True, exist_ok=True)
        crash = f"{kill[1]}@{kill[0]}" if kill is not None and kill[1] else ""
        env = {faults.VARIABLE: crash, "SPARK_LOCAL_DIRS": str(scratch / "spark"), "MILLSTREAM_STATE_CACHE": str(scratch / "replicas")}
        child = Child(DRIVER, str(self.output), log=self.output / LOG, env=env)
        seen = self.watcher.look()
        whence = f"goes on after epoch {seen.epoch}" if seen.epoch >= 0 else "starts Spark"
        self._say(f"driver {number} {whence}")
        try:
            at, told = "Spark is starting", time.monotonic()
            with self.console.status("") as status:
                while child.code is None:
                    now = self.watcher.look()
                    status.update(f"{self._seconds():4d} s  driver {number}: {at}")
                    if not self.console.is_terminal and time.monotonic() - told > _TELL_EVERY:
                        told = time.monotonic()
                        self._say(f"driver {number}: {at}")
                    if now.epoch > seen.epoch:
                        at = self._told(now)
                        seen = now
                        if kill is not None and not kill[1] and now.epoch >= kill[0]:
                            time.sleep(0.2)
                            break
                    time.sleep(_LOOK_EVERY)
            code = child.code
            if code == 0:
                self.watcher.look()
                child.settle(10)
                self._say(f"driver {number} has ended: {self._told(self.watcher.look())}")
                return None
            count = child.kill()
            now = self.watcher.look()
            if code is not None and (kill is None or not kill[1] or code != -signal.SIGKILL):
                self.console.print(f"driver {number} ended with {code}. The end of {child.log}:\n{child.tail()}", style="red", markup=False)
                return 1
            self.kills.append(now.epoch)
            how = "after a commit, before its publication" if code is not None else "in the midst of an epoch"
            self._say(
                f"kill -9 of driver {number} with its JVM and workers ({count} processes), {how}; epoch {now.epoch} is committed",
                "bold red",
            )
            return None
        finally:
            child.kill()

    def _told(self, sight: TreeSight) -> str:
        levels = sight.levels
        tree = f"{levels[0]:,} leaves under {len(levels) - 1} levels of nodes" if levels else "all in one row"
        return f"epoch {sight.epoch}, {sight.records:,} rows; {RISING} has {sight.people:,} users, {tree}"

    def _report(self) -> None:
        table = Table(title=None, box=None, header_style="dim")
        for heading in ("view", "rows", "for instance"):
            table.add_column(heading, justify="right" if heading == "rows" else "left")
        for view in VIEWS:
            rows = published(self.output / view)
            key = RISING if view == "countries" else "Sue" if view == "names" else next(iter(rows), None)
            table.add_row(view, f"{len(rows):,}", f"{key}: {rows.get(key)}")
        self.console.print(table)

    def _draw(self, verdict: str) -> str:
        try:
            picture.draw(history(self.output / "countries"), self.watcher.sights, self.kills, self.output / PICTURE, verdict)
        except MissingExtra as error:
            return str(error)
        return f"picture: {self.output / PICTURE}"

    def _say(self, text: str, style: str = "") -> None:
        self.console.print(f"{self._seconds():4d} s  {text}", style=style, highlight=False, soft_wrap=True)

    def _seconds(self) -> int:
        return int(time.monotonic() - self.began)
