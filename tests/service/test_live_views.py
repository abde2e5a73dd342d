"""Views and tables, live: a watch as JSON is at every mark what `ms.views.read` shows of that epoch, also while a view is filled anew and switched."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from livekit import got, header, run, scanned, served

import millstream as ms
from effort import some
from millstream.core.keys import key_bytes
from millstream.readable import relations
from millstream.readable.relations import plain_row
from millstream.service.proto import service_pb2 as pb

sys.path.insert(0, str(Path(__file__).parent.parent / "views"))
import viewkit


def people(version: int = 1, by: Any = "name") -> ms.Pipeline:
    pipeline = ms.Pipeline("people")
    users = pipeline.table("users", ms.sources.files("in/", schema=viewkit.SCHEMA), key="id", version="ts", deleted="gone")
    users.by(by).reduce(ms.count(), name="names", version=version)
    return pipeline


def shown(recorded: viewkit.Recorded, name: str, epoch: int) -> dict[bytes, Any]:
    rows = relations.at(recorded.log, epoch, lambda cut: list(relations.shown(cut, name)))
    return {key_bytes(row.key): plain_row(row, name == "users") for row in rows}


@pytest.mark.parametrize("seed", range(some(12, least=3)))
def test_a_replayed_watch_is_what_is_shown_through_a_rebuild(tmp_path, seed: int) -> None:
    dice = random.Random(seed)
    recorded = viewkit.Recorded(people(), shards=2)

    def epoch() -> None:
        rows = [
            viewkit.user(dice.randrange(12), dice.choice(["Sue", "SUE", "Ann"]), ts=10 * len(recorded.plan.epochs) + at) for at in range(4)
        ]
        recorded.push(*[{**row, "gone": dice.random() < 0.2} for row in {row["id"]: row for row in rows}.values()])
        recorded.epoch()

    async def main() -> None:
        epoch()
        async with served(recorded.storage, cache_folder=tmp_path, keep=1 if seed % 2 else 8) as live:
            known: dict[str, dict[bytes, Any]] = {"users": {}, "names": {}}
            last: dict[str, int] = {}
            streams: dict[str, Any] = {}
            resets = 0
            for step in range(20):
                if step == 6:
                    recorded.become(people(2, lambda row: row.value["name"].lower()), chunk=2)
                epoch()
                newest = recorded.latest.epoch
                for name in known:
                    if name in streams and dice.random() < 0.3:
                        await streams.pop(name).aclose()
                    if name not in streams:
                        more = {"after": last[name]} if name in last else {}
                        streams[name] = live.watch(pb.WatchRequest(header=header(name, form=pb.JSON), **more))
                    if dice.random() < 0.3:
                        continue
                    await got(live, b"", table=name)
                    while last.get(name, -1) < newest:
                        reply = await anext(streams[name])
                        if reply.kind == pb.WatchReply.RESET:
                            known[name].clear()
                            resets += 1
                        for key, value, version in zip(reply.keys, reply.values, reply.versions, strict=True):
                            known[name].pop(key, None)
                            if version:
                                known[name][key] = json.loads(value)
                        if reply.kind == pb.WatchReply.MARK:
                            last[name] = reply.at.epoch
                            assert known[name] == shown(recorded, name, reply.at.epoch), (name, reply.at.epoch)
                    at, found = await scanned(live, name, form=pb.JSON)
                    assert {key: json.loads(value) for key, value in found.items()} == shown(recorded, name, at)
            assert resets, "a view that is switched shows another generation"
            for stream in streams.values():
                await stream.aclose()

    run(main)
