"""A pipeline that has changed since its checkpoint was made: what goes on, what is refused, and that nothing is changed behind anybody's back."""

from __future__ import annotations

import msgspec
import pytest

import millstream as ms
from millstream.engine.evolution import reconciled
from millstream.engine.program import Program
from millstream.errors import CheckpointError
from millstream.state.manifest import ComputationState, Manifest, ProductionsRef, ShardState

SOURCE = ms.sources.files("nowhere", schema="k string", format="json")


class Count(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.produce(1)


def program(first: str = "First", second: str = "Second", **options: object) -> Program:
    p = ms.Pipeline("changed")
    one = p.compute(Count, p.inject("in", SOURCE), key="k", name=first, produces="ones", **options)  # type: ignore[arg-type]
    p.compute(Count, one.via(ms.STRONG), name=second, produces="twos")
    p.emit("in", ms.sinks.files("raw"))  # by way of a hidden helper
    return p.program()


def manifest(*names: str, codec: str = "msgpack", pending: list[ProductionsRef] | None = None, hidden: str = "") -> Manifest:
    states = {name: ComputationState(shards=[ShardState(keys=3)], codec=codec, hidden=name == hidden) for name in names}
    return Manifest(epoch=4, token="1-x", now=0, runs=[(0, "1-x")], computations=states, pending=pending or [])


def stored_ref(stream: str, computation: str) -> ProductionsRef:
    return ProductionsRef(stream=stream, computation=computation, name="units/1", slices={0: (0, 10, 1)}, oldest=5)


def test_a_manifest_that_fits_goes_on_as_it_is() -> None:
    before = manifest("First", "Second", "emit~in", pending=[stored_ref("ones", "Second")])
    assert reconciled(before, program()) == before


def test_a_rename_moves_the_state_and_what_waits_for_it_and_leaves_the_given_manifest_alone() -> None:
    before = manifest("Old", "Second", pending=[stored_ref("ones", "Second")])
    copy = msgspec.json.encode(before)
    found = reconciled(before, program("New", renamed_from="Old"))
    assert set(found.computations) == {"New", "Second"} and found.computations["New"] == before.computations["Old"]
    assert msgspec.json.encode(before) == copy


def test_what_waits_for_a_renamed_computation_goes_to_its_new_name() -> None:
    p = ms.Pipeline("changed")
    one = p.compute(Count, p.inject("in", SOURCE), key="k", name="First", produces="ones")
    p.compute(Count, one.via(ms.STRONG), name="New", renamed_from="Second", produces="twos")
    found = reconciled(manifest("First", "Second", pending=[stored_ref("ones", "Second")]), p.program())
    assert [waits.computation for waits in found.pending] == ["New"]


def test_one_gone_and_one_new_is_refused_unless_it_is_said() -> None:
    before = manifest("First", "Gone")
    with pytest.raises(CheckpointError, match=r"state of 'Gone'.*has 'Second'"):
        reconciled(before, program())
    assert "Second" not in reconciled(before, program(), drop=["Gone"]).computations


def test_a_hidden_helper_is_never_asked_about() -> None:
    """It is marked in the manifest; version 0.1 told it by its name."""
    for helper, hidden in (("emit~in", ""), ("anything", "anything")):
        reconciled(manifest("First", "Second", helper, hidden=hidden), program())
        reconciled(manifest("First", helper, hidden=hidden), program())  # Second is new, the helper may go
    with pytest.raises(CheckpointError, match="state of 'anything'"):
        reconciled(manifest("First", "anything"), program())


def test_a_codec_cannot_change_under_a_state() -> None:
    with pytest.raises(CheckpointError, match="written with codec 'pickle'"):
        reconciled(manifest("First", "Second", codec="pickle"), program())
    empty = manifest("First", "Second", codec="pickle")
    for state in empty.computations.values():
        state.shards[0].keys = 0
    assert reconciled(empty, program()) == empty


def test_what_waits_for_a_way_that_is_gone_must_be_consumed_first() -> None:
    with pytest.raises(CheckpointError, match="stored productions wait"):
        reconciled(manifest("First", "Second", pending=[stored_ref("threes", "Second")]), program())


def test_an_old_name_that_is_still_there_is_no_rename() -> None:
    with pytest.raises(CheckpointError, match="still there"):
        reconciled(manifest("Second"), program("First", "Second", renamed_from="Second"))


def windowed(kind: object = None, join: object = "1m", lateness: object = 0, **reducers: object) -> Program:
    p = ms.Pipeline("changed")
    rows = p.inject("in", ms.sources.files("nowhere", schema="k string, n long, at long", format="json"), timestamp="at")
    rows.by("k").window(kind or ms.windows.tumbling("1m"), lateness=lateness).reduce(reducers or {"n": ms.sum("n")}, name="windows")  # type: ignore[arg-type]
    rows.by("k").join(rows.by("k"), after=join, name="pairs")  # type: ignore[arg-type]
    return p.program()


def kept(of: Program, keys: int = 3) -> Manifest:
    """A checkpoint of a program that has some state."""
    states = {
        spec.name: ComputationState(
            shards=[ShardState(keys=keys)], hidden=spec.hidden, kind=spec.kind, window=spec.window, about=dict(spec.about)
        )
        for spec in of.topology.computations
    }
    return Manifest(epoch=4, token="1-x", now=0, runs=[(0, "1-x")], computations=states)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (windowed(ms.windows.tumbling("5m")), r"'windows' has state that was made as tumbling\('1m'\) of sum.*says tumbling\('5m'\)"),
        (windowed(ms.windows.session("1m")), r"says session\('1m'\)"),
        (windowed(n=ms.max("n")), "of sum.*of max"),
        (windowed(lateness="1m"), r"says tumbling\('1m'\) that change of sum"),
        (windowed(join="2m"), r"'pairs' has state that was made as join\(after='1m', before=0\)"),
    ],
)
def test_open_windows_and_waiting_records_are_not_taken_for_something_else(changed: Program, told: str) -> None:
    """A minute's partial result is no part of a window of five minutes that begins before it, and a sum is no maximum."""
    with pytest.raises(CheckpointError, match=told):
        reconciled(kept(windowed()), changed)
    reconciled(kept(windowed(), keys=0), changed)


