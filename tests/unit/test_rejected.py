"""Records that no hook can be called with: null keys and timestamps, key functions that raise, the ends of time."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from effort import some
from millstream.core.guards import Guards
from millstream.testing import LocalRunner, assert_exactly_once

SCHEMA = "k string, n long, at long, id string"


class Sum(ms.Computation):
    State = int

    def process_record(self, record: ms.Record) -> None:
        self.state += record.value["n"]
        self.produce({"n": self.state, "to": record.value["n"] % 2 or None})


class Second(Sum):
    def process_record(self, record: ms.Record) -> None:
        self.state += 1
        self.produce(record.value["n"])


def pipeline(on_error: str = ms.DEAD_LETTER, key: Any = lambda record: record.value["to"], production: str = ms.WEAK) -> ms.Pipeline:
    p = ms.Pipeline("rejected")
    source = p.inject("in", ms.sources.files("in/", schema=SCHEMA, format="json"), timestamp="at", id="id")
    sums = p.compute(Sum, source, key="k", produces="sums", on_error=on_error, production=production)
    p.compute(Second, sums, key=key, produces="seconds", on_error=on_error)
    return p


def row(at: Any, n: int = 1, k: str | None = "a", id: str | None = "") -> dict[str, Any]:
    return {"k": k, "n": n, "at": at, "id": f"r{at}" if id == "" else id}


WRONG = [
    (row(3, k=None), r"its key \('k'\) is null"),
    (row(None, id="x"), "its timestamp is null"),
    (row(4, id=None), "its id is null"),
    (row(2**63 - 1), "the end of time"),
    (row(-(2**63)), "the beginning of time"),
]


@pytest.mark.parametrize(("wrong", "why"), WRONG)
def test_a_record_that_cannot_be_used_becomes_a_dead_letter_and_the_rest_counts(wrong: dict[str, Any], why: str) -> None:
    runner = LocalRunner(pipeline())
    runner.push("in", row(1), wrong, row(2))
    runner.run()
    runner.drain()
    assert runner.state("Sum", "a") == 2
    ((key, letter, _),) = runner.output("Sum.dead-letters")
    assert key == "" and letter["value"] == wrong and letter["stream"] == "in" and letter["computation"] == "Sum"
    assert why.replace("\\", "") in letter["error"]
    assert runner.dead("Sum") == 1


@pytest.mark.parametrize(("wrong", "why"), WRONG)
def test_without_dead_letters_it_is_an_input_error_that_shows_the_row_and_loses_nothing(wrong: dict[str, Any], why: str) -> None:
    runner = LocalRunner(pipeline(ms.FAIL, key="to"))
    runner.push("in", row(1), wrong)
    with pytest.raises(ms.errors.InputError, match=f"stream 'in' into computation 'Sum': .*{why}.*DEAD_LETTER"):
        runner.run()
    assert runner.state("Sum") == {}


@pytest.mark.parametrize("production", [ms.WEAK, ms.STRONG])
@pytest.mark.parametrize("key", [lambda record: record.value["to"], lambda record: 1 // (record.value["to"] or 0), "nowhere"])
def test_a_key_function_that_fails_makes_a_dead_letter_of_the_consumer(key: Any, production: str) -> None:
    runner = LocalRunner(pipeline(key=key, production=production))
    runner.push("in", row(1, 1), row(2, 2), row(3, 3))
    runner.run()
    bad = [value for _, value, _ in runner.output("Second.dead-letters")]
    assert [letter["value"]["n"] for letter in bad] == ([1, 3, 6] if key == "nowhere" else [3])
    assert all(letter["stream"] == "sums" for letter in bad)
    assert runner.state("Second") == ({} if key == "nowhere" else {1: 2})


@pytest.mark.parametrize("production", [ms.WEAK, ms.STRONG])
def test_a_key_function_that_fails_stops_a_consumer_without_dead_letters(production: str) -> None:
    runner = LocalRunner(pipeline(ms.FAIL, production=production))
    runner.push("in", row(1, 2))
    with pytest.raises(ms.errors.HookError, match="stream 'sums' into computation 'Second': the key is None"):
        runner.run()


@pytest.mark.slow
@pytest.mark.parametrize("production", [ms.WEAK, ms.STRONG])
def test_rejected_records_become_dead_letters_exactly_once_under_faults(production: str) -> None:
    rows = [row(at, at % 3, k=None if at % 4 == 0 else "ab"[at % 2]) for at in range(20)] + [row(2**63 - 1)]
    assert_exactly_once(
        pipeline(production=production), rows, seeds=range(40), faults=["crash", "retry", "recompute", "zombie", "pause"], epochs="same"
    )


def test_whoever_reads_dead_letters_without_a_key_of_its_own_gets_those_of_rejected_records_too() -> None:
    p = pipeline()

    class Letters(ms.Computation):
        State = int

        def process_record(self, record: ms.Record) -> None:
            self.state += 1

    p.compute(Letters, p.dead_letters("Sum"))
    runner = LocalRunner(p, shards=4)
    runner.push("in", row(1), *[row(at, k=None) for at in (2, 3)], {"k": "a", "n": None, "at": 4, "id": "x"})
    runner.run()
    assert runner.state("Letters") == {"": 2, "a": 1}


@pytest.mark.parametrize("resident", [False, True])
def test_a_right_pipeline_is_not_accused_because_of_records_that_are_not_deduplicated(resident: bool) -> None:
    rows = [row(at, k=None if at % 2 else "a") for at in range(12)]
    for faults in (None, ["repeat"]):
        assert_exactly_once(pipeline(), rows, seeds=range(some(60)), faults=faults, resident=resident, epochs="same")


def test_twin_without_deduplication_the_repeats_of_those_beside_them_are_noticed() -> None:
    rows = [row(at, k=None if at % 2 else "a") for at in range(12)]
    with pytest.raises(AssertionError, match="repeat in epoch"):
        assert_exactly_once(pipeline(), rows, seeds=range(60), faults=["repeat"], guards=Guards.without("dedup"), epochs="same")
