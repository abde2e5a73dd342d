"""MapState against a dict, and what it costs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unitkit import CountingStore, run_step

import millstream as ms
from effort import some
from millstream.core.keyspace import encode_sub_key, sub_prefix
from millstream.core.mapstate import MapState
from millstream.core.statekind import StateKind
from millstream.state.codec import msgpack
from millstream.state.memory_storage import MemoryStore

encode, decode = msgpack.encoder(), msgpack.decoder(object)
PREFIX = sub_prefix(b"tea", "pages")


def bound(store: Any) -> MapState:
    found = MapState()
    found.bind(store, PREFIX, encode, decode)
    return found


def neighbours() -> dict[bytes, bytes]:
    """Entries of other keys and fields that sort right around ours."""
    others = [
        sub_prefix(b"te", "pages"),
        sub_prefix(b"tea", "page"),
        sub_prefix(b"tea", "pages2"),
        sub_prefix(b"teb", "pages"),
        sub_prefix(b"tea", ""),
    ]
    return {prefix + encode_sub_key(k): encode("other") for prefix in others for k in (0, 3, 9, "x")}


def committed(values: dict[Any, Any]) -> MemoryStore:
    store = MemoryStore()
    store.apply(neighbours())
    store.apply({PREFIX + encode_sub_key(k): encode(v) for k, v in values.items()})
    return store


def in_order(model: dict[Any, Any], start: Any = None, stop: Any = None, reverse: bool = False) -> list[tuple[Any, Any]]:
    """The dumb twin of range."""
    low = None if start is None else encode_sub_key(start)
    high = None if stop is None else encode_sub_key(stop)
    found = [(k, v) for k, v in model.items() if (low is None or encode_sub_key(k) >= low) and (high is None or encode_sub_key(k) < high)]
    return sorted(found, key=lambda item: encode_sub_key(item[0]), reverse=reverse)


names = st.one_of(st.integers(0, 6), st.sampled_from(["", "a", "b\0", b"a", 1.5, (1, "a"), (1,)]))
edges = st.one_of(st.none(), names)
values = st.one_of(st.integers(0, 9), st.none(), st.lists(st.integers(0, 3), max_size=2), st.text(max_size=2))
changes = st.one_of(
    st.tuples(st.just("set"), names, values),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("del"), names),
    st.tuples(st.just("pop"), names),
    st.tuples(st.just("clear")),
    st.tuples(st.just("commit")),
)
looks = st.one_of(
    st.tuples(st.just("get"), names),
    st.tuples(st.just("range"), edges, edges, st.booleans()),
    st.tuples(st.just("empty")),
)
MISSING = object()


@settings(max_examples=some(300), deadline=None)
@given(st.dictionaries(names, values, max_size=6), st.lists(st.one_of(changes, looks), max_size=20))
def test_it_behaves_as_a_sorted_dict_over_committed_entries_and_changes(base, ops):
    store, model = committed(base), dict(base)
    found = bound(store)
    for op, *args in [*ops, ("range", None, None, False), ("range", None, None, True)]:
        if op == "set":
            found[args[0]] = args[1]
            model[args[0]] = args[1]
        elif op == "delete":
            found.delete(args[0])
            model.pop(args[0], None)
        elif op == "del":
            if args[0] in model:
                del found[args[0]]
                del model[args[0]]
            else:
                with pytest.raises(KeyError):
                    del found[args[0]]
        elif op == "pop":
            assert found.pop(args[0], MISSING) == model.pop(args[0], MISSING)
        elif op == "clear":
            found.clear()
            model.clear()
        elif op == "commit":
            store.apply(dict(found.changes()))
            found = bound(store)
        elif op == "get":
            assert found.get(args[0], MISSING) == model.get(args[0], MISSING)
            assert (args[0] in found) == (args[0] in model)
        elif op == "range":
            assert list(found.range(*args)) == in_order(model, *args)
        elif op == "empty":
            assert found.is_empty() == (not model)
    store.apply(dict(found.changes()))
    assert list(bound(store).items()) == in_order(model)
    assert list(bound(store)) == [k for k, _ in in_order(model)]
    assert {k: store.entries[k] for k in neighbours()} == neighbours()


def test_a_map_on_its_own_works_without_a_store():
    found = MapState()
    found["b"], found["a"], found[3] = 2, 1, 0
    assert list(found.items()) == [(3, 0), ("a", 1), ("b", 2)]
    assert list(found.range("a", "b")) == [("a", 1)]
    assert list(found.range(reverse=True)) == [("b", 2), ("a", 1), (3, 0)]
    found.clear()
    assert found.is_empty()


def test_reading_what_is_not_there_is_a_key_error():
    found = bound(committed({"a": 1}))
    assert found["a"] == 1
    with pytest.raises(KeyError):
        found["b"]
    with pytest.raises(KeyError):
        found.pop("b")
    found.delete("a")
    with pytest.raises(KeyError):
        found["a"]


def test_a_stored_none_is_not_a_missing_entry():
    found = bound(committed({"a": None}))
    assert "a" in found and found.get("a", 1) is None
    found["b"] = None
    assert "b" in found and found.get("b", 1) is None


def test_only_changed_entries_are_in_the_delta():
    store = committed({i: i for i in range(100)})
    found = bound(store)
    assert list(found.changes()) == []
    found[5] = "new"
    found.delete(7)
    found.get(9)
    list(found.range(20, 30))
    assert dict(found.changes()) == {PREFIX + encode_sub_key(5): encode("new"), PREFIX + encode_sub_key(7): None}


def test_deleting_while_walking_deletes_all_that_was_walked_over():
    store = committed({i: i for i in range(10)})
    found = bound(store)
    found[3] = "changed"
    for k, _ in found.range(0, 5):
        found.delete(k)
    assert [k for k, _ in found.items()] == [5, 6, 7, 8, 9]


BIG = 20_000


@pytest.fixture(scope="module")
def big() -> MemoryStore:
    return committed({i: i for i in range(BIG)})


def test_a_touched_entry_of_a_big_map_costs_one_read(big):
    store = CountingStore(big)
    found = bound(store)
    assert found.get(BIG // 2) == BIG // 2
    found[7] = 1
    found.delete(8)
    assert store.read == 1


def test_a_range_of_a_big_map_reads_what_is_taken_from_it(big):
    store = CountingStore(big)
    walk = bound(store).range(100)
    assert [next(walk)[0] for _ in range(5)] == [100, 101, 102, 103, 104]
    assert store.read <= 7
    store.read = 0
    assert [k for k, _ in bound(store).range(500, 510, reverse=True)] == list(range(509, 499, -1))
    assert store.read == 10


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("at", range(4))
def test_an_entry_that_is_set_while_a_range_runs_is_shown_once_whatever_its_value(big, at, reverse):
    """Old or new: a change may or may not be seen, and no entry is left out or shown twice."""
    found, seen = bound(CountingStore(big)), []
    for sub_key, _ in found.range(0, 4, reverse=reverse):
        seen.append(sub_key)
        found[at] = "new"
        found.get(at)
    assert seen == sorted(range(4), reverse=reverse)
    assert dict(found.range(0, 4))[at] == "new"


def test_counting_reads_would_notice_a_full_walk(big):
    store = CountingStore(big)
    list(bound(store).items())
    assert store.read == BIG


class Touch(ms.Computation):
    State = MapState

    def process_record(self, record):
        self.state[record.value] = self.state.get(record.value, 0) + 1


def test_a_visit_to_a_key_with_a_big_map_costs_what_it_touches():
    kind = StateKind(Touch(), msgpack)
    store = MemoryStore()
    from millstream.core.keyspace import ROW, Row, encode_row

    store.apply({sub_prefix(b"tea", "") + encode_sub_key(i): kind.encode(i) for i in range(BIG)})
    store.apply({ROW + b"tea": encode_row(Row(b""))})
    counting = CountingStore(store)
    outcome = run_step(Touch(), [("tea", 1, "r1", 5), ("tea", 2, "r2", BIG + 1)], store=counting)
    assert len(outcome.delta) == 2
    assert counting.read <= 5
