"""One contract for all stores (S1 to S4), twins that break a rule each, and what is each store's own."""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

import millstream as ms
from effort import some
from millstream.errors import RefusedRequest, StorageError
from millstream.service.messages import Change
from millstream.service.stores import lmdb
from millstream.service.stores.memory import CounterStore, DictStore, SharedMemory, counters, memory, pack_number, unpack_number
from millstream.service.stores.store_contract import Pinned

PAIR = struct.Struct(">Qq")


def numbers(chance: random.Random) -> bytes:
    return PAIR.pack(chance.randrange(1 << 40), chance.choice([0, 1, -1, 1 << 19, -(1 << 63), (1 << 63) - 1]))


def check(open_store: Callable[[], Any], seeds: int, values: Any = None) -> None:
    given = {} if values is None else {"values": values}
    ms.testing.check_store(open_store, seeds=range(some(seeds)), **given)


KINDS = {
    "memory": memory(),
    "lmdb": lmdb(),
    "lmdb, durable": lmdb(durable=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_contract(kind: str, tmp_path: Path) -> None:
    check(lambda: KINDS[kind].open(tmp_path), 100 if kind == "memory" else 8)


def test_the_contract_of_counters(tmp_path: Path) -> None:
    check(lambda: counters().open(tmp_path), 60, numbers)


class PinsNothing(DictStore):
    def pin(self) -> Any:
        store = self

        class Live:
            applied = store.applied

            def get(self, key: bytes) -> bytes | None:
                return store.get(key)

            def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
                return iter(list(store.scan(start, stop)))

            def entries(self) -> Iterator[tuple[bytes, bytes]]:
                return iter(list(store._map.entries.items()))

            def close(self) -> None: ...

        return Live()


class ScansInAnyOrder(DictStore):
    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter([entry for entry in self._map.entries.items() if start <= entry[0] < stop])


class ReplacesInPlace(DictStore):
    def replace(self, entries: Iterable[tuple[bytes, bytes]], upto: int) -> None:
        self._map = type(self._map)()
        for key, value in entries:
            self._map.entries[key] = value
        self.applied = upto


class ForgetsWhereItIs(DictStore):
    def apply(self, changes: Sequence[Change], upto: int) -> None:
        super().apply(changes, upto)
        self.applied = max(0, upto - 1)


class SavesForTheOldestPinOnly(DictStore):
    """Rule 2 of the store in memory turned round: pins that are made later see later changes."""

    def apply(self, changes: Sequence[Change], upto: int) -> None:
        pins = self._map.pins
        self._map.pins = pins[:1]
        super().apply(changes, upto)
        self._map.pins = pins


@pytest.mark.parametrize(
    ("store", "rule"),
    [
        (PinsNothing, "S3"),
        (ScansInAnyOrder, "S[12]"),
        (ReplacesInPlace, "S1"),
        (ForgetsWhereItIs, "S1"),
        (SavesForTheOldestPinOnly, "S3"),
    ],
)
def test_a_store_that_breaks_a_rule_is_found(store: type[DictStore], rule: str) -> None:
    with pytest.raises(AssertionError, match=f"{rule} does not hold"):
        check(lambda: SharedMemory(store), 30)


class LosesItsEnd(DictStore):
    durable = True


def test_a_store_that_says_durable_and_is_not_is_found() -> None:
    with pytest.raises(AssertionError, match="S4 does not hold"):
        check(lambda: SharedMemory(LosesItsEnd), 30)


KEYS = st.binary(max_size=3).map(lambda key: b"K" + key) | st.sampled_from([b"", b"T", b"\xff", b"K" * 600, b"K" * 600 + b"a"])


class MemoryMachine(RuleBasedStateMachine):
    """Random changes, scans and pins of the store in memory, against dicts."""

    pins = Bundle("pins")

    def __init__(self) -> None:
        super().__init__()
        self.store, self.model = DictStore(), {}  # type: tuple[DictStore, dict[bytes, bytes]]

    @rule(changes=st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=2)), max_size=30))
    def apply(self, changes: list[Change]) -> None:
        self.store.apply(changes, self.store.applied + 1)
        for key, value in changes:
            if value is None:
                self.model.pop(key, None)
            else:
                self.model[key] = value

    @rule(start=KEYS, stop=KEYS)
    def scan(self, start: bytes, stop: bytes) -> None:
        assert list(self.store.scan(start, stop)) == sorted(e for e in self.model.items() if start <= e[0] < stop)

    @rule(target=pins)
    def pin(self) -> tuple[Pinned, dict[bytes, bytes]]:
        return self.store.pin(), dict(self.model)

    @rule(pin=pins, start=KEYS, stop=KEYS)
    def look(self, pin: tuple[Pinned, dict[bytes, bytes]], start: bytes, stop: bytes) -> None:
        pinned, model = pin
        assert list(pinned.scan(start, stop)) == sorted(e for e in model.items() if start <= e[0] < stop)
        assert sorted(pinned.entries()) == sorted(model.items())
        assert pinned.get(start) == model.get(start)

    @rule(pin=consumes(pins))
    def unpin(self, pin: tuple[Pinned, dict[bytes, bytes]]) -> None:
        pin[0].close()
        pin[0].close()

    @rule()
    def replace(self) -> None:
        self.model = dict(list(self.model.items())[::2])
        self.store.replace(self.model.items(), self.store.applied + 1)

    @invariant()
    def same(self) -> None:
        assert {key: self.store.get(key) for key in self.model} == self.model


