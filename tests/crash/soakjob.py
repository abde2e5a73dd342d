"""The pipeline of the soaks, as a program: `python soakjob.py WORK [--drain] [--resident] [--push ADDRESS] [--replace-every SECONDS]`. Three injectors,
three stages, edges of all three kinds. It runs until it is killed, or told to stop with SIGTERM. --push: the first injector is one that programs push
into."""

from __future__ import annotations

import argparse
import json
import signal
import threading
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.engine.resident import coordinator

SOURCES = ("web", "app", "api")


class Steps(ms.Computation):
    """Numbers the records of a key."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        value = json.loads(record.value["payload"]) if "payload" in record.value else record.value
        self.state += 1
        self.produce({"step": self.state, "id": value["id"], "n": value["n"]})


class Groups(ms.Computation):
    """Numbers what a group of keys gets, and adds it up."""

    State = list

    def process_record(self, record: ms.Record) -> None:
        count, total = self.state or (0, 0)
        self.state = [count + 1, total + record.value["n"]]
        self.produce({"count": count + 1, "total": total + record.value["n"], "n": record.value["n"]})


class Windows(ms.Computation):
    """Sums per group and second, when the second is complete."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        second = record.timestamp - record.timestamp % 1000
        count, total = self.state.get(second, (0, 0))
        self.state[second] = [count + 1, total + record.value["n"]]
        self.set_timer("second", second + 1000)

    def process_timer(self, timer: ms.Timer) -> None:
        count, total = self.state.pop(timer.time - 1000)
        self.produce({"second": timer.time - 1000, "count": count, "total": total})


def group_of(record: ms.Record) -> int:
    """500 groups of keys."""
    return int(record.key[1:]) % 500


def same_key(record: ms.Record) -> int:
    """The group itself."""
    key: int = record.key
    return key


def pipeline(work: Path, push: str | None = None) -> ms.Pipeline:
    p = ms.Pipeline("soak")
    streams = []
    for name in SOURCES:
        bounded: Any = {"watermark": ms.watermarks.bounded("1s")}
        if push is not None and name == SOURCES[0]:
            source = ms.sources.connector(dir=work / "intake", listen=push, cookie="soak")
            streams.append(p.inject(name, source, timestamp="event_time", id="record_id", **bounded))
        else:
            files = ms.sources.files(work / name, schema="key string, n long, at long, id string", format="json", max_files_per_epoch=4)
            streams.append(p.inject(name, files, timestamp="at", id="id", **bounded))
    steps = p.compute(Steps, *streams, key="key", produces="steps", production=ms.WEAK)
    groups = p.compute(Groups, steps, key=group_of, produces="groups", production=ms.STRONG)
    windows = p.compute(Windows, groups, key=same_key, produces="windows", production=ms.ADAPTIVE, slow_after="300ms")
    last = p.compute(Last, windows, key=same_key, produces="last")
    p.emit(steps, ms.sinks.files(work / "steps"))
    p.emit(groups, ms.sinks.files(work / "groups"))
    p.emit(last, ms.sinks.files(work / "last"))
    return p


class Last(ms.Computation):
    """Behind the adaptive edge: numbers the windows of a group."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce({**record.value, "number": self.state})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("--drain", action="store_true")
    parser.add_argument("--resident", action="store_true")
    parser.add_argument("--push")
    parser.add_argument("--master")
    parser.add_argument("--replace-every", type=float, help="seconds after which each resident task is replaced")
    given = parser.parse_args()
    if given.replace_every:
        coordinator.RECYCLE_EVERY = given.replace_every
    spark: Any = None
    if given.master:
        from millstream.engine.spark.session import local_session

        spark = local_session("soak", master=given.master)
    options: dict[str, Any] = {"available_now": True} if given.drain else {"trigger": None if given.resident else "100ms"}
    if given.resident:
        options |= {"resident": True, "tasks": 2}
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    handle = pipeline(given.work, given.push).run(spark, checkpoint=given.work / "checkpoint", shards=4, **options)
    while handle.running and not told.wait(0.2):
        pass
    handle.stop()
    handle.await_termination()
    print(f"ended at epoch {handle.status().epoch}", flush=True)


if __name__ == "__main__":
    main()
