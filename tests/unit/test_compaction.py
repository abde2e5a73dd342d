"""Compaction: chains stay short, state stays what it is, collection takes leftovers and nothing else."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unitkit import CountingStorage, write_delta

import millstream as ms
from computations import Sum
from effort import some
from millstream.errors import DamageError
from millstream.state import compaction, gc
from millstream.state.compaction import MAX_RUNS, adopt, compact, made_in, pick_segments, unit_name
from millstream.state.gc import collect, named_by
from millstream.state.manifest import ComputationState, Manifest, Part, ShardState
from millstream.state.manifest_log import KEEP, ManifestLog
from millstream.state.memory_storage import MemoryStorage
from millstream.state.segment import SegmentRef, merge, read_run, runs


def apply(model: dict[bytes, bytes], delta: dict[bytes, bytes | None]) -> None:
    for key, value in delta.items():
        if value is None:
            model.pop(key, None)
        else:
            model[key] = value


def random_delta(rng: random.Random, keys: int) -> dict[bytes, bytes | None]:
    delta: dict[bytes, bytes | None] = {}
    for _ in range(rng.choice([0, 1, 3, 10, 40])):
        delta[b"%05d" % rng.randrange(keys)] = None if rng.random() < 0.3 else rng.randbytes(rng.randrange(20))
    return delta


def compact_if_due(storage: CountingStorage, chain: list[SegmentRef], epoch: int) -> tuple[list[SegmentRef], int]:
    """What the engine does after a commit; the bytes that it wrote."""
    chosen = pick_segments(chain)
    if not chosen:
        return chain, 0
    assert list(chosen) == chain[len(chain) - len(chosen) :]
    made = compact(storage, chosen, chosen[0] == chain[0], epoch)
    return adopt(chain, chosen, made), sum(ref.length for ref in made)


@pytest.mark.parametrize("seed", range(3))
def test_chains_stay_short_and_state_stays_the_same_over_500_deltas(seed):
    rng = random.Random(seed)
    storage, model = CountingStorage(), {}
    chain: list[SegmentRef] = []
    deltas = compactions = 0
    for epoch in range(500):
        delta = random_delta(rng, keys=300)
        apply(model, delta)
        if delta:
            ref = write_delta(storage, epoch, delta)
            chain.append(ref)
            deltas += ref.length
        chain, cost = compact_if_due(storage, chain, epoch)
        compactions += cost
        assert len(runs(chain)) <= MAX_RUNS
        if epoch % 50 == 0 or epoch == 499:
            assert dict(merge(storage, chain, drop_deleted=True)) == model
    assert chain[0].base and not any(ref.base for ref in chain[1:])
    assert compactions < 10 * deltas


def test_chains_stay_short_when_the_state_only_grows():
    """Every entry is rewritten about once per doubling of the state."""
    storage = CountingStorage()
    chain: list[SegmentRef] = []
    deltas = compactions = 0
    for epoch in range(500):
        ref = write_delta(storage, epoch, {b"%06d" % (epoch * 10 + i): b"x" * 10 for i in range(10)})
        chain.append(ref)
        deltas += ref.length
        chain, cost = compact_if_due(storage, chain, epoch)
        compactions += cost
        assert len(runs(chain)) <= MAX_RUNS
    assert len(list(merge(storage, chain, drop_deleted=True))) == 5000
    assert compactions < 9 * deltas  # log2(500)


def test_a_short_chain_is_left_alone():
    chain = [SegmentRef(f"u/{i}", 0, 10, 1, i, i) for i in range(MAX_RUNS)]
    assert list(pick_segments(chain)) == []
    assert len(pick_segments([*chain, SegmentRef("u/x", 0, 10, 1, 99, 99)])) >= 2


def test_a_large_base_is_left_alone_until_enough_is_gathered():
    base = SegmentRef("u/base", 0, 10_000, 1, 0, 0, True)
    small = [SegmentRef(f"u/{i}", 0, 10, 1, i, i) for i in range(1, MAX_RUNS + 1)]
    assert list(pick_segments([base, *small])) == small
    larger = [SegmentRef(f"u/{i}", 0, 1_000, 1, i, i) for i in range(1, MAX_RUNS + 1)]
    assert list(pick_segments([base, *larger])) == [base, *larger]


def test_pieces_of_one_run_are_compacted_together_or_not_at_all():
    pieces = [SegmentRef(f"u/base{i}", 0, 10, 1, 0, 5, True) for i in range(30)]
    small = [SegmentRef(f"u/{i}", 0, 1, 1, i, i) for i in range(6, 6 + MAX_RUNS)]
    assert list(pick_segments(pieces)) == []
    chosen = list(pick_segments([*pieces, *small]))
    assert chosen == small


def test_a_base_drops_deletions_and_another_compaction_keeps_them():
    storage = CountingStorage()
    chain = [
        write_delta(storage, 0, {b"a": b"1", b"b": b"2"}),
        write_delta(storage, 1, {b"a": None}),
        write_delta(storage, 2, {b"c": None}),
    ]
    (base,) = compact(storage, chain, True, 2)
    assert (list(read_run(storage, [base])), base.first, base.last, base.base) == ([(b"b", b"2")], 0, 2, True)
    (upper,) = compact(storage, chain[1:], False, 2)
    assert (list(read_run(storage, [upper])), upper.first, upper.last, upper.base) == ([(b"a", None), (b"c", None)], 1, 2, False)
    assert dict(merge(storage, [chain[0], upper], drop_deleted=True)) == {b"b": b"2"}


def test_a_compaction_of_which_nothing_is_left_is_still_a_base():
    storage = CountingStorage()
    chain = [write_delta(storage, 0, {b"a": b"1"}), write_delta(storage, 1, {b"a": None})]
    made = compact(storage, chain, True, 1)
    assert len(made) == 1 and made[0].base and made[0].entries == 0
    assert list(read_run(storage, made)) == []


def test_a_large_compaction_is_written_in_pieces_that_are_one_run(monkeypatch):
    monkeypatch.setattr(compaction, "PIECE", 200)
    storage = CountingStorage()
    model = {b"%04d" % i: b"x" * 10 for i in range(100)}
    made = compact(storage, [write_delta(storage, 0, model)], True, 7)
    assert len(made) > 5
    assert len(runs(made)) == 1
    assert dict(read_run(storage, made)) == model
    assert max(len(storage.objects[ref.name]) for ref in made) < 400
    assert all(made_in(ref.name) == 7 for ref in made)


def test_a_compaction_is_adopted_only_if_all_that_it_replaces_is_there():
    storage = CountingStorage()
    chain = [write_delta(storage, i, {b"a": b"%d" % i}) for i in range(5)]
    made = compact(storage, chain[1:4], False, 4)
    assert adopt(chain, chain[1:4], made) == [chain[0], *made, chain[4]]
    later = write_delta(storage, 5, {b"a": b"5"})
    assert adopt([*chain, later], chain[1:4], made) == [chain[0], *made, chain[4], later]
    for gone in (1, 2, 3):
        without = chain[:gone] + chain[gone + 1 :]
        assert adopt(without, chain[1:4], made) == without
    assert adopt([], chain[1:4], made) == []


def test_slices_of_one_object_are_told_apart_when_a_compaction_is_adopted():
    one, other = SegmentRef("u/a", 0, 10, 1, 1, 1), SegmentRef("u/a", 10, 10, 1, 1, 1)
    fresh = [SegmentRef("u/new", 0, 5, 1, 1, 1)]
    assert adopt([one], [other], fresh) == [one]
    assert adopt([other], [other], fresh) == fresh


histories = st.lists(st.dictionaries(st.integers(0, 12), st.one_of(st.none(), st.integers(0, 99)), max_size=4), min_size=1, max_size=30)


@settings(max_examples=some(100))
@given(histories, st.data())
def test_compacting_any_part_of_a_chain_changes_nothing(history, data):
    storage, model = CountingStorage(), {}
    chain = []
    for epoch, changes in enumerate(history):
        delta = {b"%02d" % k: None if v is None else b"%d" % v for k, v in changes.items()}
        apply(model, delta)
        chain.append(write_delta(storage, epoch, delta))
        if data.draw(st.booleans()):
            grouped = runs(chain)
            first = data.draw(st.integers(0, len(grouped) - 1))
            last = data.draw(st.integers(first, len(grouped) - 1))
            chosen = [ref for run in grouped[first : last + 1] for ref in run]
            chain = adopt(chain, chosen, compact(storage, chosen, first == 0, epoch))
    assert dict(merge(storage, chain, drop_deleted=True)) == model


# --- collection


def test_a_name_tells_the_epoch_and_is_never_used_twice():
    names = {unit_name(42, "0.1.2") for _ in range(1000)}
    assert len(names) == 1000
    assert {made_in(name) for name in names} == {42}


class Driver:
    """A driver in small: commits epochs on a log, compactions, collects, may be replaced without noticing."""

    def __init__(self, log: ManifestLog, token: str, rng: random.Random) -> None:
        self.log, self.token, self.rng = log, token, rng
        self.now, self.window = 0, rng.choice([0, 3000, 60_000])
        self.latest = log.latest()
        self.done: tuple[list[SegmentRef], list[SegmentRef]] | None = None  # a compaction that waits for adoption

    def chain(self) -> list[SegmentRef]:
        return self.latest.computations["C"].shards[0].segments if self.latest else []

    def epoch(self) -> bool:
        number = self.latest.epoch + 1 if self.latest else 0
        storage = self.log.storage
        for _ in range(self.rng.choice([0, 0, 1])):  # what a dead attempt leaves
            storage.put(unit_name(number, "dead"), b"x")
        name = unit_name(number, "0.0.0")
        ref = write_delta(storage, number, {b"%02d" % self.rng.randrange(40): b"%d" % number})
        storage.put(name, storage.objects.pop(ref.name))
        chain = self.chain()
        if self.done is not None:
            chain = adopt(chain, *self.done)
            self.done = None
        chain = [*chain, SegmentRef(name, 0, ref.length, ref.entries, number, number)]
        part = Part(rows=1, staged=unit_name(number, "rows"), in_checkpoint=True)
        storage.put(part.staged, b"rows")
        state = ComputationState(shards=[ShardState(chain)])
        self.now += self.rng.choice([0, 16, 16, 300, 1000, 40_000])
        manifest = Manifest(number, self.token, self.now, [(0, self.token)], computations={"C": state}, sinks={"out": [part]})
        if not self.log.commit(manifest):
            return False
        self.latest = manifest
        return True

    def compact(self) -> None:
        chain = self.chain()
        chosen = pick_segments(chain) if self.rng.random() < 0.5 else chain[-3:]
        if chosen and self.done is None:
            self.done = list(chosen), compact(self.log.storage, chosen, chosen[0] == chain[0], self.latest.epoch)

    def collect(self) -> int:
        if self.latest is None:
            return 0
        return collect(self.log, self.latest, [ref.name for ref in self.done[1]] if self.done else [], window=self.window)


def assert_whole(log: ManifestLog) -> None:
    """Every kept manifest can be read to the last entry."""
    for epoch in log.epochs():
        for name in named_by(log.read(epoch)):
            assert log.storage.exists(name), f"manifest {epoch} names {name}, which is gone"


@settings(max_examples=some(60))
@given(st.integers(0, 2**32), st.lists(st.sampled_from("eeeeefcc"), min_size=30, max_size=80))
def test_collection_never_removes_what_a_kept_manifest_names(seed, acts):
    log = ManifestLog(CountingStorage())
    driver = Driver(log, "run", random.Random(seed))
    for act in acts:
        {"e": driver.epoch, "f": driver.compact, "c": driver.collect}[act]()
        assert_whole(log)


@settings(max_examples=some(100))
@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 1), st.sampled_from("eeeefcc")), min_size=40, max_size=100))
def test_a_replaced_driver_never_removes_what_its_successor_made(seed, acts):
    """Both collect whenever they like, each with the newest manifest that it knows of. The loser of a commit stops committing."""
    rng = random.Random(seed)
    log = ManifestLog(CountingStorage())
    old = Driver(log, "old", rng)
    for _ in range(rng.randrange(1, 30)):
        old.epoch()
    new = Driver(log, "new", rng)
    drivers, fenced = [old, new], [False, False]
    for who, act in acts:
        driver = drivers[who]
        if act == "e" and not fenced[who]:
            fenced[who] = not driver.epoch()
        elif act == "f" and not fenced[who]:
            driver.compact()
        elif act == "c":
            try:
                driver.collect()
            except DamageError:
                assert fenced[who] or driver.latest.epoch < log.epochs()[-1]  # only one that was overtaken may stumble
        assert_whole(log)


def test_collection_removes_leftovers_and_manifests_beyond_the_last_few():
    log = ManifestLog(CountingStorage())
    driver = Driver(log, "run", random.Random(1))
    driver.window = 0
    dead = []
    for epoch in range(3 * KEEP):
        driver.epoch()
        dead.append(unit_name(epoch, "dead"))
        log.storage.put(dead[-1], b"x")
        if epoch % 5 == 4:
            driver.compact()
    driver.epoch()
    gone = driver.collect()
    assert gone > 0
    assert log.epochs() == list(range(2 * KEEP + 1, 3 * KEEP + 1))
    left = [name for name in dead if log.storage.exists(name)]
    assert left == dead[2 * KEEP + 1 :]
    named = set().union(*(named_by(log.read(epoch)) for epoch in log.epochs()))
    old = {name for name in log.storage.list("units") if made_in(name) <= 2 * KEEP}
    assert old <= named


def test_collection_keeps_what_is_in_flight_and_takes_it_otherwise():
    log = ManifestLog(CountingStorage())
    driver = Driver(log, "run", random.Random(1))
    driver.epoch()
    name = unit_name(0, "compact")
    log.storage.put(name, b"x")
    for _ in range(2 * KEEP):
        driver.epoch()
    collect(log, driver.latest, [name])
    assert log.storage.exists(name)
    collect(log, driver.latest)
    assert not log.storage.exists(name)


def test_collection_with_a_manifest_that_is_no_longer_kept_does_nothing():
    log = ManifestLog(CountingStorage())
    driver = Driver(log, "run", random.Random(1))
    driver.epoch()
    early = driver.latest
    for _ in range(3 * KEEP):
        driver.epoch()
    driver.window = 0
    driver.collect()
    before = dict(log.storage.objects)
    assert collect(log, early) == 0
    assert log.storage.objects == before


def commit_at(log: ManifestLog, epoch: int, now: int) -> Manifest:
    """An epoch that names one object of its own."""
    name = unit_name(epoch, "0")
    log.storage.put(name, b"x")
    shard = ShardState([SegmentRef(name, 0, 1, 1, epoch, epoch)])
    manifest = Manifest(epoch, "run", now, [(0, "run")], computations={"C": ComputationState(shards=[shard])})
    assert log.commit(manifest)
    return manifest


def dumb_kept(times: dict[int, int], window: int) -> set[int]:
    """The rule, from all epochs that there ever were."""
    newest = max(times)
    kept = {epoch for epoch in times if epoch > newest - KEEP}
    for second in {now // 1000 for now in times.values()}:
        first = min(epoch for epoch, now in times.items() if now // 1000 == second)
        if window and times[newest] // 1000 - second < window / 1000 + 1:  # a second lasts until it is wholly outside
            kept.add(first)
    return kept


@settings(max_examples=some(80), deadline=None)
@given(st.lists(st.integers(0, 2500), min_size=1, max_size=80), st.sampled_from([0, 1, 5000, 60_000]), st.integers(1, 25), st.booleans())
def test_kept_are_the_last_few_and_the_first_of_each_second(steps, window, every, restarts):
    log = ManifestLog(CountingStorage())
    times, now = {}, 0
    for epoch, step in enumerate(steps):
        now += step
        times[epoch] = now
        manifest = commit_at(log, epoch, now)
        if epoch % every == 0:
            collect(ManifestLog(log.storage) if restarts else log, manifest, window=window)
            assert set(log.epochs()) == dumb_kept(times, window)
            assert_whole(log)
            assert len(log.storage.list("units")) == len(log.epochs())


def test_minutes_at_sixty_epochs_a_second_keeps_few_and_reads_each_manifest_once_at_the_most():
    log = ManifestLog(CountingStorage())
    most = 0
    for epoch in range(60 * 200):
        manifest = commit_at(log, epoch, epoch * 1000 // 60)
        if epoch % 20 == 0:
            collect(log, manifest)
            most = max(most, len(log.epochs()))
    assert 60 <= most <= KEEP + 62
    known = log.collection
    assert len(known.times) <= most + 20 and len(known.names) <= most + 20
    reads = [name for name in log.storage.reads if name.startswith("manifests/")]
    assert len(reads) == len(set(reads)) and len(reads) < 60 * 200 * 0.6


def test_the_chains_of_a_manifest_are_counted_without_reading():
    storage = CountingStorage()
    long = [write_delta(storage, epoch, {b"%02d" % epoch: b"v"}) for epoch in range(MAX_RUNS + 1)]
    short = compact(storage, long[:3], True, 3)
    shards = [ShardState(long), ShardState(short), ShardState()]
    manifest = Manifest(MAX_RUNS, "run", 0, [(0, "run")], computations={"C": ComputationState(shards=shards), "D": ComputationState()})
    storage.reads.clear()
    found = compaction.stats(manifest)
    size = sum(ref.length for ref in long)
    assert found["C"] == compaction.ChainStats(MAX_RUNS + 2, size + short[0].length, MAX_RUNS + 4, MAX_RUNS + 1, size)
    assert found["D"] == compaction.ChainStats(0, 0, 0, 0, 0)
    assert storage.reads == []


def test_a_clock_that_was_wrong_keeps_nothing_for_ever():
    log = ManifestLog(CountingStorage())
    for epoch in range(30):
        commit_at(log, epoch, 10**12 + epoch * 1000)
    for epoch in range(30, 60):
        collect(log, commit_at(log, epoch, epoch * 1000), window=5000)
    assert log.epochs() == list(range(60 - KEEP, 60))


def test_a_manifest_that_somebody_else_removes_meanwhile_is_no_error():
    class Vanishing(ManifestLog):
        """Another driver removes the oldest manifest just before it is read."""

        def read(self, epoch: int) -> Manifest:
            self.storage.delete([f"manifests/{epoch:020d}.json"] if epoch < 15 else [])
            return super().read(epoch)

    log = Vanishing(CountingStorage())
    for epoch in range(30):
        newest = commit_at(ManifestLog(log.storage), epoch, epoch * 1000)
    collect(log, newest)
    assert log.epochs() == list(range(15, 30))
    assert_whole(log)


class FakeSpark:
    """Runs a compaction's job in this process, and lets the test look in the middle of it."""

    def __init__(self) -> None:
        self.written, self.go_on = threading.Event(), threading.Event()
        self.sparkContext = self
        self.group, self.is_cancelled = "", False

    def setJobGroup(self, group: str, description: str, interrupts: bool) -> None:
        self.group = group

    def cancelJobGroup(self, group: str) -> None:
        self.is_cancelled = group == self.group
        self.go_on.set()

    def createDataFrame(self, work: list[Any], schema: str) -> Any:
        self.work = work
        return self

    def repartition(self, count: int) -> Any:
        return self

    def mapInArrow(self, run: Any, schema: str) -> Any:
        self.run = run
        return self

    def toArrow(self) -> Any:
        import pyarrow as pa

        batch = pa.record_batch([pa.array([w[0] for w in self.work], pa.binary())], names=["body"])
        found = pa.Table.from_batches(list(self.run(iter([batch]))))
        self.written.set()
        self.go_on.wait(30)
        if self.is_cancelled:
            raise RuntimeError("Job 7 cancelled part of cancelled job group")
        return found


