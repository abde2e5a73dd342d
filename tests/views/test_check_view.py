"""Are views right? What is right passes; every kind of damage is found and named; and a rebuild repairs it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from viewjob import people
from viewkit import SCHEMA, Recorded, user
from viewmodel import Model, pipeline_of

import millstream as ms
from effort import some
from millstream.cli import main
from millstream.core.keys import key_bytes
from millstream.core.keyspace import ROW, SUB, encode_row, encode_sub_key, sub_prefix
from millstream.engine.epochs import wall_clock
from millstream.engine.repair import mark_for_rebuild
from millstream.readable import relations
from millstream.state import heartbeat
from millstream.state.reader import CommittedState
from millstream.state.storage import LocalStorage
from millstream.status.check import CheckReport, checked_here, planned
from millstream.views.agg_tree import address

encode, decode = ms.codecs.msgpack.encoder(), ms.codecs.msgpack.decoder(object)


@pytest.fixture(scope="module")
def made() -> Recorded:
    """Four hundred Sues, so that there are leaves and two levels of nodes; and some others."""
    found = Recorded(people())
    found.push(*[user(at, "Sue", age=at % 40) for at in range(400)], user(1000, "Ann", age=7), user(1001, "Tod"), user(1002, "Ann", age=31))
    found.epoch()
    found.push(user(3, "Ánn", ts=2), user(4, "", ts=2, gone=True))
    found.epoch()
    return found


@pytest.fixture
def recorded(made: Recorded) -> Recorded:
    return made.copied()


def check(recorded: Recorded, *views: str, sample: float = 1.0) -> CheckReport:
    return checked_here(recorded.program, recorded.log, planned(recorded.program, recorded.latest, views, sample))


def told(report: CheckReport) -> list[tuple[Any, ...]]:
    return [(one.view, one.group, one.what, one.origin) for one in report.first]


# --- what is right


@pytest.mark.parametrize("inline", [1024, 0])
@pytest.mark.parametrize("seed", range(some(5, least=2)))
def test_what_the_protocol_has_made_is_right(seed: int, inline: int) -> None:
    dice = random.Random(seed)
    model = Model(dice, ids=40, names=4)
    recorded = Recorded(pipeline_of(dice.random() < 0.7, inline), shards=dice.randint(1, 3))
    for _ in range(4):
        recorded.push(*[model.post() for _ in range(dice.randrange(40))])
        recorded.epoch()
    report = check(recorded)
    assert not report.first and not report.skipped
    assert report.judgements["names"].contributions == len(model.users)


def test_everything_is_looked_at(recorded: Recorded) -> None:
    report = check(recorded)
    assert not report.count
    assert {name: (one.groups, one.contributions) for name, one in report.judgements.items()} == {
        "names": (4, 402),
        "least": (4, 402),
        "lean": (4, 402),
        "ages": (4, 402),
        "sizes": (2, 4),
        "pairs": (403, 402),
        "friends": (3, 402),
    }


# --- damage: each kind is found, and named


def leaf(recorded: Recorded, view: str, group: Any, at: int) -> tuple[bytes, bytes, Any]:
    row_key = key_bytes(group)
    entry = sub_prefix(row_key, "nodes") + encode_sub_key(at)
    raw = recorded.entry(view, row_key, entry)
    assert raw is not None
    return row_key, entry, decode(raw)


def a_contribution(recorded: Recorded) -> list[tuple[Any, ...]]:
    recorded.change("names", "Ann", lambda row: row[5].update({"\0i1000": [1, 1]}))
    return [("names", "Ann", "contribution", 1000)]


def a_foreign_contribution(recorded: Recorded) -> list[tuple[Any, ...]]:
    recorded.change("names", "Ann", lambda row: (row[5].update({"\0i77": [1]}), row.__setitem__(2, 3), None)[2])
    return [("names", "Ann", "contribution", 77)]


def a_missing_contribution(recorded: Recorded) -> list[tuple[Any, ...]]:
    recorded.change("names", "Ann", lambda row: row[5].pop("\0i1002") and None)
    return [("names", "Ann", "contribution", 1002), ("names", "Ann", "count", None)]


def a_total(recorded: Recorded) -> list[tuple[Any, ...]]:
    recorded.change("names", "Sue", lambda row: row.__setitem__(3, [398, 400]))
    return [("names", "Sue", "total", None)]


def what_is_shown(recorded: Recorded) -> list[tuple[Any, ...]]:
    recorded.change("names", "Tod", lambda row: row.__setitem__(4, [17]))
    return [("names", "Tod", "shown", None), ("sizes", "common", "contribution", "Tod"), ("sizes", "rare", "contribution", "Tod")]


def a_generation(recorded: Recorded) -> list[tuple[Any, ...]]:
    recorded.change("names", "Tod", lambda row: row.__setitem__(0, 9))
    return [("names", "Tod", "generation", None)]


def a_whole_group(recorded: Recorded) -> list[tuple[Any, ...]]:
    row_key = key_bytes("Tod")
    recorded.damage("lean", row_key, {ROW + row_key: None})
    return [("lean", "Tod", "contribution", 1001)]


def a_foreign_group(recorded: Recorded) -> list[tuple[Any, ...]]:
    _, row = recorded.row("lean", "Tod")
    row_key = key_bytes("Bob")
    recorded.damage("lean", row_key, {ROW + row_key: encode_row(row)})
    return [("lean", "Bob", "count", None), ("lean", "Bob", "total", None), ("lean", "Bob", "shown", None)]


def a_leaf(recorded: Recorded) -> list[tuple[Any, ...]]:
    row_key, entry, found = leaf(recorded, "least", "Sue", 0)
    origin = next(iter(found))
    recorded.damage("least", row_key, {entry: encode({**found, origin: [500]})})
    return [("least", "Sue", "contribution", int(origin[2:]))]


def a_node(recorded: Recorded) -> list[tuple[Any, ...]]:
    row_key, entry, found = leaf(recorded, "least", "Sue", address(1, 0))
    recorded.damage("least", row_key, {entry: encode([found[0] + 1, *found[1:]])})
    return [("least", "Sue", "node", "level 1, node 0"), ("least", "Sue", "node", "level 2, node 0")][:1]


def a_reference(recorded: Recorded) -> list[tuple[Any, ...]]:
    row_key = key_bytes("Sue")
    start = sub_prefix(row_key, "nodes")
    recorded.damage("ages", row_key, {start + encode_sub_key("0/nobody"): (3).to_bytes(8, "big")})
    return [("ages", "Sue", "node", "references to 0/nobody")]


def a_stray_leaf(recorded: Recorded) -> list[tuple[Any, ...]]:
    row_key = key_bytes("Tod")
    recorded.damage("least", row_key, {sub_prefix(row_key, "nodes") + encode_sub_key(0): encode({"\0i9": [1]})})
    return [("least", "Tod", "node", "nothing in its row")]


def a_leaf_of_nobody(recorded: Recorded) -> list[tuple[Any, ...]]:
    row_key = key_bytes("Bob")
    recorded.damage("least", row_key, {sub_prefix(row_key, "nodes") + encode_sub_key(0): encode({"\0i9": [1]})})
    return [("least", "Bob", "node", "nothing in its row")]


def a_leaf_that_is_no_leaf(recorded: Recorded) -> list[tuple[Any, ...]]:
    row_key, entry, _ = leaf(recorded, "least", "Sue", 1)
    recorded.damage("least", row_key, {entry: b"\xc1"})
    return [("least", "Sue", "row", None)]


def the_number_of_leaves(recorded: Recorded) -> list[tuple[Any, ...]]:
    recorded.change("least", "Ann", lambda row: row.__setitem__(1, 10**9))
    return [
        ("least", "Ann", "contribution", 1000),
        ("least", "Ann", "contribution", 1002),
        ("least", "Ann", "count", None),
        ("least", "Ann", "total", None),
        ("least", "Ann", "node", "the number of leaves"),
    ]


def a_row_that_is_no_row(recorded: Recorded) -> list[tuple[Any, ...]]:
    row_key = key_bytes("Tod")
    recorded.damage("names", row_key, {ROW + row_key: b"\xc1"})
    return [("names", "Tod", "row", None), ("names", "Tod", "document", None), ("sizes", "rare", "contribution", "Tod")]


def a_left_document(recorded: Recorded) -> list[tuple[Any, ...]]:
    recorded.change("pairs", 7, lambda row: row[2].pop("\0i1000") and None)
    return [("pairs", 7, "left", 1000), ("pairs", 7, "count", None), ("friends", "Sue", "contribution", (7, 1000))]


def a_right_document(recorded: Recorded) -> list[tuple[Any, ...]]:
    recorded.change("pairs", 31, lambda row: row[0][0].update({"name": "Bob"}))
    return [("pairs", 31, "right", None)]


def a_document(recorded: Recorded) -> list[tuple[Any, ...]]:
    recorded.change("users", 1001, lambda row: row.__setitem__(1, encode(user(1001, "Todd"))))
    return [("names", "Tod", "contribution", 1001), ("names", "Todd", "contribution", 1001)]


def a_document_that_does_not_map(recorded: Recorded) -> list[tuple[Any, ...]]:
    recorded.change("users", 1001, lambda row: row.__setitem__(1, encode({"age": 30})))
    return [("users", 1001, "document", None)]


def a_document_that_is_none(recorded: Recorded) -> list[tuple[Any, ...]]:
    recorded.change("users", 1001, lambda row: row.__setitem__(1, b"\xc1"))
    return [("users", 1001, "document", None)]


DAMAGES = [
    a_contribution,
    a_foreign_contribution,
    a_missing_contribution,
    a_total,
    what_is_shown,
    a_generation,
    a_whole_group,
    a_foreign_group,
    a_leaf,
    a_node,
    a_reference,
    a_stray_leaf,
    a_leaf_of_nobody,
    a_leaf_that_is_no_leaf,
    the_number_of_leaves,
    a_row_that_is_no_row,
    a_left_document,
    a_right_document,
    a_document,
    a_document_that_does_not_map,
    a_document_that_is_none,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_found_and_named(damage: Any, recorded: Recorded) -> None:
    expected = damage(recorded)
    report = check(recorded)
    assert set(expected) <= set(told(report)), told(report)
    views = {one[0] for one in expected}
    assert (
        damage in (a_document, a_document_that_does_not_map, a_document_that_is_none, a_right_document)
        or set(name for name, one in report.judgements.items() if one.by_what) == views
    ), "nothing else is called wrong"


# --- and repaired, by a rebuild


def latest(rows: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """What published changes lead to; every prev is the next before it."""
    now: dict[Any, Any] = {}
    for key, change in rows:
        assert now.get(key) == change["prev"] != change["next"], (key, change)
        now[key] = change["next"]
    return {key: value for key, value in now.items() if value is not None}


def mark(recorded: Recorded, program: Any = None) -> CheckReport:
    report = check(recorded)
    unreadable = {name: report.judgements[name].unreadable for name in report.wrong}
    mark_for_rebuild(program or recorded.simulation.program, recorded.log, report.epoch, unreadable)
    return report


def repaired(recorded: Recorded) -> CheckReport:
    """Marked, and run until nothing is being filled any more."""
    mark(recorded)
    recorded.restart()
    for _ in range(12):
        if not any(build.is_filling for build in recorded.latest.builds.values()):
            break
        recorded.epoch()
    return check(recorded)


def shown(recorded: Recorded, name: str) -> dict[Any, Any]:
    return relations.at(recorded.log, None, lambda cut: relations.by_key(relations.shown(cut, name)))


IN_JOINS = (a_left_document, a_right_document, a_document, a_document_that_does_not_map, a_document_that_is_none)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [one for one in DAMAGES if one not in IN_JOINS], ids=lambda damage: damage.__name__)
def test_a_damaged_view_is_right_after_a_repair_and_a_run(damage: Any, recorded: Recorded) -> None:
    damage(recorded)
    after = repaired(recorded)
    assert not after.skipped and not after.count, after.first
    for name in ("names", "least", "lean", "ages", "sizes", "friends"):
        assert shown(recorded, name) == recorded.runner.view(name)
    recorded.push(user(2000, "Ann", age=9), user(1000, "Sue", ts=9))
    recorded.epoch()
    assert not check(recorded).count


def test_a_view_that_is_marked_shows_what_it_showed_until_the_cutover(recorded: Recorded) -> None:
    what_is_shown(recorded)
    before = shown(recorded, "names")
    mark(recorded)
    assert shown(recorded, "names") == before and before["Tod"] == 17
    assert "its generation 2 is not complete" in check(recorded).skipped["names"]


def test_published_changes_have_what_was_shown_and_what_is_right(recorded: Recorded) -> None:
    before = {name: len(recorded.published(f"{name}~changelog")) for name in ("names", "sizes")}
    a_missing_contribution(recorded)
    a_total(recorded)
    recorded.change("names", "Sue", lambda row: row.__setitem__(4, [400]))
    assert check(recorded).count
    repaired(recorded)
    more = {name: recorded.published(f"{name}~changelog")[n:] for name, n in before.items()}
    assert more["names"] == [("Sue", {"prev": 400, "next": 398})], "the others were shown as they should be"
    assert more["sizes"] == []


def test_several_damages_at_once_in_a_view_and_in_one_on_it(recorded: Recorded) -> None:
    """The view on it is right by the damaged rows in one place, by the right ones in another, and by neither in a third."""
    what_is_shown(recorded)  # sizes was told 1
    recorded.change("names", "Ann", lambda row: row.__setitem__(4, [9]))
    recorded.change("sizes", "common", lambda row: [*row[:2], 2, [2, 407], row[4], {**row[5], "Ann": [9]}])
    recorded.change("sizes", "rare", lambda row: row[5].update({"nobody": [5]}))
    assert not repaired(recorded).count
    assert latest(recorded.published("sizes~changelog")) == recorded.runner.view("sizes")


def test_a_drained_checkpoint_is_repaired(recorded: Recorded) -> None:
    recorded.driver.epochs.drain(lambda: False)
    a_total(recorded)
    what_is_shown(recorded)
    mark(recorded)
    recorded.restart()
    recorded.driver.epochs.settle(lambda: False)
    report = check(recorded)
    assert recorded.latest.drained and not report.skipped and not report.count
    assert recorded.published("names~changelog")[-1] == ("Tod", {"prev": 17, "next": 1})


@pytest.mark.parametrize("seed", range(some(8, least=3)))
def test_random_damage_to_rows_and_nodes_is_repaired(seed: int) -> None:
    dice = random.Random(seed)
    model = Model(dice, ids=60, names=3)
    recorded = Recorded(pipeline_of(True, dice.choice([0, 60, 1024])), shards=2)
    for _ in range(3):
        recorded.push(*[model.post() for _ in range(60)])
        recorded.epoch()
    for _ in range(6):
        name, shard = dice.choice(["names", "sums", "tags", "sizes", "least", "all", "some", "friends", "inner_friends"]), dice.randrange(2)
        cut = CommittedState(recorded.log).newest()
        entries = [entry for entry in cut.scan(name, b"", b"\xff", shard=shard) if entry[0][:1] in (ROW, SUB)]
        if not entries:
            continue
        entry, raw = dice.choice(entries)
        row_key = entry[1:] if entry.startswith(ROW) else entry[5 : 5 + int.from_bytes(entry[1:5], "big")]
        others = [other for at, other in entries if at[:1] == entry[:1]]
        recorded.damage(name, row_key, {entry: dice.choice([None, dice.choice(others), raw[: dice.randrange(len(raw))]])})
    assert not repaired(recorded).count
    recorded.push(*[model.post() for _ in range(20)])
    recorded.epoch()
    assert not check(recorded).count


def test_twin_a_row_that_cannot_be_read_stops_the_run_if_it_is_not_deleted(recorded: Recorded) -> None:
    a_row_that_is_no_row(recorded)
    mark_for_rebuild(recorded.simulation.program, recorded.log, recorded.latest.epoch, {"names": []})
    with pytest.raises(msgspec.DecodeError):
        recorded.restart()


def test_what_the_last_run_committed_and_did_not_publish_is_published_before_the_mark(recorded: Recorded) -> None:
    recorded.restart()
    recorded.driver.epochs.publishing.publish = lambda *args: None  # it died before
    recorded.push(user(2000, "Zoe"))
    recorded.epoch()
    assert "Zoe" not in dict(recorded.published("names~changelog"))
    mark_for_rebuild(recorded.simulation.program, recorded.log, recorded.latest.epoch, {"least": []})
    assert dict(recorded.published("names~changelog"))["Zoe"] == {"prev": None, "next": 1}


@pytest.mark.parametrize("damage", [a_left_document, a_right_document, a_document], ids=lambda damage: damage.__name__)
def test_a_join_that_differs_is_refused_by_name_and_nothing_is_marked(damage: Any, recorded: Recorded) -> None:
    damage(recorded)
    epoch = recorded.latest.epoch
    with pytest.raises(ms.errors.CheckpointError, match="join 'pairs' differs, and a join cannot be filled anew under its name"):
        mark(recorded)
    assert recorded.latest.epoch == epoch


def test_a_repair_wants_the_pipeline_that_wrote_the_checkpoint(recorded: Recorded) -> None:
    a_total(recorded)
    epoch = recorded.latest.epoch
    more = people()
    more.table("others", ms.sources.files("others/", schema=SCHEMA), key="id")
    with pytest.raises(ms.errors.CheckpointError, match="others is new, gone or changed"):
        mark(recorded, more.program())
    assert recorded.latest.epoch == epoch


def test_nothing_is_marked_if_an_epoch_came_in_between(recorded: Recorded) -> None:
    a_total(recorded)
    epoch = check(recorded).epoch
    recorded.restart()
    recorded.push(user(2000, "Ann"))
    recorded.epoch()
    with pytest.raises(ms.errors.CheckpointError, match="an epoch was committed since"):
        mark_for_rebuild(recorded.simulation.program, recorded.log, epoch, {"names": []})


def test_a_run_that_goes_on_beside_the_repair_stops(recorded: Recorded) -> None:
    a_total(recorded)
    recorded.restart()
    mark(recorded)
    recorded.push(user(2000, "Ann"))
    with pytest.raises(ms.errors.Fenced):
        recorded.epoch()


# --- what is not checked, and samples


def test_what_is_not_complete_is_not_checked_and_it_is_said_why(recorded: Recorded) -> None:
    changed = ms.Pipeline("people")
    users = changed.table("users", ms.sources.files("in/", schema=SCHEMA), key="id", version="ts", deleted="gone")
    names = users.by("age").reduce(ms.count(), name="names", version=2)
    names.by(lambda row: row.value).reduce(ms.count(), name="more")
    sizes = planned(changed.program(), recorded.latest)
    assert sizes.consumers == [] and sizes.senders == ["users"]
    assert sizes.skipped["names"].startswith("its generation 2 is not complete") and "the next run fills it" in sizes.skipped["more"]
    assert planned(recorded.program, recorded.latest, ["users"]).senders == ["users"]
    with pytest.raises(ms.errors.DefinitionError, match="no view is called 'nobody'; there are: names, least"):
        planned(recorded.program, recorded.latest, ["nobody"])


def test_a_view_behind_a_strong_edge_is_checked_when_everything_has_arrived() -> None:
    pipeline = ms.Pipeline("people")
    users = pipeline.table("users", ms.sources.files("in/", schema=SCHEMA), key="id", version="ts", deleted="gone")
    users.by("name").reduce(ms.count(), name="names", production=ms.STRONG)
    recorded = Recorded(pipeline)
    recorded.push(user(1, "Sue"))
    recorded.epoch()
    assert "over a strong edge" in check(recorded).skipped["names"]
    recorded.epoch()
    report = check(recorded)
    assert not report.skipped and not report.count and report.judgements["names"].contributions == 1


def test_other_code_under_the_same_version_is_refused(recorded: Recorded) -> None:
    changed = ms.Pipeline("people")
    users = changed.table("users", ms.sources.files("in/", schema=SCHEMA), key="id", version="ts", deleted="gone")
    users.by("age").reduce(ms.count(), name="names")
    with pytest.raises(ms.errors.CheckpointError, match="its code has changed"):
        planned(changed.program(), recorded.latest)


def test_a_sample_looks_at_some_groups_and_at_all_of_them() -> None:
    pipeline = ms.Pipeline("people")
    users = pipeline.table("users", ms.sources.files("in/", schema=SCHEMA), key="id", version="ts", deleted="gone")
    users.by("name").reduce(ms.count(), name="names")
    recorded = Recorded(pipeline)
    recorded.push(*[user(at, f"n{at // 2}") for at in range(800)])
    recorded.epoch()
    for group in range(20):
        recorded.change("names", f"n{group}", lambda row: row.__setitem__(4, [17]))
    counts = []
    for sample in (0.1, 0.5, 1.0):
        report = check(recorded, sample=sample)
        judged = report.judgements["names"]
        assert judged.contributions == 2 * judged.groups and set(judged.by_what) <= {"shown"}
        counts.append((judged.groups, report.count))
    assert 10 < counts[0][0] < 90 and 140 < counts[1][0] < 260 and counts[2] == (400, 20)
    assert counts[0][1] <= counts[1][1] < 20, "a larger sample holds the smaller one"


# --- from the command line


@pytest.fixture
def command(recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.syspath_prepend(str(tmp_path))
    job = Path(__file__).with_name("viewjob.py")

    def run(*args: object) -> tuple[int, str, str]:
        if not Path("checkpoint").exists():
            recorded.saved(tmp_path / "checkpoint")
        code = main(["check-view", str(job), "--checkpoint", "checkpoint", *map(str, args)])
        return code, *capsys.readouterr()

    return run


def test_the_command_says_that_all_is_right(command: Any) -> None:
    code, out, err = command()
    assert (
        code == 0
        and "names: right (4 groups, 402 contributions)" in out
        and out.endswith("nothing differs from what the documents come to\n")
    )
    assert "check-view: checking 7 views and joins against " in err and "in this process" in err
    code, out, _ = command("names", "--sample", "50%")
    assert code == 0 and "names: right" in out and "least" not in out


def test_the_command_names_what_differs_and_repairs_it(command: Any, recorded: Recorded) -> None:
    a_node(recorded)
    what_is_shown(recorded)
    code, out, _ = command()
    assert code == 1 and "view 'least', group 'Sue': the node of 'level 1, node 0' is " in out
    assert "view 'names', group 'Tod': the shown is 17 instead of 1" in out and "sizes: differences: 2 of a contribution" in out
    code, out, _ = command("--repair", "--local")
    *_, marks, run = out.splitlines()
    assert code == 0 and marks.startswith(
        "epoch 4 marks names, least, sizes: the next run fills what is marked anew, beside what it shows now"
    )
    assert run.startswith("Run: millstream run ") and "--checkpoint " in run
    code, out, _ = command("--repair")
    assert code == 0 and "names: not checked: its generation 2 is not complete" in out


def test_the_command_says_the_same_as_json(command: Any, recorded: Recorded) -> None:
    code, out, _ = command("--json")
    found = json.loads(out)
    assert code == 0 and found["differences"] == 0 and found["views"]["names"] == {"groups": 4, "contributions": 402, "differences": {}}
    Path("checkpoint").rename("right")
    what_is_shown(recorded)
    code, out, _ = command("--json", "names")
    found = json.loads(out)
    assert code == 1 and found["differences"] == 1 and found["views"]["names"]["differences"] == {"shown": 1}
    assert found["first"] == ["view 'names', group 'Tod': the shown is 17 instead of 1"] and found["not_checked"] == {}


def test_a_table_has_as_many_rows_for_one_command_as_for_another(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = command("names")
    main(["view", "checkpoint", "--json"])
    (users,) = [one for one in json.loads(capsys.readouterr().out)["relations"] if one["name"] == "users"]
    assert f"against {users['rows']:,} rows of users" in err


def test_the_state_of_a_table_is_its_documents(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    command("names")
    main(["view", "checkpoint", "users", "--json", "--limit", "500"])
    shown = {json.dumps(row["key"]): row for row in json.loads(capsys.readouterr().out)["rows"]}
    main(["state", "checkpoint", "users", "--json", "--limit", "500"])
    kept = json.loads(capsys.readouterr().out)["rows"]
    assert {json.dumps(row["key"]): row["state"]["document"] for row in kept if not row["state"]["deleted"]} == {
        key: row["value"] for key, row in shown.items()
    }
    assert all(row["state"]["document"] is None for row in kept if row["state"]["deleted"]) and shown


def test_many_differences_are_counted_and_the_first_are_told(command: Any, recorded: Recorded) -> None:
    recorded.damage("names", key_bytes("Sue"), {ROW + key_bytes("Sue"): None})
    code, out, _ = command("names")
    assert code == 1 and "differences, the first 20:" in out and len([line for line in out.splitlines() if line.startswith("  view")]) == 20
    assert "names: differences: 398 of a contribution" in out


def test_the_command_refuses_what_makes_no_sense(command: Any, recorded: Recorded) -> None:
    assert "no share" in command("--sample", "200%")[2] and "no view is called 'nobody'" in command("nobody")[2]
    heartbeat.say(LocalStorage(Path("checkpoint")), heartbeat.Alive("1-x", wall_clock(), "host", 7, "running"))
    code, _, err = command("--repair")
    assert code == 1 and "a driver is at work" in err and "process 7 on host" in err
    assert command()[0] == 0, "a check may run beside it"
    assert main(["check-view", "nowhere.py"]) == 2
    Path("other.py").write_text(Path(__file__).with_name("viewjob.py").read_text().replace('Pipeline("people")', 'Pipeline("other")'))
    assert main(["check-view", "other.py", "--checkpoint", "checkpoint"]) == 1


def test_documents_that_cannot_be_read_are_beyond_repair(command: Any, recorded: Recorded) -> None:
    a_document_that_is_none(recorded)
    code, out, err = command("--repair")
    assert code == 1 and "'users', document 1001: cannot be read: " in out and "marks" not in out
    assert "a fill would stop at the documents of users" in err and "restore the checkpoint" in err


def test_a_sample_cannot_be_repaired(command: Any) -> None:
    code, _, err = command("--repair", "--sample", "50%")
    assert code == 2 and "leave out --sample" in err
