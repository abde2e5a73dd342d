"""MillWheel §6.2: state manipulation. Rows change atomically; sequencers keep zombies and network remnants out."""

from __future__ import annotations

import pytest
from paperkit import Sum, Windows, fails_without, holds, inject, key, rows, simulate, sums

import millstream as ms
from millstream.core.keyspace import ROW
from millstream.simulation.fault import Fault
from millstream.simulation.schedules import START, make_plan
from millstream.simulation.simulated_run import InputPlan


class Everything(ms.Computation):
    """State, a sub-row, timers and a production per record: all of it must change together."""

    State = ms.MapState

    def process_record(self, record: ms.Record) -> None:
        count = self.state.get("count", 0) + 1
        self.state["count"] = count
        self.state[f"record {record.value['id']}"] = count
        self.set_timer("t", record.timestamp + 50)
        self.produce(count)

    def process_timer(self, timer: ms.Timer) -> None:
        self.state["fired"] = self.state.get("fired", 0) + 1
        self.produce(["fired", self.state["fired"], self.state["count"]])


def everything() -> ms.Pipeline:
    p = ms.Pipeline("everything")
    p.compute(
        Sum,
        p.compute(Counted, p.compute(Everything, inject(p), key="k", produces="all"), key=key, produces="counted"),
        key=key,
        produces="sums",
    )
    return p


class Counted(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce(1)


def test_6_2_state_timers_and_productions_of_a_key_change_together_or_not_at_all() -> None:
    holds(everything(), ["crash", "retry", "zombie"], seeds=60)


def test_6_2_every_write_of_an_epoch_hangs_on_one_object() -> None:
    """The atomic row, stretched to an epoch: whatever is staged, without its manifest nothing of it is there."""
    plan = make_plan([("in", row) for row in rows()], 3)
    whole, _ = simulate(everything(), [], plan=plan)
    last = max(name for name in whole.storage.list("manifests"))
    del whole.storage.objects[last]
    from millstream.state.manifest_log import ManifestLog

    before = ManifestLog(whole.storage).latest()
    assert before is not None and before.epoch == int(last.split("/")[1].split(".")[0]) - 1
    named = {ref.name for c in before.computations.values() for shard in c.shards for ref in shard.segments}
    assert all(f"-{before.epoch + 1:06d}" not in name for name in named)


@pytest.mark.slow
def test_6_2_a_zombie_writer_changes_nothing() -> None:
    """An attempt that stalled, was overtaken, and works and writes while later epochs are committed."""
    holds(sums(ms.STRONG), ["zombie"], seeds=80)
    holds(everything(), ["zombie", "compact", "forget"], seeds=60)


def test_6_2_twin_a_state_cache_that_does_not_check_where_it_stands_takes_an_old_state_for_a_new_one() -> None:
    fails_without("markers", sums(), ["zombie", "forget", "crash"])


def test_6_2_a_replaced_driver_commits_and_publishes_nothing() -> None:
    holds(sums(), ["pause"], seeds=80)


def test_6_2_twin_without_tokens_a_replaced_driver_publishes() -> None:
    fails_without("tokens", sums(), ["pause"], match="published after|went on as if nothing")


def test_6_2_network_remnants_of_a_replaced_run_are_refused_and_counted() -> None:
    """Work of the old run that is still in flight when the new run has begun carries a stale token."""
    for seed in range(20):
        faults = [Fault("zombie", 1, task=0, later=2), Fault("crash", 2, "epoch.5-checked")]
        plan = InputPlan([[("in", row) for row in rows()[at : at + 6]] for at in range(0, 30, 6)], [START + at for at in range(5)])
        simulation, end = simulate(sums(), faults, seed, plan=plan)
        marks = [name for name in simulation.storage.objects if name.startswith("refused/")]
        assert len(marks) + end.refused == 1
        assert all(mark.split("/")[1].startswith("1-") for mark in marks), "the first run's token"


def test_6_2_tokens_grow() -> None:
    _, end = simulate(
        sums(), [Fault("crash", 1, "epoch.2-read"), Fault("crash", 2, "epoch.6-committed"), Fault("crash", 3, "task.4-staging")]
    )
    numbers = [int(token.split("-")[0]) for _, token in end.runs]
    assert numbers == sorted(set(numbers)) and numbers[-1] == 4


def test_6_2_every_staged_object_carries_its_runs_number() -> None:
    simulation, _ = simulate(sums(ms.STRONG), [Fault("crash", 1, "task.4-staged"), Fault("compact", 2)])
    units = [name.rsplit("/", 1)[1] for name in simulation.storage.list("units")]
    assert units and {unit.split("-")[1] for unit in units} <= {"1", "2"}
    assert any("-compact-" in unit for unit in units)


def test_4_4_rows_are_kept_for_the_keys_that_need_them_only() -> None:
    simulation, end = simulate(sums(), [])
    from millstream.state.segment import merge

    entries = [e for shard in end.computations["Windows"].shards for e, _ in merge(simulation.storage, shard.segments, drop_deleted=True)]
    assert [e for e in entries if e.startswith(ROW)] == [], "all windows are closed: no row is left"
    assert Windows.State is dict