def test_collection_leaves_a_compaction_alone_that_is_still_under_way(tmp_path):
    """A compaction of a large state outlasts many epochs. Its pieces have no name in any manifest until it is adopted."""

    from millstream.engine.spark.background_jobs import SparkCompaction
    from millstream.engine.worker_process import RunPlace
    from millstream.state.storage import LocalStorage

    storage = LocalStorage(tmp_path)
    log = ManifestLog(storage)
    chain = [write_delta(storage, 0, {b"%02d" % i: b"1"}) for i in range(MAX_RUNS + 1)]
    chain = [SegmentRef(r.name, r.offset, r.length, r.entries, i, i) for i, r in enumerate(chain)]

    def commit(epoch: int, segments: list[SegmentRef]) -> Manifest:
        manifest = Manifest(epoch, "run", 0, [(0, "run")], computations={"C": ComputationState(shards=[ShardState(segments)])})
        assert log.commit(manifest)
        return manifest

    spark = FakeSpark()
    compactions = SparkCompaction(spark, RunPlace(str(tmp_path), "id", None, None, 1), "1-run")
    compactions.plan(commit(20, chain))
    assert spark.written.wait(30)
    for epoch in range(21, 41):
        latest = commit(epoch, chain)
    collect(log, latest, compactions.in_flight(), compactions.since())
    spark.go_on.set()
    compactions.wait(30)
    done = compactions.take_finished()["C", 0]
    adopted = adopt(chain, done.chosen, done.made)
    assert adopted != chain
    assert len(dict(merge(storage, adopted, drop_deleted=True))) == len(chain)


