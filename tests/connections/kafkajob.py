"""A pipeline from topics to topics, for drivers that are killed. A folder has a file `kafka` with the broker's address and the name of its topics."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import kafkakit

import millstream as ms
import taskkit

COLUMNS = "key string, n long, at long, id string, do string"
PARTITIONS = 3


def place(work: Path) -> tuple[str, str]:
    address, name = (work / "kafka").read_text().split()
    return address, name


def build(work: Path) -> tuple[ms.Pipeline, Any]:
    address, name = place(work)
    p = ms.Pipeline("kit")
    source = ms.sources.kafka(address, f"{name}-in", schema=COLUMNS, max_per_epoch=60)
    watermark = ms.watermarks.partitions(ms.watermarks.bounded("1s"))
    steps = p.compute(
        taskkit.Steps, p.inject("rows", source, timestamp="at", id="id", watermark=watermark, dedup=None), key="key", produces="steps"
    )
    groups = p.compute(taskkit.Groups, steps, key=taskkit.group_of, produces="groups")
    p.emit(steps, ms.sinks.kafka(address, f"{name}-steps"))
    p.emit(groups, ms.sinks.kafka(address, f"{name}-groups"))
    return p, p.program().topology.injectors["rows"].source


def build_much(work: Path) -> tuple[ms.Pipeline, Any]:
    """Tasks read."""
    sys.modules["millstream.sources.kafka"]._BYTES = 1 << 20  # type: ignore[attr-defined]
    return build(work)


def prepare(work: Path, address: str, name: str) -> None:
    (work / "kafka").write_text(f"{address} {name}")
    (work / "rows.jsonl").write_text("")
    for what, count in (("in", PARTITIONS), ("steps", 2), ("groups", 2)):
        kafkakit.create(address, f"{name}-{what}", count, **{"retention.ms": "-1"})


def give(work: Path, rows: list[dict[str, Any]]) -> None:
    address, name = place(work)
    for partition in range(PARTITIONS):
        own = [json.dumps(row).encode() for row in rows if int(row["key"][1:]) % PARTITIONS == partition]
        kafkakit.send(address, f"{name}-in", own, partition)


def published(folder: Path) -> list[dict[str, Any]]:
    """The rows of an output, as who reads committed records alone has them."""
    address, name = place(folder.parent)
    found = kafkakit.read(address, f"{name}-{folder.name}")
    return [{"key": _key(message.key()), "value": json.loads(message.value())} for message in found]


def _key(given: bytes) -> Any:
    return int(given) if given.isdigit() else given.decode()
