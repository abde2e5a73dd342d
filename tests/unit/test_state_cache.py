"""The state cache: whatever it was before, after catching up it holds what the manifest says."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unitkit import CountingStorage, write_delta

from effort import some
from millstream.core.keyspace import after, encode_sub_key, sub_prefix
from millstream.core.mapstate import MapState
from millstream.errors import DamageError
from millstream.state import state_cache as state_cache_module
from millstream.state.codec import msgpack
from millstream.state.compaction import adopt, compact
from millstream.state.manifest import Manifest
from millstream.state.segment import SegmentRef, encode_segment
from millstream.state.state_cache import StateCache, open_state_cache, state_cache_root
from millstream.state.storage import LocalStorage

Delta = dict[bytes, bytes | None]


def manifest(epoch: int, runs: list[tuple[int, str]] | None = None) -> Manifest:
    runs = runs or [(0, "run")]
    return Manifest(epoch, runs[-1][1], 0, runs)


def apply(model: dict[bytes, bytes], delta: Delta) -> None:
    for key, value in delta.items():
        if value is None:
            model.pop(key, None)
        else:
            model[key] = value


class Log:
    """A chain that grows, and what it must come to."""

    def __init__(self, storage: Any = None) -> None:
        self.storage = storage or CountingStorage()
        self.chain: list[SegmentRef] = []
        self.model: dict[bytes, bytes] = {}
        self.epoch = -1

    def commit(self, delta: Delta) -> None:
        self.epoch += 1
        apply(self.model, delta)
        if delta:
            self.chain = [*self.chain, write_delta(self.storage, self.epoch, delta)]

    def compact(self, first: int, last: int) -> None:
        chosen = self.chain[first : last + 1]
        self.chain = adopt(self.chain, chosen, compact(self.storage, chosen, first == 0, self.epoch))


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def state_cache(tmp_path: Path):
    found = StateCache(tmp_path / "state_cache")
    yield found
    found.retire()


def everything(
    state_cache: StateCache, log: Log, runs: list[tuple[int, str]] | None = None, epoch: int | None = None, chain: Any = None
) -> dict[bytes, bytes]:
    """All entries as of the log's last epoch, looked up in all ways."""
    at = log.epoch if epoch is None else epoch
    view = state_cache.view(log.storage, log.chain if chain is None else chain, None if at < 0 else manifest(at, runs))
    try:
        forth = list(view.scan(b"\x01", b"\xff" * 20))
        back = list(view.scan(b"\x01", b"\xff" * 20, reverse=True))
        assert sorted(back) == sorted(forth)
        for key, value in forth:
            assert view.get(key) == value
        return dict(forth)
    finally:
        view.close()


# --- catching up


def test_before_the_first_epoch_it_is_empty(state_cache, log):
    assert everything(state_cache, log) == {}


def test_a_fresh_state_cache_loads_the_whole_chain(state_cache, log):
    log.commit({b"a": b"1", b"b": b"2"})
    log.commit({b"a": None, b"c": b""})
    assert everything(state_cache, log) == {b"b": b"2", b"c": b""}


def test_it_reads_only_what_it_is_behind(state_cache, log):
    for i in range(4):
        log.commit({b"k%d" % i: b"v"})
        everything(state_cache, log)
    log.storage.reads.clear()
    for i in range(4, 7):
        log.commit({b"k%d" % i: b"v", b"k0": None})
    assert everything(state_cache, log) == log.model
    assert log.storage.reads == [ref.name for ref in log.chain[4:]]
    log.storage.reads.clear()
    assert everything(state_cache, log) == log.model
    assert log.storage.reads == []


