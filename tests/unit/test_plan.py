"""Plans and what follows from them, without I/O: time, what is read, what is due."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.authority import Standing
from millstream.core.time import END
from millstream.core.watermark import Progress, Seen
from millstream.engine.metrics import LEAST, MOST, WINDOW, EpochStats, History
from millstream.engine.next_manifest import manifest_after
from millstream.engine.plan import NOTHING, Position, Range, Reading, plan, to_store, unsettled
from millstream.errors import Fenced, HookError
from millstream.state.manifest import Manifest, Parcel

SOURCE = ms.sources.files("nowhere", schema="k string", format="json")


class Count(ms.Computation):
    State = int


def program(production: str = ms.WEAK) -> ms.Pipeline:
    p = ms.Pipeline("planned")
    one = p.compute(Count, p.inject("in", SOURCE, watermark=ms.watermarks.bounded("1s", idle="5s")), key="k", name="First", produces="ones")
    p.compute(Count, one.via(production), name="Second")
    return p


TOPOLOGY = program().topology()
START = Position.after(None, TOPOLOGY)


def at(**changes: object) -> Position:
    return msgspec.structs.replace(
        START, epoch=6, now=1_000, standings={"First": Standing(low=500), "Second": Standing(low=500)}, **changes
    )


@given(st.one_of(st.none(), st.integers(0, 5_000)), st.integers(0, 5_000), st.integers(0, 5_000), st.booleans())
def test_the_wall_clock_never_goes_back_and_follows_the_log_where_it_can(planned: int | None, clock: int, before: int, drain: bool) -> None:
    found = plan(TOPOLOGY, msgspec.structs.replace(at(), now=before), Reading(batch=6, planned_at=planned), clock=clock)
    assert found.now == max(before, clock if planned is None else planned)
    outside = plan(TOPOLOGY, msgspec.structs.replace(at(), now=before), NOTHING, clock=clock, drain=drain)
    assert outside.now == (max(before, clock) if drain else before), "what settles, settles at the time of the last input"


def test_what_is_read_is_part_of_the_plan() -> None:
    moved = Reading(batch=3, ranges={"in": Range("a", "b")})
    still = Reading(batch=3, ranges={"in": Range("b", "b")})
    unknown = Reading(batch=3)
    assert [plan(TOPOLOGY, START, reading, clock=0).has_work for reading in (moved, still, unknown, NOTHING)] == [True, False, True, False]
    assert plan(TOPOLOGY, START, moved, clock=0).ranges is moved


def test_an_epoch_has_work_when_something_is_due() -> None:
    injected = {"in": Progress(newest=3_000, watermark=2_000, used=500, heard=1_000)}
    timer = {"First": Standing(low=500, next_low=2_000), "Second": Standing(low=500)}
    pending = {"First": Standing(low=500), "Second": Standing(low=500, pending=700)}
    due = [
        plan(TOPOLOGY, msgspec.structs.replace(at(), progress=injected, standings=timer), clock=1_000),
        plan(TOPOLOGY, msgspec.structs.replace(at(), standings=pending), clock=1_000),
        plan(TOPOLOGY, msgspec.structs.replace(at(), next_wall={"Second": 1_000}), clock=1_000),
    ]
    assert all(one.due for one in due)
    not_yet = [
        plan(
            TOPOLOGY,
            msgspec.structs.replace(at(), progress=injected, standings={**timer, "First": Standing(low=500, next_low=2_001)}),
            clock=1_000,
        ),
        plan(TOPOLOGY, msgspec.structs.replace(at(), next_wall={"Second": 1_001}), clock=1_000),
        plan(TOPOLOGY, msgspec.structs.replace(at(), next_wall={"Dropped": 1_000}), clock=1_000),
    ]
    assert not any(one.due for one in not_yet)


def test_time_in_which_nobody_listened_is_no_silence() -> None:
    injected = {"in": Progress(newest=3_000, watermark=2_000, heard=1_000)}
    position = msgspec.structs.replace(at(), progress=injected)
    reading = Reading(batch=7, planned_at=90_000, ranges={})
    listened = plan(TOPOLOGY, position, reading, clock=0)
    away = plan(TOPOLOGY, position, reading, clock=0, listened=False)
    first = TOPOLOGY.injectors["in"].watermark
    assert first.advance(listened.position.progress["in"], Seen(), listened.now).idle
    assert not first.advance(away.position.progress["in"], Seen(), away.now).idle
    assert position.progress["in"].heard == 1_000, "the position that was given is left alone"


def test_unsettled_means_that_an_idle_epoch_would_do_something() -> None:
    settled = msgspec.structs.replace(at(), progress={"in": Progress(newest=1_500, watermark=500, used=500, heard=1_000)})
    assert not unsettled(TOPOLOGY, settled)
    assert unsettled(
        TOPOLOGY, msgspec.structs.replace(settled, progress={"in": Progress(newest=3_000, watermark=2_000, used=500, heard=1_000)})
    )


def test_an_adaptive_edge_stores_when_its_own_consumer_fails() -> None:
    topology = program(ms.ADAPTIVE).topology()
    error = HookError("it broke\nsecond line")
    error.culprits = ["Second"]
    more = to_store(topology, error, {})
    assert more == {("ones", "Second"): "its consumer failed: it broke"}
    assert plan(topology, Position.after(None, topology), clock=5).storing_too(topology, more).storing == more
    assert to_store(topology, error, more) == {}, "once is enough"
    error.culprits = ["First"]
    assert to_store(topology, error, {}) == {}
    assert to_store(topology, Fenced("no"), {}) == {}


def test_the_manifest_before_is_not_changed_by_what_follows() -> None:
    made = program().program()
    first = manifest_after(
        made, plan(made.topology, START, Reading(batch=0, ranges={}), clock=10), None, [], token="1-a", shards=2, folded={}
    )
    first.pending = [Parcel(stream="ones", computation="Second", name="u", slices={}, oldest=1)]
    before = msgspec.json.encode(first)
    position = Position.after(first, made.topology)
    second = manifest_after(
        made, plan(made.topology, position, clock=20, drain=True), first, [], token="2-b", shards=2, folded={}, refused=3
    )
    assert msgspec.json.encode(first) == before
    assert (second.epoch, second.now, second.refused, second.runs) == (1, 20, 3, [(0, "1-a"), (1, "2-b")])
    assert second.drain and second.ended == 1 and second.outside == 1 and second.injectors["in"].watermark == END
    assert second.computations["First"].lineage == first.computations["First"].lineage


def test_the_manifest_says_where_a_batch_and_its_epoch_differ() -> None:
    made = program().program()
    first = manifest_after(
        made, plan(made.topology, START, Reading(batch=0, ranges={}), clock=1), None, [], token="1-a", shards=1, folded={}
    )
    settled = manifest_after(
        made, plan(made.topology, Position.after(first, made.topology), clock=9), first, [], token="1-a", shards=1, folded={}
    )
    assert settled.settle and settled.batch is None and settled.now == first.now
    third = manifest_after(
        made,
        plan(made.topology, Position.after(settled, made.topology), Reading(batch=1), clock=9),
        settled,
        [],
        token="1-a",
        shards=1,
        folded={},
    )
    assert (third.epoch, third.batch, third.outside) == (2, 1, 1)
    assert isinstance(third, Manifest)


@pytest.mark.parametrize("every", [10, 1_000, 3_600_000])
def test_history_is_bounded_by_count_and_by_time(every: int) -> None:
    history = History()
    for number in range(MOST + 500):
        history.add(EpochStats(number, 1, 1.0, job=True, at=number * every))
    kept = [one.epoch for one in history]
    young = min(MOST, WINDOW // every + 1)
    assert len(kept) == max(LEAST, young) and kept[-1] == MOST + 499 and kept == sorted(kept)
    assert [one.epoch for one in history.recent(3)] == kept[-3:] and History().recent(3) == []
