"""What programs written for version 0.1 do, and still can."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.engine.evolution import reconciled
from millstream.errors import BY_NAME, CheckpointError, DefinitionError, HookError, MillstreamError, travelling_name
from millstream.simulation.driver import InputPlan, Simulation
from millstream.state.manifest import ComputationState, Manifest, ShardState

SOURCE = ms.sources.files("nowhere", schema="k string, at long, id string", format="json")


class Pass(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.produce(record.value)


def row(id: str) -> dict[str, Any]:
    return {"k": "a", "at": 5, "id": id}


def test_an_injected_stream_with_empty_ids_can_be_emitted() -> None:
    p = ms.Pipeline("raw")
    p.emit(p.inject("in", SOURCE, timestamp="at", id="id", dedup=None), ms.sinks.memory())
    runner = ms.testing.LocalRunner(p)
    runner.push("in", row(""), row("x"))
    runner.run()
    assert sorted(r.id for r in runner.records("emit~in")) == ["", "x"]


def test_an_id_that_a_hook_gives_is_used_and_an_empty_one_refused() -> None:
    class Given(ms.Computation):
        def process_record(self, record: ms.Record) -> None:
            self.produce(1, id=record.value["id"] and f"mine-{record.value['id']}")

    p = ms.Pipeline("given")
    p.compute(Given, p.inject("in", SOURCE, timestamp="at", id="id", dedup=None), key="k", produces="out")
    runner = ms.testing.LocalRunner(p)
    runner.push("in", row("x"))
    runner.run()
    assert [r.id for r in runner.records("out")] == ["mine-x"]
    runner.push("in", row(""))
    with pytest.raises(HookError, match="an id is a str that is not empty"):
        runner.run()


@pytest.mark.parametrize("production", [ms.WEAK, ms.ADAPTIVE])
def test_a_key_function_that_raises_in_a_task_is_a_hook_error(production: str) -> None:
    """Whatever the edge: it is the producer's task that works the key out, so storing for the consumer would not help."""
    p = ms.Pipeline("keys")
    stream = p.compute(Pass, p.inject("in", SOURCE, timestamp="at", id="id"), key="k", produces="out")
    p.compute(Pass, stream.via(production), key=lambda record: 1 // 0, name="Second")
    simulation = Simulation(p.program(), InputPlan([[("in", row("x"))]], [1]), [], seed=1)
    with pytest.raises(HookError, match="its key raised ZeroDivisionError"):
        simulation.run()


def every_error(of: type[MillstreamError]) -> list[type[MillstreamError]]:
    return [of, *(found for below in of.__subclasses__() for found in every_error(below))]


def test_every_error_travels_from_a_task_as_itself_or_as_what_it_is_a_kind_of() -> None:
    for cls in every_error(MillstreamError):
        error = cls.__new__(cls)
        assert isinstance(error, BY_NAME.get(travelling_name(error), MillstreamError))
        if issubclass(cls, HookError):
            assert travelling_name(error) == "HookError"


class DictSink(ms.sinks.Sink):
    """As the documentation of 0.1 had it: a part is a small dict."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def stage(self, context: Any, rows: Any) -> Any:
        return {"mine": len(rows), "rows": len(rows)}

    def commit(self, context: Any, epoch: int, parts: Any) -> None:
        for part in parts:
            assert "mine" in part and part.get("other", 7) == 7 and {**part} == dict(part) == dict(part.items())
            self.seen.append((part["mine"], sorted(part)))


def test_a_sink_whose_parts_are_dicts_works_and_is_told_what_to_write(tmp_path: Path) -> None:
    from millstream.core.topology import Emission, Topology
    from millstream.engine.program import Compiled, Program

    p = ms.Pipeline("dicts")
    p.compute(Pass, p.inject("in", SOURCE, timestamp="at", id="id"), key="k", produces="out")
    sink = DictSink()
    simulation = Simulation(p.program(), InputPlan([[("in", row("x"))]], [1]), [], seed=1)
    topology = simulation.program.topology
    emissions = [*topology.emissions, Emission("own", "out", sink)]
    simulation.program = Program(
        "dicts", Topology(list(topology.injectors.values()), topology.computations, emissions), simulation.program.codec
    )
    simulation.compiled = Compiled(simulation.program, all_ids=True)
    with pytest.warns(DeprecationWarning, match="DictSink.stage returned a dict"):
        simulation.run()
    assert sink.seen == [(1, ["mine", "rows"])]


@pytest.mark.parametrize("key", [operator.itemgetter("k"), lambda row: row, str, len], ids=["object", "function", "class", "builtin"])
def test_a_key_of_an_injected_stream_that_is_python_is_refused_when_the_graph_is_made(key: Any) -> None:
    p = ms.Pipeline("callable")
    p.compute(Pass, p.inject("in", SOURCE, timestamp="at"), key=key)
    with pytest.raises(DefinitionError, match="is a Python callable"):
        p.program()


def test_two_computations_cannot_take_over_the_state_of_one() -> None:
    p = ms.Pipeline("renamed")
    stream = p.inject("in", SOURCE, timestamp="at")
    for name in ("One", "Two"):
        p.compute(Pass, stream, key="k", name=name, renamed_from="Old")
    old = Manifest(epoch=1, token="1-a", now=0, runs=[], computations={"Old": ComputationState(shards=[ShardState(keys=1)])})
    with pytest.raises(CheckpointError, match="computations 'One' and 'Two' both say renamed_from='Old'"):
        reconciled(old, p.program())


def test_a_source_that_must_be_told_says_no_before_anything_is_written_where_it_cannot_be(tmp_path: Path) -> None:
    source = ms.sources.connector(dir=tmp_path / "intake", listen="127.0.0.1:0")
    source.check(offsets=True)
    with pytest.raises(DefinitionError, match=r"must be told what is committed.*spark_checkpoint"):
        source.check(offsets=False)
    assert not (tmp_path / "intake").exists()