def test_it_counts_what_it_holds_and_what_that_cost(state_cache, log):
    assert state_cache.stats() == state_cache_module.StateCacheStats(state_cache.stats().bytes, 0, 0, 0, 0)
    log.commit({b"k%d" % i: b"v" for i in range(500)})
    log.commit({b"k0": None})
    everything(state_cache, log)
    first = state_cache.stats()
    assert (first.entries, first.loads, first.catch_ups, first.segments) == (499, 1, 0, 2)
    assert first.bytes > 500 * 3
    log.commit({b"more": b"v"})
    everything(state_cache, log)
    everything(state_cache, log)
    second = state_cache.stats()
    assert (second.entries, second.loads, second.catch_ups, second.segments) == (500, 1, 1, 3)
    everything(state_cache, log, [(0, "other")])
    assert state_cache.stats().loads == 2


def test_an_epoch_without_a_delta_costs_no_read(state_cache, log):
    log.commit({b"a": b"1"})
    everything(state_cache, log)
    log.storage.reads.clear()
    log.commit({})
    assert everything(state_cache, log) == {b"a": b"1"}
    assert log.storage.reads == []


def test_it_catches_up_across_a_compaction_that_covers_more_than_is_missing(state_cache, log):
    for i in range(6):
        log.commit({b"k%d" % i: b"%d" % i, b"same": b"%d" % i})
    everything(state_cache, log)
    for i in range(6, 9):
        log.commit({b"k%d" % i: b"%d" % i, b"same": b"%d" % i, b"k%d" % (i - 4): None})
    log.compact(3, 8)
    log.commit({b"last": b"1"})
    log.storage.reads.clear()
    assert everything(state_cache, log) == log.model
    assert log.storage.reads == [ref.name for ref in log.chain if ref.last >= 6]


def test_a_compaction_below_its_marker_costs_nothing(state_cache, log):
    for i in range(6):
        log.commit({b"k%d" % i: b"1"})
    everything(state_cache, log)
    log.compact(0, 3)
    log.storage.reads.clear()
    log.commit({b"x": b"1"})
    assert everything(state_cache, log) == log.model
    assert log.storage.reads == [log.chain[-1].name]


def test_it_loads_anew_when_the_base_is_newer(state_cache, log):
    log.commit({b"gone": b"1", b"a": b"1"})
    everything(state_cache, log)
    log.commit({b"gone": None})
    log.commit({b"b": b"1"})
    log.compact(0, 2)  # the base no longer says that "gone" went
    log.storage.reads.clear()
    assert everything(state_cache, log) == {b"a": b"1", b"b": b"1"}
    assert log.storage.reads == [log.chain[0].name]


def test_it_loads_anew_when_it_is_ahead(state_cache, log):
    log.commit({b"a": b"1"})
    early = list(log.chain)
    log.commit({b"a": b"2", b"b": b"1"})
    assert everything(state_cache, log) == {b"a": b"2", b"b": b"1"}
    assert everything(state_cache, log, epoch=0, chain=early) == {b"a": b"1"}
    assert everything(state_cache, log) == {b"a": b"2", b"b": b"1"}


def test_it_is_emptied_when_it_is_ahead_of_the_first_epoch(state_cache, log):
    log.commit({b"a": b"1"})
    everything(state_cache, log)
    assert everything(state_cache, log, epoch=-1, chain=[]) == {}
    assert everything(state_cache, log) == {b"a": b"1"}


def test_it_loads_anew_when_another_run_committed_its_epoch(state_cache, log):
    log.commit({b"a": b"1"})
    log.commit({b"a": b"lost", b"lost": b"1"})
    assert everything(state_cache, log, runs=[(0, "old")]) == {b"a": b"lost", b"lost": b"1"}
    other = Log(log.storage)
    other.chain, other.epoch, other.model = log.chain[:1], 0, {b"a": b"1"}
    other.commit({b"b": b"1"})
    other.commit({b"c": b"1"})
    assert everything(state_cache, other, runs=[(0, "old"), (1, "new")]) == {b"a": b"1", b"b": b"1", b"c": b"1"}