MemoryMachine.TestCase.settings = settings(deadline=None, database=None, max_examples=some(60), stateful_step_count=30)
test_the_store_in_memory_is_a_dict = MemoryMachine.TestCase


def test_many_new_keys_are_merged_into_the_order() -> None:
    store, chance = DictStore(), random.Random(7)
    keys = [b"K%08d" % chance.randrange(10**8) for _ in range(30_000)]
    for at in range(0, len(keys), 10_000):
        store.apply([(key, b"1") for key in keys[at : at + 10_000]], at + 1)
        store.apply([(key, None) for key in keys[at : at + 300]], at + 2)
        assert [key for key, _ in store.scan(b"K", b"L")] == sorted(store._map.entries)


def test_a_pin_that_is_closed_says_so() -> None:
    pinned = DictStore().pin()
    pinned.close()
    with pytest.raises(ValueError, match="closed"):
        pinned.get(b"Ka")


# counters


@given(version=st.integers(0, (1 << 64) - 1), number=st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_number_comes_back(version: int, number: int) -> None:
    value = PAIR.pack(version, number)
    assert unpack_number(b"K", pack_number(b"K", value)) == value


def test_small_numbers_are_small() -> None:
    kept = pack_number(b"K", PAIR.pack(1 << 38, -500_000))
    assert isinstance(kept, int) and kept.bit_length() <= 60
    large = pack_number(b"K", PAIR.pack(1 << 38, 1 << 62))
    assert isinstance(large, int) and large.bit_length() > 60  # the other form is used where it must be


def test_counters_take_numbers_only_and_all_or_nothing() -> None:
    store = CounterStore()
    good: Change = (b"Kgood", PAIR.pack(1, 5))
    for bad in (b"", b"1" * 8, b"1" * 15, b"1" * 17):
        with pytest.raises(RefusedRequest, match=r"b'bad'.*counters"):
            store.apply([good, (b"Kbad", bad)], 1)
        with pytest.raises(RefusedRequest, match="b'bad'"):
            store.check([good, (b"Kbad", bad)])
        with pytest.raises(RefusedRequest, match="b'bad'"):
            store.replace([good, (b"Kbad", bad)], 1)  # type: ignore[list-item]
    assert store.applied == 0 and store.get(b"Kgood") is None
    store.apply([good, (b"Ssession", b"any bytes"), (b"Kgone", None)], 1)
    assert store.get(b"Ssession") == b"any bytes" and store.get(b"Kgood") == good[1]
    store.check([good, (b"Kgone", None)])


# LMDB


def test_lmdb_goes_on_where_it_was_and_partitions_do_not_meet(tmp_path: Path) -> None:
    shared = lmdb().open(tmp_path)
    for partition in (0, 1, 2, (1 << 64) - 2):
        shared.of(partition).apply([(b"Ka", b"%d" % partition), (b"", b"empty")], partition + 1 & 0xFFFF)
    shared.forget(1)
    assert shared.of(1).applied == 0 and list(shared.of(1).scan(b"", b"\xff")) == []
    shared.close()
    shared = lmdb().open(tmp_path)
    for partition in (0, 2, (1 << 64) - 2):
        store = shared.of(partition)
        assert store.get(b"Ka") == b"%d" % partition and store.applied == partition + 1 & 0xFFFF
        assert list(store.pin().entries()) == [(b"", b"empty"), (b"Ka", b"%d" % partition)]
    shared.close()


def test_lmdb_without_syncs_begins_afresh_after_another_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = lmdb().open(tmp_path)
    first.of(1).apply([(b"Ka", b"1")], 1)
    first.close()
    durable = lmdb(durable=True).open(tmp_path)
    durable.of(1).apply([(b"Ka", b"2")], 2)
    durable.close()
    from millstream.service.stores import lmdb_store as module

    monkeypatch.setattr(module, "boot_id", lambda: "another boot")
    again = lmdb().open(tmp_path)
    assert again.of(1).applied == 0 and again.of(1).get(b"Ka") is None
    kept = lmdb(durable=True).open(tmp_path)
    assert kept.of(1).applied == 2 and kept.of(1).get(b"Ka") == b"2"
    again.close()
    kept.close()
    assert sorted(path.name for path in (tmp_path / "lmdb").iterdir()) == ["another boot", "durable"]


def test_where_boots_cannot_be_told_apart_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream.service.stores import lmdb_store as module

    monkeypatch.setattr(module, "boot_id", lambda: "unknown")
    for _ in range(2):
        shared = lmdb().open(tmp_path)
        assert shared.of(1).applied == 0
        shared.of(1).apply([(b"Ka", b"1")], 1)
        shared.close()


def test_what_a_removal_that_was_killed_has_left_is_not_seen(tmp_path: Path) -> None:
    shared = lmdb().open(tmp_path)
    shared.of(1).apply([(b"Ka", b"1")], 1)
    with shared.writing() as transaction:
        transaction.delete(b"\xff" * 8 + (1).to_bytes(8, "big"))
    shared._stores.clear()
    assert shared.of(1).applied == 0 and shared.of(1).get(b"Ka") is None
    shared.close()


def test_a_restore_in_a_thread_does_not_disturb_those_who_read(tmp_path: Path) -> None:
    shared = lmdb().open(tmp_path)
    mine, other = shared.of(1), shared.of(2)
    mine.apply([(b"Ka", b"1")], 1)
    failed: list[Exception] = []

    def restore() -> None:
        try:
            for upto in range(1, 300):
                other.replace([(b"K%d" % number, b"%d" % upto) for number in range(20)], upto)
                assert other.get(b"K5") == b"%d" % upto
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=restore)
    thread.start()
    while thread.is_alive():
        assert mine.get(b"Ka") == b"1"
        found = other.get(b"K5")
        assert int(other.get(b"K5") or 0) >= int(found or 0)
    thread.join()
    assert not failed and mine.get(b"Ka") == b"1" and other.get(b"K5") == b"299"
    shared.close()


