"""The examples make their own input, and give what they say: on the local engine, and with make soak one of them on Spark, as a user runs it."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import millstream as ms
from demos.report import match, pair

ROOT = Path(__file__).parent.parent
NAMES = sorted(
    path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "own_sink"
)  # no pipeline; tests/connector/test_own_sink.py


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(name: str) -> dict[str, Any]:
    """Executes an example's file, as `millstream run` does."""
    return runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="example")


def inputs_of(pipeline: ms.Pipeline) -> dict[str, list[dict[str, Any]]]:
    """By stream, the rows that lie where the pipeline reads; lines that cannot be read are left to Spark."""
    found: dict[str, list[dict[str, Any]]] = {}
    for stream, injector in pipeline.topology().injectors.items():
        rows = found.setdefault(stream, [])
        for file in sorted(Path(injector.source.path).iterdir()):
            if file.suffix == ".parquet":
                rows += pq.read_table(file).to_pylist()
            else:
                rows += [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
    return found


def folder_of(pipeline: ms.Pipeline) -> str:
    (injector,) = pipeline.topology().injectors.values()
    return str(injector.source.path)


def input_of(pipeline: ms.Pipeline) -> tuple[str, list[dict[str, Any]]]:
    ((stream, rows),) = inputs_of(pipeline).items()
    return stream, rows


def run(pipeline: ms.Pipeline, size: int = 100) -> ms.testing.LocalRunner:
    """All rows, so many of a stream in an epoch, and a drain."""
    runner = ms.testing.LocalRunner(pipeline)
    inputs = inputs_of(pipeline)
    for begin in range(0, max(map(len, inputs.values())), size):
        for stream, rows in inputs.items():
            runner.push(stream, *rows[begin : begin + size])
        runner.epoch()
    runner.drain()
    return runner


def values_of(runner: ms.testing.LocalRunner, pipeline: ms.Pipeline, sink: str) -> list[Any]:
    """What a sink gets, by the name of its folder."""
    (stream,) = [one.stream for one in pipeline.topology().emissions if Path(one.sink.path).name == sink]
    return [value for _, value, _ in runner.output(stream)]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_makes_its_input_once_and_says_where_everything_is(name: str, here: Path) -> None:
    example = load(name)
    assert [path.name for path in here.iterdir()] == ["example-output"]
    folder = example["FOLDER"]
    assert f"Everything is in {folder}:" in " ".join(example["__doc__"].split())
    assert f"    python examples/{name}.py\n" in example["__doc__"] and f"--checkpoint {folder / 'checkpoint'}\n" in example["__doc__"]
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert files and all(inputs_of(example["pipeline"]).values())
    load(name)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_leads_to_it(name: str) -> None:
    assert f"(examples/{name}.py)" in (ROOT / "README.md").read_text()


def test_sessions(here: Path) -> None:
    example = load("sessions")
    _, rows = input_of(example["pipeline"])
    assert [row["at"] for row in rows] != sorted(row["at"] for row in rows), "clicks come out of order"
    expected = []
    for user in {row["user"] for row in rows}:
        times = sorted(row["at"] for row in rows if row["user"] == user)
        begins = [at for before, at in zip([0, *times], times, strict=False) if at - before >= example["GAP"]]
        for begin, end in zip(begins, [*begins[1:], ms.END], strict=True):
            mine = [at for at in times if begin <= at < end]
            expected.append((user, {"from": begin, "seconds": (mine[-1] - begin) / 1_000, "clicks": len(mine)}, mine[-1] + example["GAP"]))
    runner = run(example["pipeline"])
    assert sorted(runner.output("sessions"), key=repr) == sorted(expected, key=repr) and len(expected) > 20
    assert runner.state("Sessions") == {} and runner.late("Sessions") == 0


def test_sessions_are_the_same_in_any_epochs_and_under_faults(here: Path) -> None:
    example = load("sessions")
    at = [100_000, 129_999, 190_000, 155_000, 159_999, 220_000, 100_000]  # lengthens, stands apart, joins, and twice the same time
    rows = [{"user": "ann", "page": "/", "at": time, "id": str(n)} for n, time in enumerate(at)]
    ms.testing.assert_exactly_once(example["pipeline"], rows, seeds=range(20))
    runner = ms.testing.LocalRunner(example["pipeline"])
    runner.push("clicks", *rows)
    runner.drain()
    assert [(value["from"], value["clicks"]) for _, value, _ in runner.output("sessions")] == [(100_000, 5), (190_000, 1), (220_000, 1)]


def test_dead_letters(here: Path) -> None:
    runner = run(load("dead_letters")["pipeline"])
    days = 1_767_225_600_000, 1_767_312_000_000
    assert sorted((key, value["day"], value["cents"]) for key, value, _ in runner.output("totals")) == [
        ("ann", days[0], 1_975),
        ("ann", days[1], 25),
        ("bob", days[0], 800),
    ]
    letters = {value["value"]["id"]: value["error"] for _, value, _ in runner.output("DailyTotal.dead-letters")}
    assert letters.keys() == {"p3", "p5", "p6"}
    assert "could not convert string to float: 'twelve'" in letters["p3"] and letters["p6"] == "ValueError: a payment of -1.00"


def test_dead_letters_are_the_same_in_any_epochs(here: Path) -> None:
    pipeline = load("dead_letters")["pipeline"]
    ms.testing.assert_same_in_any_epochs(pipeline, input_of(pipeline)[1])


@pytest.mark.slow
def test_zeitgeist(here: Path) -> None:
    example = load("zeitgeist")
    assert [spec.name for spec in example["pipeline"].topology().computations] == ["counts", "anomalies"]
    events = sorted((value for _, value, _ in run(example["pipeline"]).output("anomalies")), key=lambda value: value["at"])
    made = match(example["truth"].injected, pair(events))
    assert (len(made.matched), made.recall, made.precision) == (6, 1.0, 1.0)


def test_names(here: Path) -> None:
    pipeline = load("names")["pipeline"]
    runner = ms.testing.LocalRunner(pipeline)
    source = pipeline.topology().injectors["users"].source.path
    for file in sorted(Path(source).iterdir()):
        runner.push("users", *[json.loads(line) for line in file.read_text().splitlines()])
        runner.epoch()
    changes = [(key, change["prev"], change["next"]) for key, change, _ in runner.output("names~changelog")]
    assert ("Sue", 33, 33) not in changes and ("Joe", 4, 5) not in changes  # nobody hears of Joe
    assert ("Tod", 1, 2) in changes and ("Sam", 1, None) in changes
    assert runner.view("names") == {"Sue": 32, "Joe": 4, "Tod": 2, "Bob": 2}
    assert runner.view("sizes") == {"common": {"names": 1, "people": 32}, "rare": {"names": 3, "people": 8}}
    runner.check()


def test_nexmark(here: Path) -> None:
    """Whether the answers are right is judged in tests/operators/test_nexmark.py."""
    pipeline = load("nexmark")["pipeline"]
    runner = run(pipeline)
    told = {name: values_of(runner, pipeline, name) for name in ("hot", "highest", "new", "sessions")}
    assert all(len(answers) > 5 for answers in told.values())
    assert sum(answer["bids"] for answer in told["sessions"]) == len(inputs_of(pipeline)["bids"])
    assert {answer["end"] - answer["start"] for answer in told["hot"] + told["highest"] + told["new"]} == {10_000}


def test_orders(here: Path) -> None:
    pipeline = load("orders")["pipeline"]
    inputs = inputs_of(pipeline)
    paid_at = {row["order_id"]: row["at"] for row in inputs["payments"]}
    in_time = {row["id"] for row in inputs["orders"] if row["at"] <= paid_at.get(row["id"], 0) <= row["at"] + 30 * 60_000}
    runner = run(pipeline, 10)
    assert sorted(value["left"]["id"] for value in values_of(runner, pipeline, "paid")) == sorted(in_time)
    assert sorted(value["id"] for value in values_of(runner, pipeline, "unpaid")) == sorted(
        {row["id"] for row in inputs["orders"]} - in_time
    )
    assert any(row["at"] + 30 * 60_000 == paid_at.get(row["id"]) for row in inputs["orders"]), "just in time"
    assert len(paid_at.keys() - in_time) > 3, "some are paid too late"


def test_clicks(here: Path) -> None:
    pipeline = load("clicks")["pipeline"]
    runner = run(pipeline, 20)
    visits, late = values_of(runner, pipeline, "visits"), values_of(runner, pipeline, "late")
    assert sum(visit["clicks"] for visit in visits) + len(late) == len(input_of(pipeline)[1]) and late
    for user in ("ann", "bob", "cleo"):
        mine = sorted((visit["start"], visit["end"]) for visit in visits if visit["user"] == user)
        assert len(mine) > 3 and all(end <= start for (_, end), (start, _) in pairwise(mine))


def test_sales(here: Path) -> None:
    pipeline = load("sales")["pipeline"]
    rows = input_of(pipeline)[1]
    for told in values_of(run(pipeline), pipeline, "best"):
        sold: dict[str, int] = {}
        for row in rows:
            if row["category"] == told["category"] and told["start"] <= row["at"] < told["end"]:
                sold[row["product"]] = sold.get(row["product"], 0) + row["quantity"]
        assert told["best"] == [list(one) for one in sorted(sold.items(), key=lambda item: (-item[1], item[0]))[:5]]


def test_devices(here: Path) -> None:
    pipeline = load("devices")["pipeline"]
    offline = values_of(run(pipeline), pipeline, "offline")
    assert sorted(value["device"] for value in offline) == ["attic", "cellar", "cellar", "garden", "hall"]
    runner = ms.testing.LocalRunner(pipeline)
    runner.push("readings", *input_of(pipeline)[1])
    runner.run()
    runner.epoch()
    assert {value["device"] for value in values_of(runner, pipeline, "offline")} == {"cellar", "garden"}
    runner.advance_clock(6 * 60_000)  # and nothing comes from any of them
    runner.run()
    assert {value["device"] for value in values_of(runner, pipeline, "offline")} == {"attic", "cellar", "garden", "hall"}


def test_fraud(here: Path) -> None:
    pipeline = load("fraud")["pipeline"]
    rows = input_of(pipeline)[1]
    assert [row["at"] for row in rows] != sorted(row["at"] for row in rows), "attempts come out of order"
    runner = run(pipeline, 7)
    assert [(value["card"], value["failures"]) for value in values_of(runner, pipeline, "alerts")] == [("card 11", 3), ("card 12", 3)]
    ms.testing.assert_same_in_any_epochs(pipeline, rows[:120], seeds=range(3))


def test_codes(here: Path) -> None:
    example = load("codes")
    pipeline, (_, rows) = example["pipeline"], input_of(example["pipeline"])
    runner = ms.testing.LocalRunner(pipeline)
    runner.push("codes", *[row for row in rows if row["what"] == "sent"])
    runner.epoch()
    runner.advance_clock(example["LIMIT"] - 1)
    runner.push("codes", *[row for row in rows if row["what"] == "confirmed"])
    runner.run()
    assert runner.output("alerts") == [], "not yet"
    runner.advance_clock(example["LIMIT"])
    assert {value["card"] for _, value, _ in runner.output("alerts")} == example["GUESSED"] and len(runner.output("alerts")) == 2
    runner.advance_clock("10s")
    assert len(runner.output("alerts")) == 2, "once"
    runner.advance_clock("2h")
    assert runner.state("Unconfirmed") == {}
    ms.testing.assert_exactly_once(pipeline, rows[:12], seeds=range(10))


def test_a_code_that_is_confirmed_too_late_is_told_and_one_whose_confirmation_comes_first_is_not(here: Path) -> None:
    runner = ms.testing.LocalRunner(load("codes")["pipeline"])
    sent, confirmed = ({"card": "card 1", "code": "1", "what": what, "id": what} for what in ("sent", "confirmed"))
    for first, then in ((sent, confirmed), ({**confirmed, "code": "2"}, {**sent, "code": "2"})):
        runner.push("codes", {**first, "id": first["what"] + first["code"]})
        runner.epoch()
        runner.advance_clock("3s")
        runner.push("codes", {**then, "id": then["what"] + then["code"]})
        runner.advance_clock("3s")
    assert [value["code"] for _, value, _ in runner.output("alerts")] == ["1"]


@pytest.mark.parametrize("waits", [True, False])
def test_gateways(here: Path, waits: bool) -> None:
    """While a gateway is cut off, the others' windows wait for it; after a minute of the clock they do not, and its old readings are late."""
    pipeline = load("gateways")["pipeline"]
    runner, cut_off = ms.testing.LocalRunner(pipeline), 1_767_258_000_000 + 20 * 60_000
    for part, file in enumerate(sorted(Path(folder_of(pipeline)).iterdir())):
        runner.push("readings", *[json.loads(line) for line in file.read_text().splitlines()])
        runner.run()
        runner.epoch()
        if part == 7:
            runner.advance_clock("59s" if waits else "61s")
            runner.push("readings", {"gateway": "south", "celsius": 20.0, "at": cut_off + 20 * 60_000})
            runner.run()
            runner.epoch()
            told = {value["end"] for value in values_of(runner, pipeline, "means")}
            assert max(told) == (cut_off - 5 * 60_000 if waits else cut_off + 15 * 60_000)
    runner.drain()
    means, late = values_of(runner, pipeline, "means"), values_of(runner, pipeline, "late")
    rows = input_of(pipeline)[1]
    expected = {(row["gateway"], row["at"] // 300_000 * 300_000) for row in rows}
    assert {row["value"]["gateway"] for row in late} == (set() if waits else {"west"})
    if waits:
        assert {(row["gateway"], row["start"]) for row in means} == expected
    assert sum(row["readings"] for row in means) + len(late) == len(rows) + 1


def test_referrals(here: Path) -> None:
    example = load("referrals")
    pipeline, (_, rows) = example["pipeline"], input_of(example["pipeline"])
    by, expected = {row["user"]: row["by"] for row in rows}, {}
    for row in rows:
        above, day = row["by"], row["at"] // example["DAY"] * example["DAY"]
        for level in range(1, example["LEVELS"] + 1):
            if above is not None:
                expected[above, day] = expected.get((above, day), 0) + 2 ** (example["LEVELS"] - level)
                above = by[above]
    runner = run(pipeline, 10)
    assert {(value["user"], value["start"]): value["points"] for value in values_of(runner, pipeline, "points")} == expected
    assert len(expected) > 100 and expected["eve", 1_767_225_600_000] == 31, "the cycle of the two ends"
    first = [{"user": user, "by": by, "at": 1_000 * number} for number, (user, by) in enumerate(["a-", "ba", "cb", "dc", "ac"])]
    ms.testing.assert_exactly_once(pipeline, first, seeds=range(5))


@pytest.mark.spark
@pytest.mark.soak
def test_dead_letters_on_spark(here: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "dead_letters.py")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["ann paid 19.75 on 2026-01-01", "bob paid 8.00 on 2026-01-01", "ann paid 0.25 on 2026-01-02"]
    assert sum(line.startswith("put aside: ") for line in lines) == 4
    assert lines[-1] == "Totals are in example-output/dead-letters/totals, dead letters in example-output/dead-letters/dead."