def test_it_goes_on_when_a_new_run_continues_its_history(state_cache, log):
    log.commit({b"a": b"1"})
    everything(state_cache, log, runs=[(0, "old")])
    log.commit({b"b": b"1"})
    log.storage.reads.clear()
    assert everything(state_cache, log, runs=[(0, "old"), (1, "new")]) == log.model
    assert log.storage.reads == [log.chain[1].name]


def test_it_loads_anew_when_its_run_is_forgotten(state_cache, log):
    log.commit({b"a": b"1"})
    everything(state_cache, log, runs=[(0, "old")])
    log.commit({b"b": b"1"})
    log.storage.reads.clear()
    assert everything(state_cache, log, runs=[(1, "new")]) == log.model
    assert len(log.storage.reads) == 2


names = st.integers(0, 9).map(lambda i: b"k%d" % i)
acts = st.one_of(
    st.tuples(st.just("commit"), st.dictionaries(names, st.one_of(st.none(), st.binary(max_size=3)), max_size=4)),
    st.tuples(st.just("compact"), st.integers(0, 99), st.integers(0, 99)),
    st.tuples(st.just("view"), st.integers(0, 1)),
    st.tuples(st.just("old"), st.integers(0, 99)),
)


@settings(max_examples=some(60))
@given(st.lists(acts, max_size=25))
def test_two_state_caches_that_look_now_and_then_always_see_what_a_dict_would_hold(tmp_path_factory, history):
    folder = tmp_path_factory.mktemp("state_caches")
    log, past = Log(), []
    state_caches = [StateCache(folder / "0"), StateCache(folder / "1")]
    for act, *args in [*history, ("view", 0), ("view", 1)]:
        if act == "commit":
            log.commit(args[0])
            past.append((log.epoch, log.chain, dict(log.model)))
        elif act == "compact" and log.chain:
            first, last = sorted(a % len(log.chain) for a in args)
            log.compact(first, last)
        elif act == "view":
            assert everything(state_caches[args[0]], log) == log.model
        elif act == "old" and past:
            epoch, chain, model = past[args[0] % len(past)]
            assert everything(state_caches[0], log, epoch=epoch, chain=chain) == model
    for one in state_caches:
        one.retire()
    shutil.rmtree(folder)


def test_a_view_stays_as_it_is_while_the_state_cache_moves_on(state_cache, log):
    log.commit({b"a": b"1"})
    view = state_cache.view(log.storage, log.chain, manifest(0))
    log.commit({b"a": b"2"})
    assert everything(state_cache, log) == {b"a": b"2"}
    assert view.get(b"a") == b"1"
    view.close()


def test_the_marker_is_not_an_entry(state_cache, log):
    log.commit({b"a": b"1"})
    view = state_cache.view(log.storage, log.chain, manifest(0))
    assert list(view.scan(b"", b"\xff")) == [(b"a", b"1")]
    assert list(view.scan(b"", b"\xff", reverse=True)) == [(b"a", b"1")]
    view.close()


def test_scans_are_what_slices_of_a_sorted_list_are(state_cache, log):
    log.commit({b"%02d" % i: b"v" for i in range(0, 40, 2)})
    view = state_cache.view(log.storage, log.chain, manifest(0))
    every = sorted(log.model)
    for start in (b"", b"00", b"01", b"10", b"38", b"39"):
        for stop in (b"00", b"01", b"11", b"38", b"39", b"99"):
            expected = [key for key in every if start <= key < stop]
            assert [k for k, _ in view.scan(start, stop)] == expected
            assert [k for k, _ in view.scan(start, stop, reverse=True)] == expected[::-1]
    view.close()


