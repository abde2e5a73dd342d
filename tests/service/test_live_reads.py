"""Live state: every answer is what the reader says of that epoch, whatever is committed, folded, collected, renamed or removed meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from livekit import Checkpoint, got, header, run, scanned, served

from effort import some
from millstream.core.keyspace import decode_row
from millstream.errors import DamageError, NotReady, RefusedRequest, Stale
from millstream.service.live.epochs import PinnedEpochs
from millstream.service.live.history import ChangeHistory
from millstream.service.live.tailer import ManifestTailer
from millstream.service.proto import service_pb2 as pb
from millstream.state.manifest_log import ManifestLog, manifest_name
from millstream.state.memory_storage import MemoryStorage
from millstream.state.reader import CommittedState
from millstream.state.storage import LocalStorage


def test_a_row_and_where_it_is_from(tmp_path):
    world = Checkpoint()
    world.tables["C"].low = 7
    world.put(C={"a": b"1"})

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path) as live:
            found = await got(live, "a", "b")
            assert list(found.values) == [world.rows_at(0)[b"a"], b""] and list(found.versions) == [1, 0]
            assert (found.at.epoch, found.at.lsn, found.at.low_watermark) == (0, 0, 7)
            world.put(C={"a": b"2", "b": b"3"})
            found = await got(live, "a", "b", table="p/C")
            assert list(found.values) == [world.rows_at(1)[b"a"], world.rows_at(1)[b"b"]] and found.at.epoch == 1
            assert await scanned(live) == (1, world.rows_at(1))

    run(main)


# --- against the reader and a dictionary


@settings(max_examples=some(60), deadline=None, database=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from("eeeeeffclrnao"), min_size=1, max_size=20))
def test_every_pinned_epoch_is_what_a_dictionary_holds(tmp_path_factory, seed: int, acts: list[str]) -> None:
    world = Checkpoint(seed, shards=3, names=("C", "D"))
    world.some()

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path_factory.mktemp("live")) as live:
            seen: dict[int, None] = {}
            for act in [*acts, "e", "l"]:
                if act == "e":
                    world.some()
                elif act == "f":
                    world.compact_some()
                elif act == "c":
                    world.collect()
                elif act == "l":
                    world.leap()
                elif act == "r":
                    world.restart()
                elif act == "n" and "D" in world.tables:  # renamed
                    world.tables["E"] = world.tables.pop("D")
                elif act == "a":  # another one under an old name
                    world.tables.pop("D", None)
                    world.add("D")
                elif act == "o":
                    world.tables.pop("D", None)
                    world.tables.pop("E", None)
                if act not in "nao":
                    (epoch, _) = await scanned(live)
                    assert epoch == world.epoch, "an epoch that was committed before the question was asked is seen"
                    seen[epoch] = None
                for pinned in live.epochs.pinned:
                    for name in world.as_of[pinned]:
                        found = await scanned(live, name, level=pb.AS_OF, as_of=pinned)
                        assert found == (pinned, world.rows_at(pinned, name))
                    for gone in {"C", "D", "E"} - set(world.as_of[pinned]):
                        with pytest.raises(RefusedRequest, match="It has: C"):
                            await got(live, "00", table=gone, level=pb.AS_OF, as_of=pinned)
                newest = CommittedState(world.log).newest()
                taken = live.epochs.take(newest.epoch)
                for name in newest.computations if taken is not None else ():
                    assert list(taken.rows(name)) == list(newest.rows(name)), "as the reader has it"
                if taken is not None:
                    taken.close()
                reply = await got(live, *[f"{k:02d}" for k in range(31)])
                rows = world.rows_at(reply.at.epoch)
                assert list(reply.values) == [rows.get(b"%02d" % k, b"") for k in range(31)]
                assert reply.at.low_watermark == world.lows[reply.at.epoch]["C"]
            assert len(live.epochs.pinned) <= 8 and set(seen) <= set(world.as_of)

    run(main)


def test_on_a_folder_a_look_finds_what_is_newest_however_far_that_is(tmp_path):
    world = Checkpoint(4, storage=LocalStorage(tmp_path / "c"))
    epochs = PinnedEpochs(tmp_path / "live")
    tailer = ManifestTailer(world.log, epochs, ChangeHistory())
    world.some()
    folder = tmp_path / "c" / "manifests"
    for act in "eleklek":
        before = folder.stat().st_mtime_ns
        for _ in range(3 if act == "k" else 1):
            world.leap() if act == "l" else world.some()
        if act == "l":
            assert not world.log.exists(epochs.pinned[-1] + 1), "the next one has been collected: that it is absent proves nothing"
        else:
            os.utime(folder, ns=(before, before))  # a clock with coarse ticks: that the folder looks the same proves nothing
        assert not tailer.is_newest()
        assert tailer.poll() and epochs.pinned[-1] == world.epoch and tailer.is_newest()
        assert not tailer.poll()
        taken = epochs.take()
        assert taken is not None and dict(taken.scan("C", b"R", b"S")) == world.as_of[world.epoch]["C"]
        taken.close()
    epochs.close()


@settings(max_examples=some(40), deadline=None, database=None)
@given(st.integers(0, 2**32), st.binary(max_size=2), st.binary(max_size=2), st.binary(max_size=2), st.integers(0, 6))
def test_ranges_prefixes_and_limits(tmp_path_factory, seed: int, one: bytes, two: bytes, prefix: bytes, limit: int) -> None:
    world = Checkpoint(seed, shards=3)
    for _ in range(4):
        world.some()
    start, end = sorted((b"0" + one[:1], b"2" + two))

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path_factory.mktemp("live")) as live:
            rows = sorted(world.rows_at(3).items())
            for low, high, begins in ((start, end, b""), (b"", b"", prefix), (start, b"", b"1"), (b"", end, b"1")):
                wanted = [(k, v) for k, v in rows if low <= k and (not high or k < high) and k.startswith(begins)]
                of = {"start": low, "end": high, "prefix": begins, "limit": limit}
                assert await scanned(live, of=of) == (3, dict(wanted[: limit or None]))
                keys = [key async for r in live.scan(pb.ScanRequest(header=header(), keys_only=True, **of)) for key in r.keys]
                assert keys == [k for k, _ in wanted[: limit or None]]

    run(main)


class FarStorage:
    """An object store: nothing but the contract, and each question counted."""

    def __init__(self, storage: MemoryStorage) -> None:
        self._storage = storage
        self.url = "far"
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return getattr(self._storage, name)


def test_an_object_store_is_asked_for_the_next_manifest_and_listed_now_and_then(tmp_path):
    world, clock = Checkpoint(4), [0.0]
    far = FarStorage(world.storage)
    epochs = PinnedEpochs(tmp_path, clock=lambda: clock[0])
    tailer = ManifestTailer(ManifestLog(far), epochs, ChangeHistory(), clock=lambda: clock[0])
    world.some()
    assert tailer.poll() and not tailer.is_near and not tailer.is_newest()
    far.asked.clear()
    for _ in range(200):
        clock[0] += 0.2
        assert not tailer.poll()
    assert far.asked.count("exists") > 180 and far.asked.count("list") <= 5
    assert epochs.newest is not None and epochs.newest.confirmed == clock[0]
    world.some()
    assert tailer.poll() and epochs.pinned[-1] == 1
    world.leap()
    assert tailer.poll(sure=True) and epochs.pinned[-1] == world.epoch, "who must be sure has it listed"
    world.leap()
    clock[0] += 11
    assert tailer.poll() and epochs.pinned[-1] == world.epoch, "and once in a while it is listed anyway"
    epochs.close()


# --- one epoch over all keys and computations


def transfer(world: Checkpoint, amounts: dict[str, dict[str, int]]) -> None:
    """An epoch that adds some to keys of both computations, as one stream that feeds both would."""
    count = world.rng.randrange(1, 6)
    for _ in range(count):
        key = f"{world.rng.randrange(30):02d}"
        for name in ("C", "D"):
            amounts[name][key] = amounts[name].get(key, 0) + 1
    world.put(**{name: {key: b"%d" % amount for key, amount in of.items()} for name, of in amounts.items()})


def total(rows: dict[bytes, bytes]) -> int:
    return sum(int(decode_row(raw).state) for raw in rows.values())


def test_totals_of_one_epoch_agree_over_keys_and_computations_and_of_two_they_do_not(tmp_path):
    world = Checkpoint(5, shards=4, names=("C", "D"))
    amounts: dict[str, dict[str, int]] = {"C": {}, "D": {}}

    async def main() -> None:
        transfer(world, amounts)
        async with served(world.storage, cache_folder=tmp_path) as live:
            mixed = 0
            for _ in range(30):
                first, rows = await scanned(live, level=pb.SESSION)
                for _ in range(world.rng.randrange(3)):
                    transfer(world, amounts)
                await got(live, "00")  # looks, so that newer epochs are there
                second, newer = await scanned(live, "D", level=pb.SESSION)
                _, others = await scanned(live, "D", level=pb.AS_OF, as_of=first)
                assert total(rows) == total(others) == sum(int(decode_row(v).state) for v in world.rows_at(first, "D").values())
                assert (total(rows) == total(newer)) == (first == second)
                mixed += first != second
            assert mixed > 5

    run(main)


# --- levels


def test_an_epoch_that_is_not_pinned_is_refused_and_those_that_are_are_named(tmp_path):
    world = Checkpoint()

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path, keep=3) as live:
            for _ in range(6):
                world.some()
                await scanned(live)
            with pytest.raises(Stale, match=r"epoch 1 is not pinned here. Pinned are the epochs 3, 4, 5\."):
                await got(live, "00", level=pb.AS_OF, as_of=1)
            with pytest.raises(Stale, match="epoch 9 is not pinned"):
                await got(live, "00", level=pb.AS_OF, as_of=9)
            with pytest.raises(RefusedRequest, match="set as_of"):
                await got(live, "00", level=pb.AS_OF)
            found = [json.loads(value) for r in [r async for r in live.scan(pb.ScanRequest(part="epochs"))] for value in r.values]
            assert [one["epoch"] for one in found] == [3, 4, 5] and found[-1]["now"] == world.now

    run(main)


def test_pins_go_by_age_too_and_the_newest_never(tmp_path):
    world, clock = Checkpoint(), [0.0]
    epochs = PinnedEpochs(tmp_path, max_age=60, clock=lambda: clock[0])
    tailer = ManifestTailer(world.log, epochs, ChangeHistory(), clock=lambda: clock[0])
    for _ in range(3):
        world.some()
        tailer.poll(sure=True)
    assert epochs.pinned == [0, 1, 2]
    taken = epochs.take(0)
    clock[0] = 61
    tailer.poll(sure=True)
    assert epochs.pinned == [2] and taken is not None
    assert dict(taken.scan("C", b"R", b"S")) == world.as_of[0]["C"], "who has taken it reads on"
    taken.close()
    clock[0] = 1000
    tailer.poll(sure=True)
    assert epochs.pinned == [2]
    epochs.close()


def test_a_session_waits_for_the_epoch_that_it_has_seen(tmp_path):
    world = Checkpoint()
    world.put(C={"a": b"0"})

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path) as live:
            await got(live, "a")
            waiting = asyncio.ensure_future(got(live, "a", level=pb.SESSION, seen=2))
            for number in (1, 2):
                assert not waiting.done()
                world.put(C={"a": b"%d" % number})
                await got(live, "a")
            assert (await waiting).at.epoch == 2

    run(main)


@pytest.mark.parametrize("seed", range(some(10)))
def test_complete_to_is_never_early_and_not_forever(tmp_path, seed: int):
    world = Checkpoint(seed)
    world.some()

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path) as live:
            wanted = [world.rng.randrange(2000) for _ in range(8)]
            waiting = {asyncio.ensure_future(got(live, "00", complete_to=at)): at for at in wanted}
            for _ in range(40):
                world.some()
                await got(live, "00")
                for one, at in waiting.items():
                    assert not one.done() or one.result().at.low_watermark >= at
            world.tables["C"].low = 5000
            world.some()
            for one, at in waiting.items():
                reply = await one
                assert reply.at.low_watermark >= at and world.lows[reply.at.epoch]["C"] >= at
            with pytest.raises(Stale, match="It will not change"):
                await got(live, "00", level=pb.AS_OF, as_of=live.epochs.pinned[0], complete_to=10**9)
            asked = asyncio.ensure_future(got(live, "00", complete_to=10**9))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asked, 0.05)
            assert asked.cancelled()

    run(main)


# --- what stands in the way


def test_a_checkpoint_that_is_not_there_yet_says_so_and_is_served_when_it_is(tmp_path):
    async def main() -> None:
        async with served(LocalStorage(tmp_path / "later"), cache_folder=tmp_path / "live") as live:
            with pytest.raises(NotReady, match=r"later is not a checkpoint of Millstream"):
                await got(live, "a")
            world = Checkpoint(storage=LocalStorage(tmp_path / "later"))
            with pytest.raises(NotReady, match="has no committed epoch yet"):
                await got(live, "a")
            assert live.tables() == []
            world.put(C={"a": b"1"})
            assert (await got(live, "a")).at.epoch == 0 and live.tables() == ["C"]

    run(main)


@pytest.mark.parametrize("what", ["unit", "manifest"])
def test_damage_is_said_with_its_object_and_the_last_good_epoch_goes_on(tmp_path, what: str):
    world = Checkpoint()
    world.put(C={"a": b"1"})

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path) as live:
            await got(live, "a")
            manifest = world.put(C={"a": b"2"})
            chains = [shard.segments for shard in manifest.computations["C"].shards]
            name = manifest_name(1) if what == "manifest" else next(refs[-1].name for refs in chains if refs)
            whole = world.storage.objects[name]
            world.storage.objects[name] = whole[:-3] + b"???"
            with pytest.raises(DamageError, match=name):
                await got(live, "a")
            found = await got(live, "a", level=pb.BOUNDED, max_age_ms=60_000)
            assert found.at.epoch == 0 and list(found.values) == [world.rows_at(0)[b"a"]]
            ages = [(await got(live, "a", level=pb.SESSION)).at.age_ms]
            while len(ages) < 3:
                await asyncio.sleep(0.002)
                age = (await got(live, "a", level=pb.SESSION)).at.age_ms
                ages += [age] if age != ages[-1] else []
            assert ages == sorted(ages), "it grows"
            with pytest.raises(Stale, match=name):
                await got(live, "a", level=pb.BOUNDED, max_age_ms=0)
            world.storage.objects[name] = whole
            assert (await got(live, "a")).at.epoch == 1
            assert (await got(live, "a", level=pb.BOUNDED, max_age_ms=0)).at.epoch == 1

    run(main)


def test_a_checkpoint_that_was_restored_or_made_anew_is_followed_from_there(tmp_path):
    world = Checkpoint(3)

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path) as live:
            for _ in range(4):
                world.some()
                await scanned(live)
            for again in ("restored", "another run went on", "made anew"):
                generation = live.epochs.generation
                if again == "made anew":
                    world.storage.objects.clear()
                    other = Checkpoint(77, storage=world.storage)
                else:
                    other = world
                    world.epoch -= 2
                    world.storage.delete(map(manifest_name, (world.epoch + 1, world.epoch + 2)))
                    table = world.tables["C"]
                    table.chains = [[ref for ref in chain if ref.last <= world.epoch] for chain in table.chains]
                    table.entries = dict(world.as_of[world.epoch]["C"])
                    if again != "restored":
                        world.runs = [*world.runs, (world.epoch + 1, "9-z")]
                        for _ in range(3):
                            world.some()
                other.some()
                assert await scanned(live) == (other.epoch, other.rows_at(other.epoch)), again
                assert live.epochs.generation > generation
                assert all(pin in other.as_of for pin in live.epochs.pinned)

    run(main)


def test_writes_are_refused(tmp_path):
    async def main() -> None:
        async with served(Checkpoint().storage, cache_folder=tmp_path) as live:
            for call in (live.upsert(pb.UpsertRequest()), live.remove(pb.RemoveRequest()), live.call(pb.CallRequest())):
                with pytest.raises(RefusedRequest, match="read only"):
                    await call

    run(main)


def test_two_servers_of_one_checkpoint_have_copies_of_their_own_and_the_next_one_goes_on_with_them(tmp_path):
    world = Checkpoint()
    world.some()

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path) as one:
            await scanned(one)
            async with served(world.storage, cache_folder=tmp_path) as two:
                world.some()
                assert await scanned(two) == await scanned(one) == (1, world.rows_at(1))
                roots = {live.epochs._root for live in (one, two)}
                assert len(roots) == 2
        world.storage = counted = CountedStorage(world.storage.objects)
        async with served(counted, cache_folder=tmp_path) as again:
            assert await scanned(again) == (1, world.rows_at(1))
            assert again.epochs._root in roots and not any(name.startswith("units/") for name in counted.reads), "it had all that is needed"

    run(main)


class CountedStorage(MemoryStorage):
    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__()
        self.objects = objects
        self.reads: list[str] = []

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self.reads.append(name)
        return super().read(name, offset, length)