def test_at_the_end_of_a_run_no_compaction_is_left_in_the_jvm_and_nobody_is_warned_of_it(tmp_path, caplog):
    from millstream.engine.spark.background_jobs import SparkCompaction
    from millstream.engine.worker_process import RunPlace
    from millstream.state.storage import LocalStorage

    storage = LocalStorage(tmp_path)
    chain = [write_delta(storage, 0, {b"%02d" % i: b"1"}) for i in range(MAX_RUNS + 1)]
    chain = [SegmentRef(r.name, r.offset, r.length, r.entries, i, i) for i, r in enumerate(chain)]
    spark = FakeSpark()
    compactions = SparkCompaction(spark, RunPlace(str(tmp_path), "id", None, None, 1), "1-run")
    compactions.close()  # there may be none
    compactions = SparkCompaction(spark, RunPlace(str(tmp_path), "id", None, None, 1), "1-run")
    compactions.plan(Manifest(20, "1-run", 0, [(0, "1-run")], computations={"C": ComputationState(shards=[ShardState(chain)])}))
    assert spark.written.wait(30)
    compactions.close()
    assert compactions.since() is None and compactions.take_finished() == {} and compactions.stats().failed == 0 and not caplog.records


@pytest.mark.slow
def test_the_fault_kit_goes_through_collection(monkeypatch):
    """Its runs are short, so fewer manifests are kept; its clock stands nearly still, so one second's first manifest lasts."""
    removed: dict[str, int] = {"manifests": 0, "units": 0}
    delete = MemoryStorage.delete

    def counted(self: MemoryStorage, names: Any) -> None:
        for name in (names := list(names)):
            if name in self.objects:
                removed[name.split("/")[0]] = removed.get(name.split("/")[0], 0) + 1
        delete(self, names)

    monkeypatch.setattr(MemoryStorage, "delete", counted)
    monkeypatch.setattr(gc, "KEEP", 2)
    p = ms.Pipeline("sums")
    source = ms.sources.files("nowhere", schema="key string, at long, n long", format="json")
    sums = p.compute(Sum, p.inject("in", source, timestamp="at"), key="key", produces="sums")
    p.emit(sums, ms.sinks.memory())
    rows = [("in", {"key": f"k{n % 5}", "at": n * 10, "n": n}) for n in range(120)]
    ms.testing.assert_exactly_once(p, rows, seeds=range(40))
    assert removed["manifests"] > 5 and removed["units"] > 5, removed