def test_a_damaged_segment_is_an_error_and_leaves_the_state_cache_as_it_was(state_cache, log):
    log.commit({b"a": b"1"})
    everything(state_cache, log)
    log.commit({b"a": b"2"})
    log.commit({b"b": b"2"})
    name = log.chain[2].name
    sound = log.storage.objects[name]
    log.storage.objects[name] = sound[:-1] + b"x"
    with pytest.raises(DamageError):
        everything(state_cache, log)
    assert everything(state_cache, log, epoch=0, chain=log.chain[:1]) == {b"a": b"1"}
    log.storage.objects[name] = sound
    assert everything(state_cache, log) == {b"a": b"2", b"b": b"2"}


# --- long keys


def long_names(seed: int, prefix: bytes) -> list[bytes]:
    rng = random.Random(seed)
    return [prefix + rng.randbytes(rng.choice([0, 1, 5, 15, 16, 17, 30, 100, 600])) for _ in range(40)]


@pytest.mark.parametrize("length", [0, 300, 470, 480, 483, 484, 485, 490, 499, 500, 511, 600])
def test_keys_of_any_length_are_kept_found_and_deleted(state_cache, log, length):
    prefix = b"R" * length + b"k"
    keys = sorted({*long_names(length, prefix), prefix, prefix + b"\xff" * 30, prefix + b"\0" * 30})
    log.commit({key: b"%d" % at for at, key in enumerate(keys)})
    assert everything(state_cache, log) == log.model
    log.commit({key: None if at % 3 == 0 else b"new" for at, key in enumerate(keys) if at % 2})
    assert everything(state_cache, log) == log.model
    log.compact(0, 1)
    assert everything(StateCache(state_cache.folder.parent / "other"), log) == log.model
    view = state_cache.view(log.storage, log.chain, manifest(log.epoch))
    assert all(view.get(key) == log.model.get(key) for key in keys)
    assert view.get(prefix + b"never" * 200) is None
    view.close()


@pytest.mark.parametrize("length", [300, 470, 480, 483, 484, 485, 490, 499, 500, 600])
def test_a_scan_finds_every_key_in_its_range_however_long(state_cache, log, length):
    prefix = b"R" * length + b"k"
    keys = sorted({*long_names(length, prefix), prefix})
    log.commit({key: b"v" for key in keys})
    view = state_cache.view(log.storage, log.chain, manifest(0))
    edges = [b"R", b"S", prefix, after(prefix), *keys[::7], *[key + b"\0" for key in keys[::11]]]
    for start in edges:
        for stop in edges:
            expected = [key for key in keys if start <= key < stop]
            assert sorted(k for k, _ in view.scan(start, stop)) == expected
            assert sorted(k for k, _ in view.scan(start, stop, reverse=True)) == expected
    view.close()


@pytest.mark.parametrize("length", [470, 485, 600])
def test_a_scan_gives_long_keys_in_order(state_cache, log, length):
    """The core's Store says `in order`, and MapState's merge of stored and changed entries lives by it."""
    prefix = b"R" * length + b"k"
    keys = sorted({*long_names(length, prefix)})
    log.commit({key: b"v" for key in keys})
    view = state_cache.view(log.storage, log.chain, manifest(0))
    assert [k for k, _ in view.scan(prefix, after(prefix))] == keys
    assert [k for k, _ in view.scan(prefix, after(prefix), reverse=True)] == keys[::-1]
    view.close()


@pytest.mark.parametrize("row_key", [b"u" * 10, b"u" * 470, b"u" * 485, b"u" * 600], ids=len)
def test_a_map_under_a_long_key_is_sorted_and_shows_no_stale_entry(state_cache, log, row_key):
    """A URL makes a long key."""
    encode, decode = msgpack.encoder(), msgpack.decoder(object)
    prefix = sub_prefix(row_key, "")
    model = {f"page-{i:020d}": i for i in range(30)}
    log.commit({prefix + encode_sub_key(k): encode(v) for k, v in model.items()})
    view = state_cache.view(log.storage, log.chain, manifest(0))
    found = MapState()
    found.bind(view, prefix, encode, decode)
    for at, key in enumerate(sorted(model)):
        if at % 3 == 0:
            found.delete(key)
            del model[key]
        elif at % 3 == 1:
            found[key] = model[key] = -at
    listed = list(found.items())
    assert sorted(listed) == sorted(model.items())
    assert listed == sorted(model.items())
    found.clear()
    assert found.is_empty()
    view.close()


