"""The graph: what is refused, what runs together, where records go, how far time is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from effort import some
from millstream.core.authority import Standing, propagate
from millstream.core.time import BEGINNING, END
from millstream.core.topology import ComputationSpec, Emission, Injector, Input, Topology
from millstream.core.watermark import Progress, Seen, bounded
from millstream.errors import DefinitionError


class C(ms.Computation):
    State = int


def injector(name):
    return Injector(name, None, "at", None, None, bounded(0))


def spec(name, inputs, produces=None):
    """inputs: stream, or (stream, key)."""
    given = [Input(*i) if isinstance(i, tuple) else Input(i, None) for i in inputs]
    return ComputationSpec(name, C, tuple(given), (name,) if produces is None else tuple(produces))


def graph(injectors, computations, emissions=()):
    return Topology([injector(i) for i in injectors], computations, emissions)


def pipeline():
    found = ms.Pipeline("p")
    return found, found.inject("in", ms.sources.files("in", schema="k string"))


# --- what is refused


def test_a_stream_that_nobody_produces_is_refused_and_the_known_ones_are_named():
    with pytest.raises(DefinitionError, match=r"'C'.*'typo'.*'in'"):
        graph(["in"], [spec("C", [("typo", "k")])])


def test_an_emission_of_an_unknown_stream_is_refused():
    with pytest.raises(DefinitionError, match=r"'typo'.*'C', 'in'"):
        graph(["in"], [spec("C", [("in", "k")])], [Emission("typo", "typo", None)])


def test_a_cycle_is_refused_by_the_names_in_it():
    with pytest.raises(DefinitionError, match="cycle") as caught:
        graph(["in"], [spec("Before", [("in", "k")]), spec("A", ["Before", "B"]), spec("B", ["A"])])
    assert "A" in str(caught.value) and "B" in str(caught.value)
    assert "Before" not in str(caught.value)


def test_what_only_reads_from_a_cycle_is_not_blamed_for_it():
    with pytest.raises(DefinitionError, match="cycle") as caught:
        graph(["in"], [spec("A", [("in", "k"), ("B", "k")]), spec("B", ["A"]), spec("Innocent", ["B"])])
    assert "Innocent" not in str(caught.value)


def test_a_computation_that_reads_itself_is_a_cycle():
    with pytest.raises(DefinitionError, match="cycle through Self"):
        graph(["in"], [spec("Self", [("in", "k"), ("Self", "k")])])


def test_a_diamond_is_no_cycle():
    graph(["in"], [spec("A", [("in", "k")]), spec("B", [("A", "k")]), spec("D", [("A", "k")]), spec("E", [("B", "k"), ("D", "k")])])


def test_two_producers_of_a_stream_are_refused_by_name():
    with pytest.raises(DefinitionError, match=r"'out'.*'A' and 'B'"):
        graph(["in"], [spec("A", [("in", "k")], ["out"]), spec("B", [("in", "k")], ["out"])])
    with pytest.raises(DefinitionError, match=r"'in'.*'A'"):
        graph(["in"], [spec("A", [("in", "k")], ["in"])])
    with pytest.raises(DefinitionError, match="'twice'"):
        graph(["in"], [spec("A", [("in", "k")], ["twice", "twice"])])


def test_two_of_a_name_are_refused():
    p, stream = pipeline()
    with pytest.raises(DefinitionError, match="'in'"):
        p.inject("in", ms.sources.rate(1))
    p.compute(C, stream, key="k")
    with pytest.raises(DefinitionError, match="two computations are called 'C'"):
        p.compute(C, stream, key="k", produces="other")
    p.compute(C, stream, key="k", name="D")


def test_an_injected_stream_needs_a_key():
    with pytest.raises(DefinitionError, match=r"'C'.*'in' without a key"):
        graph(["in"], [spec("C", ["in"])])
    p, stream = pipeline()
    other = p.inject("other", ms.sources.files("in", schema="k string"))
    p.compute(C, stream, other, key={"in": "k"})
    with pytest.raises(DefinitionError, match="'other' without a key"):
        p.topology()


def test_a_callable_key_on_an_injected_stream_is_refused():
    with pytest.raises(DefinitionError, match=r"'C'.*'in'.*callable"):
        graph(["in"], [spec("C", [("in", lambda record: record.value)])])


def test_a_callable_key_on_an_internal_stream_is_taken():
    graph(["in"], [spec("A", [("in", "k")]), spec("B", [("A", lambda record: record.value)])])


@pytest.mark.parametrize("key", [5, 1.5, {"a"}, object()], ids=["int", "float", "set", "object"])
def test_a_key_of_an_internal_stream_that_makes_no_sense_is_refused(key):
    with pytest.raises(DefinitionError, match=r"'B'.*'A'"):
        graph(["in"], [spec("A", [("in", "k")]), spec("B", [("A", key)])])


def test_a_key_for_a_stream_that_is_not_read_is_refused():
    p, stream = pipeline()
    with pytest.raises(DefinitionError, match="typo"):
        p.compute(C, stream, key={"in": "k", "typo": "k"})


def test_a_stream_read_twice_by_one_computation_is_refused():
    """Every record of it would count twice."""
    p, stream = pipeline()
    with pytest.raises(DefinitionError, match="in"):
        p.compute(C, stream, stream, key="k")
        p.topology()


def test_what_is_no_computation_no_stream_no_sink_and_no_source_is_refused():
    p, stream = pipeline()
    for broken in (
        lambda: p.compute(dict, stream, key="k"),
        lambda: p.compute("C", stream, key="k"),
        lambda: p.compute(C, key="k"),
        lambda: p.compute(C, 5, key="k"),
        lambda: p.compute(C, ms.Stream("in", ms.Pipeline("other")), key="k"),
        lambda: p.emit(stream, print),
        lambda: p.inject("x", object()),
        lambda: p.inject("x", ms.sources.rate(1), watermark="2s"),
        lambda: p.inject("bad name", ms.sources.rate(1)),
        lambda: p.inject("x/y", ms.sources.rate(1)),
        lambda: p.compute(C, stream, key="k", name=".."),
        lambda: p.compute(C, stream, key="k", produces="a b"),
        lambda: ms.Pipeline(""),
        lambda: ms.watermarks.bounded("-1s"),
        lambda: ms.watermarks.bounded(-1),
    ):
        with pytest.raises(DefinitionError):
            broken()


def test_a_pipeline_without_input_or_work_is_refused():
    with pytest.raises(DefinitionError, match="no injector"):
        ms.Pipeline("p").topology()
    p, _ = pipeline()
    with pytest.raises(DefinitionError, match="no computation"):
        p.topology()


def test_several_sinks_of_a_stream_have_names_of_their_own():
    p, stream = pipeline()
    out = p.compute(C, stream, key="k")
    p.emit(out, ms.sinks.memory())
    p.emit(out, ms.sinks.memory())
    assert [e.name for e in p.topology().emissions] == ["C", "C~1"]


def test_names_of_sinks_are_unique_whatever_the_streams_are_called():
    """The manifest keeps the parts of a sink under its name."""
    p, stream = pipeline()
    out = p.compute(C, stream, key="k")
    p.emit(out, ms.sinks.memory())
    p.emit(out, ms.sinks.memory())
    second = p.topology().emissions[1].name
    for name in (second, "C.1"):
        try:
            other = p.compute(C, stream, key="k", name=f"D{len(name)}{name[1]}".replace("~", "x"), produces=name)
        except DefinitionError:
            continue
        p.emit(other, ms.sinks.memory())
    names = [e.name for e in p.topology().emissions]
    assert len(set(names)) == len(names) >= 2


def test_an_injected_stream_may_be_emitted():
    p, stream = pipeline()
    p.emit(stream, ms.sinks.memory())
    p.emit(stream, ms.sinks.memory())
    topology = p.topology()
    assert [c.name for c in topology.computations] == ["emit~in"]
    assert [e.stream for e in topology.emissions] == ["emit~in", "emit~in"]


def test_a_computation_called_like_a_forwarder_is_not_taken_for_it():
    p, stream = pipeline()
    p.emit(stream, ms.sinks.memory())
    (forwarder,) = p.topology().computations
    for name in (forwarder.name, "emit.in"):
        p, stream = pipeline()
        p.emit(stream, ms.sinks.memory())
        try:
            p.compute(C, stream, key="k", name=name)
            topology = p.topology()
        except DefinitionError as error:
            assert name in str(error)
        else:
            (emission,) = topology.emissions
            assert topology._producer[emission.stream].factory is not C


# --- what runs together


def layout(topology):
    return [[group.computations for group in level] for level in topology.levels]


def test_a_consumer_without_a_key_runs_with_its_producer():
    found = graph(["in"], [spec("A", [("in", "k")]), spec("B", ["A"]), spec("D", ["B"])])
    assert layout(found) == [[("A", "B", "D")]]
    assert found.same_key_streams == {"A", "B"}
    assert found.fused_inputs("B") == ["A"] and found.fused_inputs("A") == []


def test_a_consumer_with_a_key_runs_one_level_later():
    found = graph(["in"], [spec("A", [("in", "k")]), spec("B", [("A", "f")])])
    assert layout(found) == [[("A",)], [("B",)]]
    assert found.same_key_streams == frozenset()


def test_a_consumer_of_two_streams_of_one_group_joins_it():
    found = graph(["in"], [spec("A", [("in", "k")], ["x", "y"]), spec("B", ["x"]), spec("D", ["x", "y", "B"])])
    assert layout(found) == [[("A", "B", "D")]]


def test_a_consumer_of_two_groups_joins_neither():
    found = graph(["in"], [spec("A", [("in", "k")]), spec("B", [("in", "k")]), spec("D", ["A", "B"])])
    assert layout(found) == [[("A",), ("B",)], [("D",)]]
    assert found.same_key_streams == frozenset()


def test_a_consumer_that_keys_one_of_its_inputs_joins_nobody():
    found = graph(["in"], [spec("A", [("in", "k")], ["x", "y"]), spec("B", ["x", ("y", "f")])])
    assert layout(found) == [[("A",)], [("B",)]]


def test_a_consumer_that_also_reads_an_injected_stream_joins_nobody():
    found = graph(["in"], [spec("A", [("in", "k")]), spec("B", ["A", ("in", "k")])])
    assert layout(found) == [[("A",)], [("B",)]]


def test_the_level_of_a_consumer_lies_behind_all_its_producers():
    found = graph(["in"], [spec("D", [("A", "f"), ("B", "f")]), spec("B", [("A", "f")]), spec("A", [("in", "k")])])
    assert layout(found) == [[("A",)], [("B",)], [("D",)]]
    assert [c.name for c in found.computations] == ["A", "B", "D"]


def test_a_stream_may_be_fused_for_one_consumer_and_routed_for_another():
    found = graph(["in"], [spec("A", [("in", "k")]), spec("B", ["A"]), spec("D", [("A", "f")])])
    assert layout(found) == [[("A", "B")], [("D",)]]
    assert [(r.stream, r.computation) for r in found.routes] == [("in", "A"), ("A", "D")]
    assert found.same_key_streams == {"A"}


def test_routes_tell_stream_consumer_key_level_and_group():
    found = graph(["in"], [spec("A", [("in", "k")]), spec("B", [("in", "j")]), spec("D", [("A", "f"), "B"])])
    told = [(r.index, r.stream, r.computation, r.key, r.level, r.group) for r in found.routes]
    assert told == [(0, "in", "A", "k", 0, 0), (1, "in", "B", "j", 0, 1), (2, "A", "D", "f", 1, 0), (3, "B", "D", None, 1, 0)]
    assert found.feeds("D") == ["A", "B"]


# --- any graph


@st.composite
def graphs(draw):
    injectors = [f"in{i}" for i in range(draw(st.integers(1, 3)))]
    streams, computations = list(injectors), []
    for at in range(draw(st.integers(1, 7))):
        chosen = draw(st.lists(st.sampled_from(streams), min_size=1, max_size=3, unique=True))
        inputs = [(s, "k" if s in injectors else draw(st.sampled_from([None, "f"]))) for s in chosen]
        produces = [f"c{at}"] if draw(st.booleans()) else [f"c{at}", f"c{at}x"]
        computations.append(spec(f"c{at}", inputs, produces))
        streams += produces
    return injectors, draw(st.permutations(computations))


@settings(max_examples=some(200))
@given(graphs())
def test_any_graph_is_laid_out_so_that_everything_comes_after_what_it_needs(given_graph):
    injectors, computations = given_graph
    found = graph(injectors, computations)
    assert sorted(c.name for c in found.computations) == sorted(c.name for c in computations)
    place = {
        name: (group.level, group.index, group.computations.index(name))
        for level in found.levels
        for group in level
        for name in group.computations
    }
    maker = {stream: c.name for c in computations for stream in c.produces}
    routed = {(r.stream, r.computation): r for r in found.routes}
    assert len(routed) == len(found.routes)
    for c in computations:
        for i in c.inputs:
            fused = i.stream in found.fused_inputs(c.name)
            assert fused != ((i.stream, c.name) in routed)
            if i.stream in maker:
                producer, consumer = place[maker[i.stream]], place[c.name]
                if fused:
                    assert i.key is None and producer[:2] == consumer[:2] and producer[2] < consumer[2]
                else:
                    assert producer[0] < consumer[0]
            if not fused:
                route = routed[i.stream, c.name]
                assert (route.level, route.group, route.key) == (*place[c.name][:2], i.key)
    for c in computations:
        if found.fused_inputs(c.name):
            assert len(found.fused_inputs(c.name)) == len(c.inputs)


@settings(max_examples=some(200))
@given(graphs(), st.data())
def test_watermarks_are_what_recursion_says_and_never_go_back(given_graph, data):
    injectors, computations = given_graph
    found = graph(injectors, computations)
    maker = {stream: c for c in computations for stream in c.produces}
    before: dict[str, int] = {}
    best: dict[str, int] = {}
    times = st.sampled_from([BEGINNING, -5, 0, 3, 7, 9, END])
    for _ in range(data.draw(st.integers(1, 4))):
        at = {i: data.draw(times) for i in injectors}

        def low(name, at=at, best=best):
            """The dumb twin: the least of what feeds it, and never less than ever before."""
            (c,) = [c for c in computations if c.name == name]
            fed = [at[i.stream] if i.stream in at else low(maker[i.stream].name) for i in c.inputs]
            return max([min(fed), best.get(name, BEGINNING)])

        expected = {c.name: low(c.name) for c in computations}
        standings = propagate(
            found, {name: Progress(watermark=time) for name, time in at.items()}, {name: Standing(was, was) for name, was in before.items()}
        )
        now = {name: standing.low for name, standing in standings.items()}
        assert now == expected
        assert all(standing.output == standing.low for standing in standings.values())
        assert all(now[name] >= was for name, was in before.items())
        assert all(now[c.name] >= min(at.values()) for c in computations)
        before = best = now


def test_a_bounded_watermark_follows_the_newest_record_at_a_distance():
    def after(delay, newest):
        return bounded(delay).advance(Progress(), Seen(1, newest) if newest is not None else Seen(), 0).watermark

    assert after("2s", None) == BEGINNING
    assert after("2s", 10_000) == 8_000
    assert after(0, 5) == 5
    assert after("1d", BEGINNING + 5) == BEGINNING
