"""Flat rows of a shard: shard by shard they are all rows once, and the text of a key finds its row."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.core.keys import key_bytes
from millstream.core.keyspace import ROW, Row, encode_row, encode_sub_key, sub_prefix
from millstream.core.record import Timer
from millstream.readable.listing import keys_of
from millstream.readable.shard_rows import Asked, OneShard, rows, shards_of, text_of
from millstream.state.codec import msgpack
from millstream.state.compaction import unit_name
from millstream.state.manifest import ComputationState, Manifest, ShardState
from millstream.state.manifest_log import ManifestLog
from millstream.state.memory_storage import MemoryStorage
from millstream.state.reader import AsOf, CommittedState
from millstream.state.segment import write_segment

SIMPLE = st.one_of(st.text(), st.integers(), st.booleans(), st.binary())
KEYS = st.recursive(SIMPLE, lambda parts: st.lists(parts, max_size=3).map(tuple), max_leaves=5)
SHARDS = 3


@given(KEYS)
def test_the_text_of_a_key_may_mean_that_key(key: object) -> None:
    assert any((type(one), one) == (type(key), key) for one in keys_of(text_of(key)))


def cut_of(keys: list[object]) -> AsOf:
    """A computation whose state is a text and whose rows have an entry of a map each."""
    storage, encode = MemoryStorage(), msgpack.encoder()
    log = ManifestLog(storage)
    log.identify("p", SHARDS, SHARDS, ["in"])
    from millstream.core.keys import shard_of

    shards = []
    for shard in range(SHARDS):
        entries: dict[bytes, bytes] = {}
        for key in keys:
            row_key = key_bytes(key)
            if shard_of(row_key, SHARDS) == shard:
                entries[ROW + row_key] = encode_row(Row(encode({"n": repr(key)}), [(5, "end")], [], []))
                entries[sub_prefix(row_key, "at") + encode_sub_key(7)] = encode("entry")
        found = sorted(entries.items())
        ref = write_segment(storage, unit_name(0, "t"), found, 0, 0, False)
        shards.append(ShardState([ref], keys=len(found) // 2))
    log.commit(Manifest(0, "1-a", 0, [(0, "1-a")], computations={"C": ComputationState(shards=shards)}))
    return CommittedState(log).newest()


MANY: list[object] = [*range(20), *(str(n) for n in range(20)), ("a", 7), b"x", True, "tea"]


def test_the_shards_together_have_all_rows_once() -> None:
    cut = cut_of(MANY)
    for what, each in (("state", 1), ("timers", 1), ("maps", 1)):
        found = [row for shard in range(SHARDS) for row in rows(OneShard(cut, shard), Asked("C", what))]
        assert sorted(row[0] for row in found) == sorted(text_of(key) for key in MANY for _ in range(each))
        assert {row[1] for row in found} == set(range(SHARDS))


def test_a_text_finds_every_row_that_it_may_mean_in_the_shards_that_are_named() -> None:
    cut = cut_of(MANY)
    for key in MANY:
        asked = Asked("C", "state", [text_of(key)])
        named = shards_of(cut.computation("C"), asked, cut)
        meant = [other for other in MANY if text_of(other) == text_of(key)]
        found = [row for shard in named for row in rows(OneShard(cut, shard), asked)]
        assert sorted(row[2] for row in found) == sorted('{"n": ' + quoted(repr(other)) + "}" for other in meant)
        assert [row for shard in set(range(SHARDS)) - set(named) for row in rows(OneShard(cut, shard), asked)] == []


def quoted(text: str) -> str:
    import json

    return json.dumps(text, ensure_ascii=False)


def test_a_key_that_nobody_has_finds_nothing() -> None:
    cut = cut_of(MANY)
    for text in ("nobody", "99", "", "\ud800"):
        asked = Asked("C", "maps", [text])
        assert [row for shard in range(SHARDS) for row in rows(OneShard(cut, shard), asked)] == []


def test_one_shard_does_not_show_another() -> None:
    cut = cut_of(MANY)
    one = OneShard(cut, 0)
    elsewhere = next(key for key in MANY if cut.shard_of("C", key_bytes(key)) == 1)
    assert cut.get("C", elsewhere) is not None and one.get("C", elsewhere) is None
    assert Timer(5, "end", "low") is not None and len(list(one.rows("C"))) < len(list(cut.rows("C")))
