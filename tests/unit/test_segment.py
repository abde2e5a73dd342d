"""Segments: what goes in comes out, or somebody is told."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unitkit import MemoryStorage

from millstream.errors import DamageError
from millstream.state import segment
from millstream.state.segment import SegmentRef, encode_segment, lookup, merge, read_blocks, read_run, runs

keys = st.binary(min_size=1, max_size=6)
deltas = st.dictionaries(keys, st.one_of(st.none(), st.binary(max_size=6)), max_size=12)


def written(entries, storage=None, name="units/a", before=b"", behind=b"", first=3, last=5):
    storage = storage or MemoryStorage()
    data = encode_segment(entries)
    storage.put(name, before + data + behind)
    return storage, SegmentRef(name, len(before), len(data), len(entries), first, last)


@given(deltas)
def test_entries_come_back(delta):
    storage, ref = written(sorted(delta.items()))
    assert list(read_run(storage, [ref])) == sorted(delta.items())


@given(deltas, st.binary(max_size=20), st.binary(max_size=20))
def test_a_slice_of_a_larger_object_is_a_segment(delta, before, behind):
    storage, ref = written(sorted(delta.items()), before=before, behind=behind)
    assert list(read_run(storage, [ref])) == sorted(delta.items())


def test_many_entries_are_several_blocks(monkeypatch):
    monkeypatch.setattr(segment, "BLOCK", 10)
    entries = [(b"%04d" % i, b"v") for i in range(95)]
    storage, ref = written(entries)
    blocks = list(read_blocks(storage, ref))
    assert [len(keys) for keys, _ in blocks] == [10] * 9 + [5]
    assert list(read_run(storage, [ref])) == entries


def small(monkeypatch):
    monkeypatch.setattr(segment, "BLOCK", 2)
    return written([(b"a", b"1"), (b"b", None), (b"c", b""), (b"d", b"long value")])


def test_every_changed_byte_is_noticed(monkeypatch):
    storage, ref = small(monkeypatch)
    whole = storage.objects[ref.name]
    for at in range(len(whole)):
        for other in range(256):
            if other == whole[at]:
                continue
            storage.objects[ref.name] = whole[:at] + bytes([other]) + whole[at + 1 :]
            with pytest.raises(DamageError, match="units/a"):
                list(read_blocks(storage, ref))


def test_every_truncation_is_noticed(monkeypatch):
    storage, ref = small(monkeypatch)
    whole = storage.objects[ref.name]
    for length in range(len(whole)):
        storage.objects[ref.name] = whole[:length]
        with pytest.raises(DamageError, match="units/a"):
            list(read_blocks(storage, ref))


def test_a_reference_that_says_too_little_is_noticed(monkeypatch):
    storage, ref = small(monkeypatch)
    for length in range(ref.length):
        with pytest.raises(DamageError):
            list(read_blocks(storage, SegmentRef(ref.name, 0, length, ref.entries, 3, 5)))


def test_another_number_of_entries_is_noticed():
    storage, ref = written([(b"a", b"1"), (b"b", b"2")])
    with pytest.raises(DamageError, match="2 entries instead of 3"):
        list(read_blocks(storage, SegmentRef(ref.name, 0, ref.length, 3, 3, 5)))


def test_two_whole_blocks_in_the_wrong_order_give_nothing_of_the_other_segment():
    storage, ref = written([(b"a", b"1")])
    written([(b"zz", b"26")], storage, "units/b")
    with pytest.raises(DamageError):
        list(read_blocks(storage, SegmentRef("units/b", 0, ref.length, ref.entries, 3, 5)))


def test_damage_names_object_place_and_epochs():
    storage, ref = written([(b"a", b"1")])
    storage.objects[ref.name] = storage.objects[ref.name][:-1]
    with pytest.raises(DamageError, match=r"units/a in memory .* epochs 3 to 5"):
        list(read_blocks(storage, ref))


def chained(storage, history, cuts):
    """Each delta a run; a run may be cut in two pieces."""
    chain = []
    for epoch, (delta, cut) in enumerate(zip(history, cuts, strict=True)):
        entries = sorted(delta.items())
        pieces = [entries[: len(entries) // 2], entries[len(entries) // 2 :]] if cut else [entries]
        for at, piece in enumerate(pieces):
            _, ref = written(piece, storage, f"units/{epoch}-{at}", first=epoch, last=epoch)
            chain.append(ref)
    return chain


histories = st.lists(
    st.tuples(st.dictionaries(st.binary(min_size=1, max_size=1), st.one_of(st.none(), st.binary(max_size=2)), max_size=8), st.booleans()),
    max_size=6,
)


@settings(max_examples=200)
@given(histories)
def test_a_merged_chain_is_what_a_dict_would_be(history):
    storage = MemoryStorage()
    deltas, cuts = [d for d, _ in history], [c for _, c in history]
    chain = chained(storage, deltas, cuts)
    model = {}
    for delta in deltas:
        model.update(delta)
    assert list(merge(storage, chain, drop_deleted=False)) == sorted(model.items())
    living = {k: v for k, v in model.items() if v is not None}
    assert list(merge(storage, chain, drop_deleted=True)) == sorted(living.items())
    for key in [bytes([i]) for i in range(256)]:
        assert lookup(storage, chain, key) == living.get(key)


def test_runs_keep_pieces_of_the_same_epochs_together():
    refs = [
        SegmentRef("a", 0, 1, 1, 0, 4, True),
        SegmentRef("b", 0, 1, 1, 0, 4, True),
        SegmentRef("c", 0, 1, 1, 5, 5),
        SegmentRef("d", 0, 1, 1, 6, 8),
    ]
    assert runs(refs) == [refs[:2], refs[2:3], refs[3:]]
    assert runs([]) == []


def test_an_empty_segment_is_a_segment():
    storage, ref = written([])
    assert list(read_run(storage, [ref])) == []
    assert lookup(storage, [ref], b"a") is None
