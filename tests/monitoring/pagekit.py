"""A pipeline with something of everything, run in resident tasks without a JVM, under a real handle: what the page and the metrics look at."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.engine.spark.run import Run
from millstream.handle import Handle
from millstream.status.narrator import Narrator
from taskkit import Given, Nursery, ResidentRun

BEGIN = 1_700_000_000_000
SCHEMA = "key string, n long, at long, id string, do string"


class Totals(ms.Computation):
    """Adds up, holds time back while a key says so, and fails for what is to fail."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        if record.value["do"] == "fail":
            raise ValueError("this record was to fail")
        if record.value["do"] == "hold":
            self.hold(record.timestamp)
        if record.value["do"] == "release":
            self.release()
        self.state["total"] = self.state.get("total", 0) + record.value["n"]
        self.produce({"total": self.state["total"], "name": record.key})

    def process_late_record(self, record: ms.Record) -> None:
        pass


def build(work: Path) -> tuple[ms.Pipeline, Given]:
    """Rows, totals per key (with dead letters), counts per second, a table and a view, two sinks."""
    p, source = ms.Pipeline("shop"), Given(SCHEMA)
    rows = p.inject("rows", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("100ms"))
    totals = p.compute(Totals, rows, key="key", produces="totals", on_error=ms.DEAD_LETTER, name="Totals")
    seconds = totals.by("name").window(ms.windows.tumbling("1s")).reduce(ms.count(), name="seconds")
    names = p.table("names", totals, key="name")
    p.publish(names.by("name").reduce(n=ms.count(), name="by-name"), ms.sinks.files(work / "by-name"))
    p.emit(totals, ms.sinks.files(work / "totals", roll=0))
    p.emit(seconds, ms.sinks.files(work / "seconds", roll=0))
    p.emit(p.dead_letters("Totals"), ms.sinks.memory())
    return p, source


class KitRun(Run):
    """A run whose tasks are `taskkit`'s."""

    def __init__(self, kit: ResidentRun, topology: Any) -> None:
        super().__init__(topology, kit.epochs, bounded=False, drain=False)
        self._kit = kit
        self.beside.append(kit.nursery.close)

    def work(self) -> None:
        self._kit._trigger.run(lambda: self.stopping)

    def wake(self) -> None:
        self._kit._trigger.wake()


class Shop:
    """The run, its handle and its input."""

    def __init__(self, work: Path, build: Callable[[Path], Any] = build, shards: int = 4, **asked: Any) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.work, self.checkpoint = work, work / "checkpoint"
        made: list[Any] = []

        def once(where: Path) -> Any:
            made.append(build(where))
            return made[0]

        self.kit = ResidentRun(work, build=once, nursery=Nursery(2), shards=shards)
        pipeline, self._source = made[0]
        program = pipeline.program()
        self.handle = Handle(program, KitRun(self.kit, program.topology), Narrator("shop", quiet=True), **asked)
        self._given = 0
        self._flowing = threading.Event()

    def give(self, count: int = 1, *, at: int | None = None, key: str | None = None, do: str = "") -> None:
        """Records, ten milliseconds of event time apart, unless `at` says when."""
        rows = []
        for number in range(self._given, self._given + count):
            when = BEGIN + number * 10 if at is None else at
            rows.append({"key": key or f"k{number % 7}", "n": number, "at": when, "id": f"{number:07d}", "do": do})
        self._given += count
        self.kit.give(*rows)

    def wait(self) -> None:
        """Until all that was given is committed."""
        self.kit.wait()

    def flow(self, per_second: int) -> None:
        """Gives records until the end."""

        def give() -> None:
            while not self._flowing.wait(0.1):
                self.give(per_second // 10)

        threading.Thread(target=give, daemon=True).start()

    def close(self) -> None:
        self._flowing.set()
        self.handle.stop(30)

    def __enter__(self) -> Shop:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


if __name__ == "__main__":  # to look at: python tests/monitoring/pagekit.py FOLDER [PORT]
    import sys

    with Shop(Path(sys.argv[1]), ui=f"127.0.0.1:{sys.argv[2] if len(sys.argv) > 2 else 4080}") as shop:
        print(shop.handle.page, flush=True)
        shop.flow(300)
        time.sleep(1)
        shop.give(1, do="hold", key="the one that holds")
        shop.give(2, do="fail")
        shop.give(1, key="<script>alert(1)</script>")
        time.sleep(2)
        shop.give(3, at=BEGIN - 5_000, key="late")
        threading.Event().wait()