def test_pieces_of_a_base_with_long_keys_lose_nothing(state_cache, log):
    """Long keys are kept under another name, which may sort behind the next piece's first key."""
    shared = b"R" * 484
    first = [shared + b"a" * 5 + b"%03d" % i + b"x" * 20 for i in range(50)]
    second = [shared + b"b%d" % i for i in range(10)]
    for at, piece in enumerate((first, second)):
        data = encode_segment([(key, b"v") for key in piece])
        log.storage.put(f"units/{at}", data)
        log.chain.append(SegmentRef(f"units/{at}", 0, len(data), len(piece), 0, 0, True))
    log.epoch = 0
    log.model = dict.fromkeys(first + second, b"v")
    assert everything(state_cache, log) == log.model


# --- growth


def test_the_map_grows_with_the_state(tmp_path, log, monkeypatch):
    monkeypatch.setattr(state_cache_module, "_MAP_SIZE", 1 << 20)
    state_cache = StateCache(tmp_path / "small")
    for epoch in range(4):
        log.commit({b"%d-%06d" % (epoch, i): bytes(1000) for i in range(1500)})
        view = state_cache.view(log.storage, log.chain, manifest(log.epoch))
        assert sum(1 for _ in view.scan(b"\x01", b"\xff")) == 1500 * (epoch + 1)
        view.close()
    assert state_cache._env.info()["map_size"] > 4 << 20
    state_cache.retire()
    again = StateCache(tmp_path / "small")
    view = again.view(log.storage, log.chain, manifest(log.epoch))
    assert view.get(b"3-000007") == bytes(1000)
    view.close()
    again.retire()


# --- several processes


def _follow(folder: str, storage: str, rounds: int, go: Any, results: Any) -> None:
    """A worker process: views the state cache at every epoch of a log that the test has written."""
    state_cache_module._MAP_SIZE = 1 << 20
    chain, _ = _written(LocalStorage(storage), rounds)
    state_cache = open_state_cache(Path(folder), "C", 0)
    go.wait(30)
    sizes = []
    for epoch in range(rounds):
        view = state_cache.view(LocalStorage(storage), chain[: epoch + 1], manifest(epoch))
        sizes.append(sum(1 for _ in view.scan(b"\x01", b"\xff")))
        view.close()
    results.put(sizes)


def _written(storage: LocalStorage, rounds: int) -> tuple[list[SegmentRef], dict[bytes, bytes]]:
    """The chain of a log with the same content whoever writes it."""
    chain, model = [], {}
    for epoch in range(rounds):
        delta: Delta = {b"%d-%04d" % (epoch, i): bytes(1000) for i in range(200)}
        apply(model, delta)
        data, name = encode_segment(sorted(delta.items())), f"units/{epoch:012d}-x"
        if not storage.exists(name):
            storage.put(name, data)
        chain.append(SegmentRef(name, 0, len(data), len(delta), epoch, epoch))
    return chain, model


@pytest.mark.slow
def test_two_processes_share_a_state_cache_that_grows(tmp_path):
    """Both race through the same epochs; one may find the state cache ahead of it and load anew."""
    _written(LocalStorage(tmp_path / "log"), 10)
    context = multiprocessing.get_context("spawn")
    go, results = context.Event(), context.Queue()
    args = (str(tmp_path / "state_caches"), str(tmp_path / "log"), 10, go, results)
    workers = [context.Process(target=_follow, args=args) for _ in range(2)]
    for worker in workers:
        worker.start()
    go.set()
    found = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(30)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert found == [[200 * (epoch + 1) for epoch in range(10)]] * 2


