"""An outdated version heals: what it would have given is taken out wherever it dangles, and the current document is stated again, through views and joins."""

from __future__ import annotations

from typing import Any

import pytest
from faultkit import SOURCE, Runner, people, ran, user

import millstream as ms
from millstream.core.guards import Guards
from millstream.core.keys import key_bytes, key_text, shard_of
from millstream.core.keyspace import ROW, Row, decode_row, encode_row
from millstream.state.memory_storage import MemoryStore


def entry_of(runner: Runner, view: str, group: Any) -> tuple[MemoryStore, bytes]:
    """Where a group's row is."""
    row_key = key_bytes(group)
    return runner._engine.stores[view, shard_of(row_key, runner._engine.shards)], ROW + row_key


def dangling(pipeline: ms.Pipeline, **options: Any) -> Runner:
    """User 7 is Sue. By hand, all of Sue's row is written into Sam's, too: a contribution that nobody stands for."""
    runner = ran(pipeline, [user("Sue", 5)], **options)
    store, sue = entry_of(runner, "names", "Sue")
    other, sam = entry_of(runner, "names", "Sam")
    other.apply({sam: store.entries[sue]})
    assert runner.view("names") == {"Sam": 1, "Sue": 1}
    with pytest.raises(AssertionError, match="group 'Sam': the contribution of 7 is"):
        runner.check()
    return runner


def test_a_dangling_contribution_is_healed_by_one_stale_post() -> None:
    runner = dangling(people())
    runner.push("users", user("Sam", 0))
    runner.epoch()
    assert runner.view("names") == {"Sue": 1}
    runner.check()


def test_a_stale_post_that_is_only_dropped_heals_nothing() -> None:
    runner = dangling(people(), guards=Guards.without("restate"))
    runner.push("users", user("Sam", 0))
    runner.epoch()
    assert runner.view("names") == {"Sam": 1, "Sue": 1}


def test_posting_ts_0_three_times_is_posting_it_once() -> None:
    results = []
    for times in (1, 3):
        for singly in (False, True):
            runner = dangling(people())
            for _ in range(times):
                runner.push("users", user("Sam", 0))
                if singly:
                    runner.epoch()
            runner.run()
            runner.check()
            results.append({place: dict(store.entries) for place, store in runner._engine.stores.items()})
            assert runner.view("names") == {"Sue": 1} and runner._engine.tallies["users"]["stale"] == times
    assert all(result == results[0] for result in results)


def test_a_missing_contribution_is_stated_again() -> None:
    runner = ran(people(), [user("Sue", 5)])
    store, sue = entry_of(runner, "names", "Sue")
    store.apply({sue: None})
    assert runner.view("names") == {}
    runner.push("users", user("Sam", 0))
    runner.epoch()
    assert runner.view("names") == {"Sue": 1}
    runner.check()


def sized() -> ms.Pipeline:
    """How many names are that of so many."""
    pipeline = people()
    names = next(relation for relation in pipeline._relations if relation.name == "names")
    sizes = names.by(lambda row: row.value).reduce(ms.count(), name="sizes")
    pipeline.publish(sizes, ms.sinks.files("out/"))
    return pipeline


def test_a_repair_travels_through_a_view_on_a_view() -> None:
    runner = dangling(sized())
    store, one = entry_of(runner, "sizes", 1)
    assert decode_row(store.entries[one]).state
    store.apply({one: None})  # and the view behind it has lost everything
    assert runner.view("sizes") == {}
    for _ in range(3):
        runner.push("users", user("Sam", 0))
        runner.epoch()
        assert runner.view("names") == {"Sue": 1} and runner.view("sizes") == {1: 1}, (
            "names has not changed for Sue, and is stated again all the same"
        )
        runner.check()


def befriended() -> ms.Pipeline:
    """Every user has a friend: the one whose id is their ts modulo ten."""
    pipeline = ms.Pipeline("people")
    users = pipeline.table("users", SOURCE, key="id", version="ts", deleted="gone")
    pairs = users.by(lambda row: row.value["ts"] % 10).join(users, name="pairs")
    pairs.by(lambda row: row.value["right"]["name"]).reduce(ms.count(), name="friends")
    return pipeline


@pytest.mark.parametrize("stale", [user("Sam", 1, 7), user("Sam", 1, 1)], ids=["of the left side", "of the right side"])
def test_a_repair_travels_through_a_join(stale: dict[str, Any]) -> None:
    """User 7's friend is user 1, Joe. The view behind the join has lost it; a stale post of either of the two brings it back."""
    runner = ran(befriended(), [user("Sue", 11, 7), user("Joe", 13, 1)])
    assert runner.view("friends") == {"Joe": 1}
    store, joe = entry_of(runner, "friends", "Joe")
    store.apply({joe: None})
    assert runner.view("friends") == {}
    for _ in range(2):
        runner.push("users", stale)
        runner.epoch()
        assert runner.view("friends") == {"Joe": 1}
        runner.check()


def test_a_left_document_that_dangles_in_a_join_is_taken_out() -> None:
    """User 7 is also in the row of user 2, Bob, by hand. A post of a time when Bob was the friend takes it out, and what the join has made of it."""
    runner = ran(befriended(), [user("Sue", 11, 7), user("Joe", 13, 1), user("Bob", 14, 2)])
    kind = runner._engine.compiled.make("pairs")[1]
    (store, joe), (other, bob) = entry_of(runner, "pairs", 1), entry_of(runner, "pairs", 2)
    row, wrong = (decode_row(of.entries[at]) for of, at in ((store, joe), (other, bob)))
    left, right = kind.decode(row.state), kind.decode(wrong.state)
    right.inline, right.count = left.inline, left.count
    other.apply({bob: encode_row(Row(kind.encode(right), wrong.low, wrong.wall, wrong.holds))})
    friends, joes = entry_of(runner, "friends", "Joe")
    made = runner._engine.compiled.make("friends")[1].decode(decode_row(friends.entries[joes]).state)
    assert list(made.inline) == [key_text((1, 7))]
    made.inline = {key_text((2, 7)): made.inline[key_text((1, 7))]}
    others, bobs = entry_of(runner, "friends", "Bob")
    others.apply({bobs: encode_row(Row(runner._engine.compiled.make("friends")[1].encode(made)))})
    assert runner.view("friends") == {"Joe": 1, "Bob": 1}
    runner.push("users", user("Sam", 2, 7))
    runner.epoch()
    assert runner.view("friends") == {"Joe": 1}
    runner.check()
