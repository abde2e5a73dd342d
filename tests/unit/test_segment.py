"""Segments: what goes in comes out, or somebody is told."""

from __future__ import annotations

import struct
import zlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import some
from millstream.errors import DamageError
from millstream.state import segment
from millstream.state.memory_storage import MemoryStorage
from millstream.state.segment import SegmentRef, encode_segment, merge, newest, read_blocks, read_index, read_run, read_some, runs

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
    whole = without_index(storage, ref).length
    for length in range(ref.length):
        shorter = SegmentRef(ref.name, 0, length, ref.entries, 3, 5)
        if length == whole:  # up to the closing block: a segment as 0.1 wrote it
            assert list(read_run(storage, [shorter])) == list(read_run(storage, [ref]))
            continue
        with pytest.raises(DamageError):
            list(read_blocks(storage, shorter))


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


@settings(max_examples=some(200))
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


@pytest.mark.slow
@given(st.lists(deltas, max_size=5))
def test_of_each_key_the_newest_source_counts_in_both_directions(sources):
    model = {}
    for delta in sources:
        model.update(delta)
    assert list(newest([sorted(delta.items()) for delta in sources])) == sorted(model.items())


# --- the index


def read_as_version_0_1_did(storage, ref):
    """The rule by which 0.1 reads: the bytes that the reference says, block by block, up to the empty one. What is behind that it never saw."""
    data = memoryview(storage.read(ref.name, ref.offset, ref.length))
    assert len(data) == ref.length and data[:6] == b"MSEG1\n"
    data, found = data[6:], []
    while True:
        length, crc = int.from_bytes(data[:4], "big"), int.from_bytes(data[4:8], "big")
        payload, data = data[8 : 8 + length], data[8 + length :]
        assert len(payload) == length and zlib.crc32(payload) == crc
        if length == 0:
            break
        keys, values = msgspec.msgpack.decode(payload)
        found += zip(keys, values, strict=True)
    assert len(found) == ref.entries
    return found


def without_index(storage, ref):
    """The same segment as 0.1 would have written it."""
    data = storage.objects[ref.name]
    (length,) = struct.unpack_from(">I", data, len(data) - 14)
    storage.put("units/old", data[: len(data) - 14 - length])
    return SegmentRef("units/old", 0, ref.length - 14 - length, ref.entries, ref.first, ref.last)


@pytest.mark.parametrize("count", [0, 1, 4096, 4097, 9000])
def test_version_0_1_reads_segments_with_and_without_an_index(count):
    entries = [(b"%06d" % i, None if i % 7 == 0 else b"v%d" % i) for i in range(count)]
    storage, ref = written(entries)
    assert read_as_version_0_1_did(storage, ref) == entries
    has_index = storage.objects[ref.name].endswith(segment.INDEX_MAGIC)
    assert has_index == (count > segment.BLOCK)
    if has_index:
        old = without_index(storage, ref)
        assert read_as_version_0_1_did(storage, old) == list(read_run(storage, [old])) == entries
        assert read_index(storage, old) is None


def test_a_segment_of_one_block_is_as_it_always_was():
    data = encode_segment([(b"a", b"1"), (b"b", None)])
    payload = msgspec.msgpack.encode(([b"a", b"b"], [b"1", None]))
    assert data == b"MSEG1\n" + struct.pack(">II", len(payload), zlib.crc32(payload)) + payload + bytes(8)


@settings(max_examples=some(100))
@given(st.integers(3, 40), st.integers(1, 5), st.data())
def test_any_blocks_can_be_read_by_the_index(count, block, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "BLOCK", block)
        patch.setattr(segment, "_SPAN", data.draw(st.sampled_from([0, 60, 1 << 20])))
        patch.setattr(segment, "_TAIL", data.draw(st.sampled_from([14, 40, 8192])))
        entries = [(b"%03d" % i, data.draw(st.one_of(st.none(), st.binary(max_size=3)))) for i in range(count)]
        storage, ref = written(entries, before=b"xx", behind=b"yyy")
        index = read_index(storage, ref)
        blocks = [entries[at : at + block] for at in range(0, count, block)]
        if len(blocks) == 1:
            assert index is None
            return
        assert index.firsts == [one[0][0] for one in blocks] and index.last == entries[-1][0]
        low = data.draw(st.integers(0, len(blocks)))
        high = data.draw(st.integers(low, len(blocks)))
        found = [list(zip(*one, strict=True)) for one in read_some(storage, ref, index, low, high)]
        assert found == blocks[low:high]


def looked_up(storage, ref):
    """Every entry, found by the index where there is one."""
    index = read_index(storage, ref)
    if index is None:
        return list(read_run(storage, [ref]))
    one_by_one = [next(read_some(storage, ref, index, at, at + 1)) for at in range(len(index.firsts))]
    return [entry for block in one_by_one for entry in zip(*block, strict=True)]


def test_no_changed_byte_gives_a_wrong_entry_through_the_index(monkeypatch):
    storage, ref = small(monkeypatch)
    whole, right = storage.objects[ref.name], looked_up(storage, ref)
    assert right == [(b"a", b"1"), (b"b", None), (b"c", b""), (b"d", b"long value")]
    unnoticed = []
    for at in range(len(whole)):
        for other in range(256):
            storage.objects[ref.name] = whole[:at] + bytes([other]) + whole[at + 1 :]
            try:
                assert looked_up(storage, ref) == right
                unnoticed += [at] if other != whole[at] else []
            except DamageError as error:
                assert error.object == "units/a" and "units/a" in str(error)
    closing = whole.index(bytes(8))
    assert set(unnoticed) <= {*range(6), *range(closing, closing + 8)}  # what the index makes superfluous: the magic, the closing block


def test_no_truncation_gives_a_wrong_entry_through_the_index(monkeypatch):
    storage, ref = small(monkeypatch)
    whole = storage.objects[ref.name]
    for length in range(len(whole)):
        storage.objects[ref.name] = whole[:length]
        with pytest.raises(DamageError, match="units/a"):
            looked_up(storage, ref)
