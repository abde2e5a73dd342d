"""Windows in plain Python, and a pipeline that has them: what the operators are compared with."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from zoneinfo import ZoneInfo

import millstream as ms

Row = dict[str, Any]
SCHEMA = "user string, at long, id string, price long, weight double, page string"


def fixed(size: int, every: int, offset: int = 0) -> Callable[[int], list[tuple[int, int]]]:
    """All windows that hold a time, found one by one."""

    def windows(time: int) -> list[tuple[int, int]]:
        start = (time - offset) // every * every + offset
        found = []
        while start + size > time:
            found.append((start, start + size))
            start -= every
        return found

    return windows


def local_day(zone: str) -> Callable[[int], list[tuple[int, int]]]:
    """The local day of a time, by walking to its bounds in steps of a quarter of an hour."""

    def date(time: int) -> datetime.date:
        return datetime.datetime.fromtimestamp(time / 1000, ZoneInfo(zone)).date()

    def windows(time: int) -> list[tuple[int, int]]:
        step = 15 * 60_000
        start = time // step * step
        while date(start - step) == date(time):
            start -= step
        end = start + step
        while date(end) == date(time):
            end += step
        return [(start, end)]

    return windows


def reduced(rows: Iterable[Row], windows: Callable[[int], list[tuple[int, int]]]) -> dict[tuple[str, int, int], dict[str, Any]]:
    """What windows have to say of rows, worked out from all of them at once."""
    groups: dict[tuple[str, int, int], list[Row]] = defaultdict(list)
    for row in rows:
        for window in windows(row["at"]):
            groups[(row["user"], *window)].append(row)
    found = {}
    for key, mine in groups.items():
        prices = [row["price"] for row in mine if row["price"] is not None]
        weights = [row["weight"] for row in mine if row["weight"] is not None]
        pages = [row["page"] for row in mine if row["page"] is not None]
        ordered = sorted((row["at"], row["id"], row["page"]) for row in mine if row["page"] is not None)
        found[key] = {
            "n": len(mine),
            "priced": len(prices),
            "total": sum(prices) if prices else None,
            "mean": sum(prices) / len(prices) if prices else None,
            "least": min(prices, default=None),
            "most": max(prices, default=None),
            "page": min(pages, default=None),
            "heavy": max(weights, default=None),
            "landing": ordered[0][2] if ordered else None,
            "exit": ordered[-1][2] if ordered else None,
            "pages": len(set(pages)),
        }
    return found


REDUCERS: dict[str, Any] = {
    "n": ms.count(),
    "priced": ms.count("price"),
    "total": ms.sum("price"),
    "mean": ms.mean("price"),
    "least": ms.min("price"),
    "most": ms.max("price"),
    "page": ms.any_value("page"),
    "heavy": ms.max("weight"),
    "landing": ms.first("page"),
    "exit": ms.last("page"),
    "pages": ms.count_distinct("page"),
}


def pipeline(
    kind: Any, bound: int = 5_000, dedup: str | None = None, reducers: dict[str, Any] | None = None, **options: Any
) -> ms.Pipeline:
    """Visits in windows, and the late ones aside."""
    p = ms.Pipeline("visits")
    source = ms.sources.files("visits/", schema=SCHEMA)
    visits = p.inject("visits", source, timestamp="at", id="id", watermark=ms.watermarks.bounded(f"{bound}ms"), dedup=dedup)
    windows = visits.by("user").window(kind, late="late").reduce(name="windows", **(reducers or REDUCERS), **options)
    p.emit(windows, ms.sinks.memory())
    return p


def told(records: Sequence[tuple[Any, Any, int]]) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Results by key and window. One that comes twice, or with another timestamp than its end less one, is an error."""
    found: dict[tuple[str, int, int], dict[str, Any]] = {}
    for key, value, time in records:
        name = (value["user"], value["start"], value["end"])
        assert name not in found, f"{name} twice"
        assert key == value["user"] and time == value["end"] - 1, (key, value, time)
        found[name] = {field: shown for field, shown in value.items() if field not in ("user", "start", "end")}
    return found
