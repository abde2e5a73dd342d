"""Watching live state: a replayed watch is the state at every mark, through disconnects, compactions, collections and slow readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from livekit import Checkpoint, got, header, run, served

from effort import some
from millstream.core.keys import key_bytes
from millstream.core.keyspace import ROW, encode_sub_key, sub_prefix
from millstream.errors import RefusedRequest, Stale
from millstream.service.live.backend import LiveBackend
from millstream.service.live.history import ChangeHistory, ChangeSet, read_changes
from millstream.service.proto import service_pb2 as pb

SNAPSHOT, CHANGES, MARK, RESET = pb.WatchReply.SNAPSHOT, pb.WatchReply.CHANGES, pb.WatchReply.MARK, pb.WatchReply.RESET


class WatchedCopy:
    """A client that applies what it is sent, and compares at every mark."""

    def __init__(self, world: Checkpoint, name: str = "C", keys: tuple[bytes, ...] = (), prefix: bytes = b"") -> None:
        self.world, self.name, self.keys, self.prefix = world, name, keys, prefix
        self.rows: dict[bytes, bytes] = {}
        self.last: int | None = None
        self.kinds: list[int] = []
        self.stream: AsyncIterator[pb.WatchReply] | None = None

    def connect(self, live: LiveBackend) -> None:
        more: dict[str, Any] = {} if self.last is None else {"after": self.last}
        self.stream = live.watch(pb.WatchRequest(header=header(self.name), keys=self.keys, prefix=self.prefix, **more))

    async def leave(self) -> None:
        if self.stream is not None:
            await self.stream.aclose()  # type: ignore[attr-defined]
            self.stream = None

    async def upto(self, epoch: int) -> None:
        assert self.stream is not None
        while self.last is None or self.last < epoch:
            self.take(await anext(self.stream))

    def take(self, reply: pb.WatchReply) -> None:
        self.kinds.append(reply.kind)
        if reply.kind == RESET:
            self.rows.clear()
        elif reply.kind == MARK:
            self.last = reply.at.epoch
            assert reply.at.low_watermark == self.world.lows[self.last][self.name]
            assert self.rows == self.wanted(self.last), f"at the mark of epoch {self.last}"
        for key, value, version in zip(reply.keys, reply.values, reply.versions, strict=True):
            assert reply.first <= reply.at.epoch and version in (0, max(1, reply.at.epoch))
            if version:
                self.rows[key] = value
            else:
                assert reply.kind == CHANGES
                self.rows.pop(key, None)

    def wanted(self, epoch: int) -> dict[bytes, bytes]:
        rows = self.world.rows_at(epoch, self.name)
        return {k: v for k, v in rows.items() if k.startswith(self.prefix) and (not self.keys or k in self.keys)}


@settings(max_examples=some(80), deadline=None, database=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from("eeeeeeffcldbw"), min_size=1, max_size=25), st.sampled_from([200, 3000, 1 << 20]))
def test_a_replayed_watch_is_the_state_at_every_mark(tmp_path_factory, seed: int, acts: list[str], buffer: int) -> None:
    world = Checkpoint(seed, names=("C", "D"))
    world.some()

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path_factory.mktemp("live"), buffer=buffer) as live:
            watchers = [
                WatchedCopy(world),
                WatchedCopy(world, keys=(b"03", b"07", b"11")),
                WatchedCopy(world, prefix=b"1"),
                WatchedCopy(world, "D"),
            ]
            for act in [*acts, "e", "w"]:
                if act == "e":
                    world.some()
                elif act == "f":
                    world.compact_some()
                elif act == "c":
                    world.collect()
                elif act == "l":
                    world.leap()
                elif act == "d":
                    await world.rng.choice(watchers).leave()
                elif act == "b":
                    await got(live, "00")  # the server goes on, whoever reads
                if act == "w":
                    await got(live, "00")
                    for one in watchers:
                        if one.stream is None:
                            one.connect(live)
                        try:
                            await one.upto(world.epoch)
                        except Stale as error:
                            assert f"after={one.last}" in str(error)
                            one.connect(live)
                            await one.upto(world.epoch)
            for one in watchers:
                assert one.last == world.epoch
                await one.leave()
            assert not live.history.watched

    run(main)


def test_each_epoch_comes_by_itself_and_those_missed_as_one(tmp_path):
    world = Checkpoint()
    world.put(C={"a": b"0"})

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path) as live:
            one = WatchedCopy(world)
            one.connect(live)
            await one.upto(0)
            for number in (1, 2, 3):
                world.put(C={"a": b"%d" % number})
                await got(live, "a")
            await one.upto(3)
            assert one.kinds == [SNAPSHOT, MARK, *[CHANGES, MARK] * 3]
            await one.leave()
            for number in (4, 5):
                world.put(C={"a": b"%d" % number, "b": None})
                await got(live, "a")
            one.kinds.clear()
            one.connect(live)
            assert one.stream is not None
            reply = await anext(one.stream)
            assert (reply.kind, reply.first, reply.at.epoch) == (CHANGES, 4, 5), "nobody watched meanwhile: the log tells"
            assert dict(zip(reply.keys, reply.versions, strict=True)) == {b"a": 5, b"b": 0}
            await one.leave()

    run(main)


def test_without_a_watcher_no_changes_are_read_or_kept(tmp_path, monkeypatch):
    world = Checkpoint()
    world.some()
    reads = []

    def counted(*args: Any) -> Any:
        reads.append(args)
        return read_changes(*args)

    monkeypatch.setattr("millstream.service.live.tailer.read_changes", counted)

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path) as live:
            for _ in range(5):
                world.some()
                await got(live, "00")
            assert live.history.bytes == 0 and not reads
            one = WatchedCopy(world)
            one.connect(live)
            await one.upto(world.epoch)
            world.put(C={"a": b"1"})
            await one.upto(world.epoch)
            assert live.history.bytes > 0 and len(reads) == 1, "with a watcher they are"
            await one.leave()

    run(main)


def test_a_slow_watcher_is_told_where_to_go_on_and_a_quick_one_beside_it_is_not(tmp_path):
    world = Checkpoint()
    world.put(C={"a": b"0"})

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path, buffer=6000) as live:
            slow, quick = WatchedCopy(world), WatchedCopy(world)
            for one in (slow, quick):
                one.connect(live)
                await one.upto(0)
            for number in range(1, 20):
                world.put(C={f"{number:02d}": b"x" * 1000})
                await got(live, "a")
                await quick.upto(number)
            with pytest.raises(Stale, match=r"too slow: .*after=0\."):
                await slow.upto(19)
            assert live.history.bytes <= 6000 + 1300
            slow.connect(live)
            slow.kinds.clear()
            await slow.upto(19)
            assert slow.rows == quick.rows and slow.kinds == [RESET, SNAPSHOT, MARK], "the log has more than may be held at once"
            for one in (slow, quick):
                await one.leave()

    run(main)


def test_where_only_a_base_is_left_it_is_a_reset(tmp_path):
    world = Checkpoint(1)
    for _ in range(3):
        world.some()

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path) as live:
            one = WatchedCopy(world)
            one.connect(live)
            await one.upto(2)
            await one.leave()
            world.some()
            world.leap()
            world.leap()
            one.kinds.clear()
            one.connect(live)
            await one.upto(world.epoch)
            assert one.kinds[:2] == [RESET, SNAPSHOT] and one.kinds[-1] == MARK
            await one.leave()

    run(main)


def test_a_computation_that_is_renamed_ends_one_that_begins_anew_resets(tmp_path):
    world = Checkpoint(1, names=("C", "D"))
    world.some()

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path) as live:
            one, two = WatchedCopy(world, "C"), WatchedCopy(world, "D")
            for watcher in (one, two):
                watcher.connect(live)
                await watcher.upto(0)
            world.tables.pop("C")
            world.add("C")
            world.tables["E"] = world.tables.pop("D")
            world.some()
            await one.upto(1)
            assert one.kinds == [SNAPSHOT, MARK, RESET, SNAPSHOT, MARK]
            with pytest.raises(RefusedRequest, match=r"'D' is gone since epoch 1\. There are: C, E"):
                await two.upto(1)
            await one.leave()

    run(main)


@pytest.mark.parametrize("far", [False, True])
def test_who_comes_back_to_a_name_that_another_has_taken_is_reset(tmp_path, far: bool):
    world = Checkpoint(1)
    world.put(C={"a": b"0", "b": b"0"})

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path) as live:
            one = WatchedCopy(world)
            one.connect(live)
            await one.upto(0)
            await one.leave()
            world.tables.pop("C")
            world.add("C")
            for number in range(12 if far else 1):
                world.put(C={"a": b"%d" % number})
                await got(live, "a")
            assert (0 in live.epochs.pinned) != far
            one.kinds.clear()
            one.connect(live)
            await one.upto(world.epoch)
            assert one.kinds == [RESET, SNAPSHOT, MARK]
            await one.leave()

    run(main)


def test_an_epoch_that_changes_more_than_the_buffer_may_hold_is_a_reset(tmp_path):
    world = Checkpoint(1)
    world.put(C={"a": b"0"})

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path, buffer=1000) as live:
            one = WatchedCopy(world)
            one.connect(live)
            await one.upto(0)
            world.put(C={"b": bytes(2000), "a": None})
            await one.upto(1)
            world.put(C={"c": b"1"})
            await one.upto(2)
            assert one.kinds == [SNAPSHOT, MARK, RESET, SNAPSHOT, MARK, CHANGES, MARK]
            await one.leave()

    run(main)


def test_as_json_rows_whose_maps_changed_are_told_too(tmp_path):
    world = Checkpoint()

    def entry(key: str, sub: int) -> bytes:
        return sub_prefix(key_bytes(key), "seen") + encode_sub_key(sub)

    row = b"\x91\xc4\x02\x90\xa0"  # msgpack: a state of two bytes
    world.commit(C={ROW + b"a": row, entry("a", 1): b"\x01", ROW + b"b": row})

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path) as live:
            stream = live.watch(pb.WatchRequest(header=header(form=pb.JSON)))
            assert [(await anext(stream)).kind for _ in range(2)] == [SNAPSHOT, MARK]
            world.commit(C={entry("a", 2): b"\x02"})
            reply = await anext(stream)
            assert (reply.kind, list(reply.keys), list(reply.versions)) == (CHANGES, [b"a"], [1])
            assert b'"entries":2' in reply.values[0] and (await anext(stream)).kind == MARK
            plain = live.watch(pb.WatchRequest(header=header(), after=0))
            assert (await anext(plain)).kind == MARK, "the row as it is kept is the same"
            for one in (stream, plain):
                await one.aclose()  # type: ignore[attr-defined]

    run(main)


@settings(max_examples=some(100), deadline=None, database=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 4), st.integers(1, 50)), max_size=30), st.integers(1, 200), st.integers(0, 40)
)
def test_the_buffer_gives_what_leads_on_or_says_no(steps: list[tuple[str, int, int]], limit: int, known: int) -> None:
    history = ChangeHistory(limit)
    ends = {"a": 0, "b": 0}
    kept: dict[str, list[ChangeSet]] = {"a": [], "b": []}
    for name, wide, size in steps:
        change = ChangeSet(ends[name], ends[name] + 1, ends[name] + wide, 0, [], [], [], size)
        ends[name] += wide
        kept[name].append(change)
        history.add(name, change)
        assert history.bytes <= limit or history.bytes == size
    for name, every in kept.items():
        found = history.since(name, known, ends[name])
        if known == ends[name]:
            assert found == []
        elif found:
            assert found[0].after <= known < found[0].last and found[-1].last == ends[name]
            assert all(a.last == b.after for a, b in pairwise(found))
        elif known < ends[name]:
            needed = [one for one in every if one.last > known]
            assert history.has_dropped(name, known) and sum(one.size for one in needed) + sum(s for _, _, s in steps) > limit


def test_watchers_wait_without_polling_the_checkpoint(tmp_path):
    world = Checkpoint()
    world.put(C={"a": b"0"})

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path) as live:
            asked, catch_up = 0, live.tailer_thread.catch_up

            async def counted() -> None:
                nonlocal asked
                asked += 1
                await catch_up()

            live.tailer_thread.catch_up = counted  # type: ignore[method-assign]
            watchers = [WatchedCopy(world, keys=(b"a",)) for _ in range(50)]
            for one in watchers:
                one.connect(live)
                await one.upto(0)
            asked = 0  # each has asked once, for its snapshot
            tasks = [asyncio.ensure_future(one.upto(1)) for one in watchers]
            world.put(C={"a": b"1"})
            await asyncio.gather(*tasks)
            assert asked == 0
            await got(live, "a")
            assert asked == 1, "a read that must be sure asks"
            assert all(one.rows == world.rows_at(1) for one in watchers)
            for one in watchers:
                await one.leave()

    run(main)