class Stuck(LocalStorage):
    """A storage on which the last segment never arrives."""

    def __init__(self, root: str, last: str, flag: str) -> None:
        super().__init__(root)
        self.last, self.flag = last, flag

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if name == self.last:
            Path(self.flag).touch()
            time.sleep(600)
        return super().read(name, offset, length)


def _get_stuck(folder: str, storage: str, flag: str, behind: int) -> None:
    chain, _ = _written(LocalStorage(storage), 10)
    state_cache = open_state_cache(Path(folder), "C", 0)
    if behind:
        state_cache.view(LocalStorage(storage), chain[:behind], manifest(behind - 1)).close()
    state_cache.view(Stuck(storage, chain[-1].name, flag), chain, manifest(9))


@pytest.mark.slow
@pytest.mark.parametrize("behind", [0, 4])
def test_a_process_killed_in_the_middle_of_catching_up_leaves_a_usable_state_cache(tmp_path, behind):
    storage = LocalStorage(tmp_path / "log")
    chain, model = _written(storage, 10)
    flag = tmp_path / "flag"
    child = multiprocessing.get_context("spawn").Process(
        target=_get_stuck, args=(str(tmp_path / "state_caches"), str(storage.root), str(flag), behind)
    )
    child.start()
    deadline = time.monotonic() + 30
    while not flag.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert flag.exists()
    os.kill(child.pid, signal.SIGKILL)
    child.join(10)
    assert child.exitcode == -signal.SIGKILL
    state_cache = open_state_cache(tmp_path / "state_caches", "C", 0)
    if behind:
        view = state_cache.view(storage, chain[:behind], manifest(behind - 1))
        assert sum(1 for _ in view.scan(b"\x01", b"\xff")) == 200 * behind
        view.close()
    view = state_cache.view(storage, chain, manifest(9))
    assert dict(view.scan(b"\x01", b"\xff")) == model
    view.close()


# --- the folder


def test_a_state_cache_is_opened_once_per_process(tmp_path):
    assert open_state_cache(tmp_path, "C", 0) is open_state_cache(tmp_path, "C", 0)
    assert open_state_cache(tmp_path, "C", 0) is not open_state_cache(tmp_path, "C", 1)
    assert open_state_cache(tmp_path, "C", 0) is not open_state_cache(tmp_path, "D", 0)


def test_a_folder_deleted_under_an_open_state_cache_is_made_again(tmp_path, log):
    log.commit({b"a": b"1"})
    first = open_state_cache(tmp_path, "C", 0)
    assert everything(first, log) == log.model
    shutil.rmtree(tmp_path)
    second = open_state_cache(tmp_path, "C", 0)
    assert second is not first
    log.commit({b"b": b"1"})
    assert everything(second, log) == log.model


def test_a_torn_file_is_thrown_away(tmp_path, log):
    """It is a cache: deleting it costs time, never data. So it must not stop a run."""
    log.commit({b"a": b"1"})
    state_cache = StateCache(tmp_path / "torn")
    everything(state_cache, log)
    state_cache.retire()
    (tmp_path / "torn" / "data.mdb").write_bytes(b"garbage" * 2000)
    again = StateCache(tmp_path / "torn")
    assert everything(again, log) == log.model
    again.retire()


def test_state_caches_of_two_checkpoints_and_two_boots_do_not_meet(tmp_path, monkeypatch):
    monkeypatch.setenv("MILLSTREAM_STATE_CACHE", str(tmp_path))
    one = state_cache_root("one")
    assert one.is_relative_to(tmp_path) and one != state_cache_root("other")
    monkeypatch.setattr(state_cache_module, "boot_id", lambda: "next boot")
    assert state_cache_root("one") != one
    assert state_cache_root("one", str(tmp_path / "elsewhere")).is_relative_to(tmp_path / "elsewhere")
