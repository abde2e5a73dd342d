"""The pipeline of the soak, as a program: `python soakjob.py WORK [--drain]`. Three injectors, three stages, edges of all three kinds."""

from __future__ import annotations

import sys
from pathlib import Path

import millstream as ms

SOURCES = ("web", "app", "api")


class Steps(ms.Computation):
    """Numbers the records of a key."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce({"step": self.state, "id": record.value["id"], "n": record.value["n"]})


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


def pipeline(work: Path) -> ms.Pipeline:
    p = ms.Pipeline("soak")
    streams = [
        p.inject(
            name,
            ms.sources.files(work / name, schema="key string, n long, at long, id string", format="json", max_files_per_epoch=4),
            timestamp="at",
            id="id",
            watermark=ms.watermarks.bounded("1s"),
        )
        for name in SOURCES
    ]
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
    work = Path(sys.argv[1])
    drain = "--drain" in sys.argv
    options = {"available_now": True} if drain else {"trigger": "100ms"}
    handle = pipeline(work).run(checkpoint=work / "checkpoint", shards=4, **options)  # type: ignore[arg-type]
    handle.await_termination()
    print(f"ended at epoch {handle.status().epoch}", flush=True)


if __name__ == "__main__":
    main()