def test_a_partition_that_is_removed_and_comes_back_is_empty(tmp_path: Path) -> None:
    shared = lmdb().open(tmp_path)
    for round in range(3):
        store = shared.of(1)
        assert store.applied == 0 and list(store.scan(b"", b"\xff")) == []
        store.apply([(b"K%d" % number, b"%d" % round) for number in range(5000)], 1)
        shared.of(2).apply([(b"Kb", b"1")], round + 1)
        shared.forget(1)
    shared.forget(1)
    shared.close()
    shared = lmdb().open(tmp_path)
    assert shared.of(1).applied == 0 and list(shared.of(1).scan(b"", b"\xff")) == []
    assert shared.of(2).get(b"Kb") == b"1"
    shared.close()


def test_lmdb_that_is_full_applies_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    shared = lmdb(map_size=1 << 20).open(tmp_path)
    store = shared.of(1)
    store.apply([(b"Ka", b"1")], 1)
    with pytest.raises(StorageError, match=r"Nothing of it was applied.*map_size"):
        store.apply([(b"Ka", b"2"), *((b"K%d" % n, b"x" * 1000) for n in range(2000))], 2)
    assert store.applied == 1 and store.get(b"Ka") == b"1" and store.get(b"K5") is None
    store.apply([(b"Ka", b"3")], 2)
    assert store.get(b"Ka") == b"3"
    shared.close()


def test_one_process_opens_an_environment_once(tmp_path: Path) -> None:
    one, two = lmdb().open(tmp_path), lmdb().open(tmp_path)
    assert one is two
    one.of(1).apply([(b"Ka", b"1")], 1)
    one.close()
    assert two.of(1).get(b"Ka") == b"1"
    two.close()
