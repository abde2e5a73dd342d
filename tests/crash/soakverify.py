"""The soak's verifier: recomputes everything from the input files, in plain Python without Millstream. `python soakverify.py WORK` prints what it found."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any


def lines(folder: Path, pattern: str, order: Any) -> Any:
    for path in sorted(folder.glob(pattern), key=order):
        for line in path.read_text().splitlines():
            yield json.loads(line)


def verify(work: Path, sources: tuple[str, ...]) -> dict[str, int]:
    """Counts of what is lost, doubled, out of order or wrong; and of what was checked."""
    ids: dict[str, dict[str, Any]] = {}
    given = 0
    for source in sources:
        for row in lines(work / source, "*.json", lambda p: p.name):
            ids[row["id"]] = row
            given += 1
    found = {"given": given, "records": len(ids), "lost": 0, "doubled": 0, "out_of_order": 0, "wrong": 0, "windows": 0}

    def by_epoch(path: Path) -> str:
        return path.name.rsplit("-", 1)[1]

    seen: dict[str, int] = {}
    step: dict[str, int] = defaultdict(int)
    last_id: dict[tuple[str, str], int] = {}
    for row in lines(work / "steps", "*.jsonl", by_epoch):
        key, value = row["key"], row["value"]
        seen[value["id"]] = seen.get(value["id"], 0) + 1
        step[key] += 1
        found["out_of_order"] += value["step"] != step[key]
        source, number = value["id"].split("-")
        found["out_of_order"] += int(number) <= last_id.get((source, key), -1)
        last_id[source, key] = int(number)
        found["wrong"] += value["id"] not in ids or ids[value["id"]]["key"] != key or ids[value["id"]]["n"] != value["n"]
    found["lost"] += sum(1 for id in ids if id not in seen)
    found["doubled"] += sum(count - 1 for count in seen.values())

    groups: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for row in lines(work / "groups", "*.jsonl", by_epoch):
        one, value = groups[row["key"]], row["value"]
        one[0] += 1
        one[1] += value["n"]
        found["out_of_order"] += one[0] != value["count"]
        found["wrong"] += one[1] != value["total"]
    truth: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    windows: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for row in ids.values():
        group = int(row["key"][1:]) % 500
        for one in (truth[group], windows[group, row["at"] - row["at"] % 1000]):
            one[0] += 1
            one[1] += row["n"]
    for group, (count, _) in truth.items():
        found["lost"] += max(0, count - groups[group][0])
        found["doubled"] += max(0, groups[group][0] - count)

    emitted: dict[tuple[int, int], int] = defaultdict(int)
    number: dict[int, int] = defaultdict(int)
    for row in lines(work / "last", "*.jsonl", by_epoch):
        group, value = row["key"], row["value"]
        emitted[group, value["second"]] += 1
        number[group] += 1
        found["out_of_order"] += number[group] != value["number"]
        found["wrong"] += windows.get((group, value["second"])) != [value["count"], value["total"]]
    found["lost"] += sum(1 for window in windows if window not in emitted)
    found["doubled"] += sum(count - 1 for count in emitted.values())
    found["windows"] = len(windows)
    return found


if __name__ == "__main__":
    print(json.dumps(verify(Path(sys.argv[1]), ("web", "app", "api"))))
