"""The reader: what it says is what a dictionary says, from the log and from a state cache, whatever is compacted and collected meanwhile."""

from __future__ import annotations

import dataclasses
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unitkit import CountingStorage

import millstream as ms
from effort import some
from millstream.core.keys import key_bytes, shard_of
from millstream.core.keyspace import ROW, STATE_HOLD, NoEntries, Row, decode_row, encode_row, encode_sub_key, sub_prefix
from millstream.core.record import Timer
from millstream.core.statekind import StateKind
from millstream.core.time import LOW_WATERMARK, WALL_CLOCK
from millstream.errors import CheckpointError, DamageError, Overtaken
from millstream.state import compaction, gc, reader, segment, state_cache
from millstream.state.codec import msgpack
from millstream.state.compaction import adopt, compact, unit_name
from millstream.state.gc import collect
from millstream.state.manifest import ComputationState, Manifest, ShardState
from millstream.state.manifest_log import KEEP, ManifestLog, manifest_name
from millstream.state.queries import hold_of, states, timers_of
from millstream.state.reader import AsOf, CommittedState, steady
from millstream.state.segment import SegmentRef, encode_segment, runs
from millstream.state.storage import LocalStorage

Delta = dict[bytes, bytes | None]


class Busy(CountingStorage):
    """Counts the bytes that are read, and lets something happen before each reading of a unit."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.before: Callable[[], None] | None = None

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if self.before is not None and name.startswith("units/"):
            act, self.before = self.before, None  # what happens reads too, and is not disturbed
            act()
            self.before = act
        found = super().read(name, offset, length)
        self.bytes += len(found)
        return found


class World:
    """A computation that is written, compacted and collected by hand, and what it must come to in each epoch."""

    def __init__(self, seed: int = 0, shards: int = 2, storage: Any = None) -> None:
        self.rng = random.Random(seed)
        self.storage = Busy() if storage is None else storage
        self.log = ManifestLog(self.storage)
        self.log.identify("p", shards, 1, [])
        self.shards = shards
        self.chains: list[list[SegmentRef]] = [[] for _ in range(shards)]
        self.model: dict[bytes, bytes] = {}
        self.as_of: dict[int, dict[bytes, bytes]] = {}
        self.epoch = -1
        self.now = 0

    def commit(self, delta: Delta, row_key_of: Callable[[bytes], bytes] = lambda entry: entry[1:]) -> Manifest:
        self.epoch += 1
        for shard in range(self.shards):
            mine = {k: v for k, v in delta.items() if shard_of(row_key_of(k), self.shards) == shard}
            if mine:
                data = encode_segment(sorted(mine.items()))
                name = unit_name(self.epoch, f"{shard}")
                self.storage.put(name, b"before" + data + b"behind")
                self.chains[shard].append(SegmentRef(name, 6, len(data), len(mine), self.epoch, self.epoch))
        for key, value in delta.items():
            if value is None:
                self.model.pop(key, None)
            else:
                self.model[key] = value
        self.as_of[self.epoch] = dict(self.model)
        shards = [ShardState(list(chain)) for chain in self.chains]
        manifest = Manifest(self.epoch, "1-a", self.now, [(0, "1-a")], computations={"C": ComputationState(shards=shards)})
        assert self.log.commit(manifest)
        return manifest

    def commit_some(self) -> Manifest:
        keys = self.rng.sample(range(40), self.rng.randrange(0, 9))
        return self.commit({ROW + b"%02d" % k: None if self.rng.random() < 0.3 else row(b"%d" % self.epoch) for k in keys})

    def compact_some(self) -> None:
        shard = self.rng.randrange(self.shards)
        ordered = runs(self.chains[shard])
        if ordered:
            first = self.rng.randrange(len(ordered))
            last = self.rng.randrange(first, len(ordered))
            self.compact(shard, [ref for run in ordered[first : last + 1] for ref in run])

    def compact(self, shard: int, chosen: list[SegmentRef] | None = None) -> None:
        chosen = self.chains[shard] if chosen is None else chosen
        made = compact(self.storage, chosen, chosen[0] == self.chains[shard][0], self.epoch)
        self.chains[shard] = adopt(self.chains[shard], chosen, made)

    def collect(self, window: int = 0) -> None:
        newest = self.log.latest()
        assert newest is not None
        collect(self.log, newest, window=window)

    def overtake(self) -> None:
        """So many epochs, compactions and collections that nothing of before is left but its content."""
        for shard in range(self.shards):
            if self.chains[shard]:
                self.compact(shard)
        for _ in range(KEEP + 1):
            self.commit({ROW + b"more": row(b"%d" % self.epoch)})
        self.collect()


def row(state: bytes) -> bytes:
    return encode_row(Row(state))


def tiny(patch: pytest.MonkeyPatch, block: int = 3, piece: int = 60) -> None:
    """Segments of several blocks, and compactions of several pieces, out of few entries."""
    patch.setattr(segment, "BLOCK", block)
    patch.setattr(compaction, "PIECE", piece)


def everything(found: AsOf) -> dict[bytes, bytes]:
    return dict(found.scan("C", b"\x01", b"\xff" * 9))


# --- against a dictionary


@settings(max_examples=some(120), deadline=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from("eeeefr"), min_size=1, max_size=25), st.data())
def test_what_is_read_is_what_a_dictionary_holds(seed, acts, data):
    with pytest.MonkeyPatch.context() as patch:
        tiny(patch, data.draw(st.integers(1, 5)), data.draw(st.sampled_from([1, 60, 1 << 20])))
        world = World(seed)
        committed = CommittedState(world.log, memory=300)
        for act in ["e", *acts, "e", "r"]:
            if act == "e":
                world.commit_some()
            elif act == "f":
                world.compact_some()
            else:
                start, stop = sorted((data.draw(st.binary(max_size=2)), data.draw(st.binary(max_size=2))))
                epoch = data.draw(st.sampled_from(sorted(world.as_of)))
                for found, model in [(committed.newest(), world.model), (committed.at(epoch), world.as_of[epoch])]:
                    compare(found, model, start, stop)


def compare(found: AsOf, model: dict[bytes, bytes], start: bytes, stop: bytes) -> None:
    rows = {k[1:]: Row(v_state(v)) for k, v in model.items()}
    assert everything(found) == model
    for k in range(41):
        assert found.get("C", f"{k:02d}") == rows.get(b"%02d" % k)
    for low, high in [(start, stop), (b"1", b"3"), (b"17", b"171"), (b"", None), (b"9", b"1")]:
        expected = [(k, v) for k, v in sorted(rows.items()) if low <= k and (high is None or k < high)]
        assert list(found.rows("C", low, high)) == expected
    for beginning in ("", "2", "39", "x"):
        assert [k for k, _ in found.prefix("C", beginning.encode())] == [k for k in sorted(rows) if k.startswith(beginning.encode())]


def v_state(raw: bytes) -> bytes:
    return decode_row(raw).state


def test_maps_timers_and_holds_of_a_key(monkeypatch):
    tiny(monkeypatch)
    world = World(shards=3)
    whole = Row(b"s", [(5, "a"), (9, "b")], [(7, "")], [(3, LOW_WATERMARK, 9, "b"), (1, *STATE_HOLD)])
    delta: Delta = {}
    for name in ("k", "kk", "k\0"):
        for field in ("", "pages"):
            for sub in (3, -1, "x", 20):
                delta[sub_prefix(key_bytes(name), field) + encode_sub_key(sub)] = f"{name}{field}{sub}".encode()
        delta[ROW + key_bytes(name)] = encode_row(whole)
    world.commit(delta, lambda k: k[1:] if k[:1] == ROW else k[5 : 5 + int.from_bytes(k[1:5], "big")])
    found = CommittedState(world.log).newest()
    for name in ("k", "kk", "k\0"):
        assert [one for one in found.maps("C", name) if one[0]] == [
            ("pages", sub, f"{name}pages{sub}".encode()) for sub in (-1, 3, 20, "x")
        ]
        assert [(field, sub) for field, sub, _ in found.maps("C", name)] == [(f, s) for f in ("", "pages") for s in (-1, 3, 20, "x")]
        assert timers_of(found.get("C", name)) == [Timer(5, "a", LOW_WATERMARK), Timer(9, "b", LOW_WATERMARK, 3), Timer(7, "", WALL_CLOCK)]
        assert hold_of(found.get("C", name)) == 1
    assert found.get("C", "none") is None
    assert list(found.maps("C", "none")) == [] and found.computations == ["C"]
    found.close()


@dataclasses.dataclass
class Session:
    started: int = 0
    pages: ms.MapState = dataclasses.field(default_factory=ms.MapState)


class Sessions(ms.Computation):
    State = Session


class Whole(ms.Computation):
    State = ms.MapState


def test_states_are_whole_with_their_maps_bound_and_outlive_their_epoch():
    kinds = {kind: StateKind(kind, msgpack) for kind in (Sessions, Whole)}
    for kind, make in kinds.items():
        world = World(shards=3)
        delta: Delta = {}
        for number in range(5):
            row_key, state = key_bytes(number), make.fresh()
            name, into = make.maps(state)[0]
            for at in range(number):
                delta[sub_prefix(row_key, name) + encode_sub_key(at)] = make.encode_sub({"at": at})
            into.bind(NoEntries(), b"", make.encode_sub, make.decode_sub)
            if kind is Sessions:
                state.started = number
            delta[ROW + row_key] = row(b"" if make.is_map else make.encode(state))
        world.commit(delta, lambda k: k[1:] if k[:1] == ROW else k[5 : 5 + int.from_bytes(k[1:5], "big")])
        with CommittedState(world.log).newest() as cut:
            every, some, none = states(cut, "C", make), states(cut, "C", make, [3, "no"]), states(cut, "Other", make)
        world.storage.objects.clear()
        maps = {number: {at: {"at": at} for at in range(number)} for number in range(5)}
        if kind is Sessions:
            assert {number: dict(state.pages.items()) for number, state in every.items()} == maps
            assert {number: state.started for number, state in every.items()} == {number: number for number in range(5)}
            assert list(some) == [3] and dict(some[3].pages.range(1)) == {1: {"at": 1}, 2: {"at": 2}}
        else:
            assert every == maps and some == {3: maps[3]}
        assert none == {}


def test_an_unknown_computation_and_an_empty_checkpoint_are_named():
    log = ManifestLog(CountingStorage())
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        CommittedState(log).newest()
    log.identify("p", 1, 1, [])
    with pytest.raises(CheckpointError, match="no committed epoch yet"):
        CommittedState(log).newest()
    log.commit(Manifest(0, "1-a", 0, [(0, "1-a")], computations={"Count": ComputationState()}))
    found = CommittedState(log).newest()
    with pytest.raises(CheckpointError, match=r"no computation called 'Cuont'\. It has: Count"):
        found.get("Cuont", "a")
    assert found.get("Count", "a") is None and list(found.rows("Count")) == []


# --- what it costs


def large(count: int = 40_000) -> World:
    """One shard, one segment."""
    world = World(shards=1)
    world.commit({ROW + b"%08d" % i: row(b"%0100d" % i) for i in range(count)})
    return world


def cost(world: World, read: Callable[[AsOf], Any]) -> tuple[int, int]:
    """The share of the state that a fresh reader reads, in percent, and in how many readings."""
    found = CommittedState(world.log).newest()
    world.storage.bytes, world.storage.reads = 0, []
    read(found)
    whole = sum(ref.length for chain in world.chains for ref in chain)
    return 100 * world.storage.bytes // whole, len(world.storage.reads)


@pytest.mark.slow
def test_one_key_does_not_cost_the_segment():
    world = large()
    assert cost(world, lambda found: found.get("C", "00012345")) < (15, 3)
    assert cost(world, lambda found: found.get("C", "00012345x")) < (15, 3)
    assert cost(world, lambda found: found.get("C", "99999999")) < (1, 2)  # behind the last key: the index says so
    assert cost(world, lambda found: list(found.prefix("C", b"0001234"))) < (15, 3)
    assert cost(world, lambda found: list(found.rows("C")))[0] >= 100


def test_one_key_of_a_segment_without_an_index_costs_all_of_it():
    world = large()
    ref = world.chains[0][0]
    data = world.storage.objects[ref.name]
    index = int.from_bytes(data[ref.offset + ref.length - 14 :][:4], "big") + 14
    world.chains[0][0] = SegmentRef(ref.name, ref.offset, ref.length - index, ref.entries, ref.first, ref.last)
    world.commit({})
    assert cost(world, lambda found: found.get("C", "00012345"))[0] >= 100


def test_what_was_read_is_kept_and_not_more_than_may_be():
    world = large()
    committed = CommittedState(world.log)
    found = committed.newest()
    found.get("C", "00012345")
    world.storage.reads.clear()
    assert found.get("C", "00012346") == Row(b"%0100d" % 12346)
    assert world.storage.reads == []
    small = CommittedState(world.log, memory=2_000_000)
    found = small.newest()
    for i in range(0, 40_000, 500):
        assert found.get("C", f"{i:08d}") == Row(b"%0100d" % i)
        assert small.segments.kept.size <= 2_000_000
    assert len(small.segments.kept.items) > 1


@pytest.mark.slow
def test_a_run_of_many_pieces_is_searched_and_not_read(monkeypatch):
    monkeypatch.setattr(compaction, "PIECE", 1 << 20)
    world = large(120_000)
    world.compact(0)
    world.commit({})
    assert len(world.chains[0]) > 10
    share, readings = cost(world, lambda found: found.get("C", "00100000"))
    assert share < 10 and readings <= 2 + len(world.chains[0]).bit_length()


# --- overtaken


def test_without_going_on_it_fails_and_says_what_there_is(monkeypatch):
    tiny(monkeypatch)
    world = World(1)
    for _ in range(6):
        world.commit_some()
    found = CommittedState(world.log).newest()
    world.overtake()
    with pytest.raises(Overtaken, match=r"epoch 5 of memory has been collected meanwhile .*There are the epochs .*7 to 16\.") as caught:
        everything(found)
    assert not isinstance(caught.value, DamageError)
    with pytest.raises(Overtaken):
        found.get("C", next(iter(world.as_of[5]))[1:].decode())


def test_steady_begins_anew_and_gives_one_cut(monkeypatch):
    tiny(monkeypatch)
    world = World(3)
    world.commit({ROW + b"%02d" % k: row(b"0") for k in range(40)})
    tries: list[int] = []

    def read(cut: AsOf) -> dict[bytes, bytes]:
        tries.append(cut.epoch)
        found = {}
        for at, (key, value) in enumerate(cut.scan("C", b"", b"\xff")):
            found[key] = value
            if at == 7 and len(tries) < 4:
                world.commit({ROW + b"%02d" % k: row(b"%d" % len(tries)) for k in range(40)})
                world.overtake()
        return found

    with pytest.raises(Overtaken):  # without beginning anew
        read(CommittedState(world.log, memory=0).newest())
    assert steady(world.log, read) == world.model
    assert len(tries) == 4


def test_one_that_is_always_overtaken_gives_up_and_does_not_say_damage(monkeypatch):
    tiny(monkeypatch)
    monkeypatch.setattr(reader, "TRIES", 4)
    world = World(1)
    for _ in range(3):
        world.commit_some()
    committed = CommittedState(world.log, memory=0)
    world.storage.before = world.overtake
    for read in (everything, lambda cut: cut.get("C", next(iter(world.model))[1:].decode())):
        with pytest.raises(Overtaken, match="has been collected meanwhile"):
            committed.steady(read)


def slow_scan(window: int) -> tuple[int, int]:
    """A reader that needs half a minute for a scan, at 60 epochs a second and a collection every 20. How many rows, and how often it began."""
    world = World(shards=1)
    world.commit({ROW + b"%02d" % k: row(b"0") for k in range(30)})

    def second() -> None:
        for _ in range(60):
            world.now += 16 if world.epoch % 3 else 18
            world.commit({ROW + b"more": row(b"%d" % world.epoch)})
            if world.epoch % 5 == 0:
                world.compact(0, world.chains[0][1:])
            if world.epoch % 20 == 0:
                world.compact(0)
                world.collect(window)

    tries = 0

    def read(cut: AsOf) -> int:
        nonlocal tries
        tries += 1
        return len(list(cut.rows("C", b"0", b"4")))

    world.storage.before = second
    return CommittedState(world.log, memory=0).steady(read), tries


def test_a_slow_reader_at_sixty_epochs_a_second_keeps_its_epoch(monkeypatch):
    tiny(monkeypatch, block=2, piece=1 << 20)
    monkeypatch.setattr(segment, "_SPAN", 0)
    monkeypatch.setattr(reader, "_PATIENCE", 0)
    count, tries = slow_scan(gc.WINDOW)
    assert count == 30 and tries <= 2  # overtaken once at the most
    with pytest.raises(Overtaken):  # without the window it never comes to the end
        slow_scan(0)


def test_an_epoch_that_is_not_there_is_an_error_that_says_which_are():
    world = World()
    for _ in range(5):
        world.commit_some()
    world.storage.delete([manifest_name(2)])
    for epoch in (2, 9):
        with pytest.raises(Overtaken, match=rf"has no epoch {epoch}\. There are the epochs 0 to 1, 3 to 4\."):
            CommittedState(world.log).at(epoch)
    assert CommittedState(world.log).at(3).epoch == 3


# --- damage


def test_what_the_newest_manifest_names_and_is_missing_or_broken_is_damage():
    for how in ("missing", "broken"):
        world = World(shards=1)
        world.commit({ROW + b"a": row(b"1")})
        world.commit({ROW + b"b": row(b"2")})
        name = world.chains[0][0].name
        if how == "missing":
            world.storage.delete([name])
        else:
            world.storage.objects[name] = world.storage.objects[name].replace(b"a", b"x")
        committed = CommittedState(world.log)
        for found in (committed.newest(), committed.at(0), committed.newest()):
            with pytest.raises(DamageError, match=name):
                found.get("C", "a")
        with pytest.raises(DamageError, match=name):
            steady(world.log, lambda cut: cut.get("C", "a"))


@settings(max_examples=some(60), deadline=None)
@given(st.integers(0, 2**32), st.data())
def test_no_changed_byte_gives_a_wrong_row(seed, data):
    with pytest.MonkeyPatch.context() as patch:
        tiny(patch)
        world = World(seed, shards=1)
        for _ in range(4):
            world.commit_some()
        world.compact_some()
        world.commit_some()
        ref = data.draw(st.sampled_from(world.chains[0])) if world.chains[0] else None
        if ref is None:
            return
        whole = world.storage.objects[ref.name]
        at = data.draw(st.integers(ref.offset, ref.offset + ref.length - 1))
        world.storage.objects[ref.name] = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
        found = CommittedState(world.log).newest()
        for k in range(41):
            key = f"{k:02d}"
            try:
                expected = world.model.get(ROW + key.encode())
                assert found.get("C", key) == (None if expected is None else Row(v_state(expected)))
            except DamageError as error:
                assert ref.name in str(error)


def test_the_newest_manifest_is_found_while_older_ones_go():
    world = World()
    for _ in range(3):
        world.commit_some()

    class Slow(ManifestLog):
        """Looks, and is overtaken before it reads."""

        def epochs(self) -> list[int]:
            found = super().epochs()
            if found[-1] < 40:
                world.overtake()
            return found

    found = Slow(world.storage).latest()
    assert found is not None and found.epoch >= 40


# --- threads


@pytest.mark.slow
def test_threads_read_while_a_writer_commits_compactions_and_collects(monkeypatch):
    """Every epoch writes the same number under every key: whoever sees two numbers in one cut has seen two epochs."""
    tiny(monkeypatch, block=4, piece=200)
    world = World(shards=2)
    keys = [b"%02d" % k for k in range(20)]

    def write() -> None:
        world.now = int(time.time() * 1000)
        world.commit({ROW + key: row(b"%d" % (world.epoch + 1)) for key in keys})

    write()
    committed = CommittedState(world.log, memory=4000)
    problems, seen = [], set()
    barrier = threading.Barrier(5)

    def read(number: int) -> None:
        rng = random.Random(number)
        try:
            barrier.wait()
            for _ in range(60):
                cut = committed.steady(lambda cut: (cut.epoch, {value.state for _, value in cut.rows("C")}))
                seen.add(cut[0])
                if cut[1] != {b"%d" % cut[0]}:
                    problems.append(cut)
                key = rng.choice(keys).decode()
                if committed.steady(lambda cut, key=key: cut.get("C", key)) is None:
                    problems.append(key)
        except BaseException as error:
            problems.append(error)
            raise

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    barrier.wait()
    while any(thread.is_alive() for thread in threads):
        write()
        if world.epoch % 3 == 0:
            world.compact_some()
        if world.epoch % 7 == 0:
            world.collect(gc.WINDOW)
        if world.epoch > 20_000:
            break
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert problems == []
    assert len(seen) > 1


def test_a_state_cache_is_opened_once_by_many_threads(tmp_path):
    barrier, found = threading.Barrier(8), []

    def open_it() -> None:
        barrier.wait()
        found.append(state_cache.open_state_cache(tmp_path, "C", 0))

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(map(id, found))) == 1


# --- state caches whose epochs are held


def held(world: World, folder: Path, epoch: int | None = None) -> state_cache.Held | None:
    manifest = world.log.read(world.epoch if epoch is None else epoch)
    chain = manifest.computations["C"].shards[0].segments
    return state_cache.open_state_cache(folder, "C", 0, 1 << 20).hold(world.storage, chain, manifest)


def entries(found: state_cache.Held | None) -> dict[bytes, bytes]:
    assert found is not None
    return dict(found.scan(b"\x01", b"\xff" * 9))


def test_a_held_epoch_cannot_be_overtaken_and_a_cache_does_not_go_back(tmp_path, monkeypatch):
    """What a state cache has begun to answer it goes on answering, while the state cache itself follows newer epochs."""
    tiny(monkeypatch)
    world = World(1, shards=1)
    for _ in range(6):
        world.commit_some()
    found = held(world, tmp_path)
    assert entries(found) == world.as_of[5]
    assert held(world, tmp_path, 2) is None
    for _ in range(3):
        world.overtake()
        newer = held(world, tmp_path)
        assert entries(newer) == world.model
        newer.close()
    assert entries(found) == world.as_of[5]
    found.close()


def test_a_map_does_not_grow_under_somebody_who_reads(tmp_path):
    """Growing moves it, and what was held would point to nowhere. When nobody holds on, the state cache follows again."""
    world = World(shards=1)
    world.commit({ROW + b"a": row(b"1")})
    first = held(world, tmp_path)
    world.commit({ROW + b"%06d" % i: row(bytes(200)) for i in range(8000)})
    assert held(world, tmp_path) is None
    assert entries(first) == {ROW + b"a": row(b"1")}
    first.close()
    assert len(entries(held(world, tmp_path))) == 8001


def test_an_epoch_is_held_although_its_cache_is_deleted_and_another_reader_comes(tmp_path):
    world = World(seed=3, shards=1, storage=LocalStorage(tmp_path / "log"))
    world.commit({ROW + b"%02d" % k: row(b"%d" % k) for k in range(9)})
    first = held(world, tmp_path / "caches")
    assert entries(first) == world.model
    shutil.rmtree(tmp_path / "caches")
    assert entries(held(world, tmp_path / "caches")) == world.model == entries(first)