def spread(groups: int | None) -> Program:
    p = ms.Pipeline("changed")
    rows = p.inject("rows", ms.sources.files("nowhere", schema="k string, at long, id string"), timestamp="at", id="id")
    rows.by("k").window(ms.windows.tumbling("1m")).reduce(ms.count(), name="windows", spread=groups)
    return p.program()


def test_records_of_windows_that_were_spread_are_not_forgotten() -> None:
    reconciled(kept(spread(4)), spread(8))
    with pytest.raises(CheckpointError, match=r"records in 'windows.parts', and the pipeline no longer says spread="):
        joined = msgspec.structs.replace(kept(spread(4)).computations["windows"], shards=[])
        before = kept(spread(4))
        before.computations["windows"] = joined
        reconciled(before, spread(None))
    reconciled(kept(spread(4), keys=0), spread(None))
    with pytest.raises(CheckpointError, match=r"made as tumbling\('1m'\) of count, and the pipeline says same\(\)"):
        reconciled(kept(spread(None)), spread(4))


def test_what_does_not_change_the_meaning_of_open_windows_may_change() -> None:
    for changed in (windowed(), windowed(total=ms.sum("n")), windowed(n=ms.sum(lambda value: value["n"]))):
        reconciled(kept(windowed()), changed)


def test_sessions_that_change_keep_to_their_reducers() -> None:
    before = windowed(ms.windows.session("1m"), lateness="1m")
    with pytest.raises(CheckpointError, match=r"that change of sum.*of max"):
        reconciled(kept(before), windowed(ms.windows.session("1m"), lateness="1m", n=ms.max("n")))
    reconciled(kept(before), windowed(ms.windows.session("1m"), lateness="5m"))
