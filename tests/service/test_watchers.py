"""Watchers of a partition: slow ones, those that come back, and changes that nobody watches any more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import (
    Stale,
)
from millstream.service import Node, Table
from millstream.service.channel import Channel
from millstream.service.proto import service_pb2 as pb
from millstream.service.watchers import Watchers


def put(key: bytes, value: bytes, **header: Any) -> pb.UpsertRequest:
    return pb.UpsertRequest(header=pb.Header(table="t", **header), keys=[key], values=[value])


def test_a_slow_watcher_is_told_where_to_go_on_and_goes_on_without_a_hole(tmp_path: Path) -> None:
    async def main() -> None:
        node = Node([Table("t")], folder=tmp_path)
        await node.start()
        channel, seen, last, stale = Channel(node.data.address), {}, None, 0

        async def follow(upto: int, slow: bool) -> None:
            """Takes what comes until it has this position, and does not take anything for a while at first."""
            nonlocal last, stale
            asked = pb.WatchRequest(header=pb.Header(table="t"))
            if last is not None:
                asked.after = last
            try:
                async for reply in channel.stream("Watch", asked):
                    if reply.kind == pb.WatchReply.RESET:
                        seen.clear()
                    for key, value, version in zip(reply.keys, reply.values, reply.versions, strict=True):
                        assert reply.kind != pb.WatchReply.CHANGES or version > (last or 0), "told twice, or out of order"
                        seen[key] = value
                    if reply.kind in (pb.WatchReply.MARK, pb.WatchReply.CHANGES):
                        last = reply.at.lsn
                    if slow and reply.kind == pb.WatchReply.MARK:
                        await written.wait()
                    if (last or 0) >= upto:
                        return
            except Stale as error:
                stale += 1
                assert "after position" in str(error)

        written = asyncio.Event()
        slow = asyncio.ensure_future(follow(60, slow=True))
        for number in range(60):
            await channel.ask("Upsert", put(b"k%d" % (number % 7), b"%d" % number + b"x" * 400_000), 10)
        written.set()
        await asyncio.wait_for(slow, 20)
        assert stale == 1, "it kept up with 24 MB that it did not take"
        while (last or 0) < 60:
            await asyncio.wait_for(follow(60, slow=False), 20)
        assert {key: value.split(b"x")[0] for key, value in seen.items()} == {b"k%d" % (n % 7): b"%d" % n for n in range(53, 60)}
        await channel.close()
        await node.stop()

    asyncio.run(main())


def test_a_watcher_that_fell_behind_can_go_on_where_it_was_told_to() -> None:
    """What is kept for those who come back is more than what a slow one may be behind: or else every one of them had to begin anew."""

    async def main() -> None:
        watchers = Watchers()
        slow, _ = watchers.join(lambda key: True, 0, None)
        quick, _ = watchers.join(lambda key: True, 0, None)
        seen = []
        for lsn in range(1, 61):
            watchers.tell(lsn, [[(b"Kk%d" % lsn, lsn.to_bytes(8, "big") + b"x" * 100_000)]])
            seen.append((await quick.next())[0])
        with pytest.raises(Stale, match="after position") as told:
            await slow.next()
        after = int(str(told.value).rsplit(" ", 1)[1])
        again, goes_on = watchers.join(lambda key: True, 60, after)
        assert goes_on
        assert [(await again.next())[0] for _ in range(60 - after)] == list(range(after + 1, 61)) and seen == list(range(1, 61))

    asyncio.run(main())


def test_changes_that_nobody_watches_any_more_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        watchers = Watchers()
        one, _ = watchers.join(lambda key: True, 0, None)
        watchers.tell(1, [[(b"Ka", bytes(8) + b"1")]])
        watchers.leave(one)
        watchers.tell(2, [[(b"Ka", bytes(8) + b"2")]])
        again, resumes = watchers.join(lambda key: True, 2, 1)
        assert resumes
        watchers.leave(again)
        monkeypatch.setattr("millstream.service.watchers.PATIENCE", -1.0)
        watchers.tell(3, [[(b"Ka", bytes(8) + b"3")]])
        assert not watchers.join(lambda key: True, 3, 1)[1]

    asyncio.run(main())
