"""What a window operator has open, as everybody sees it who reads state, against plain Python: runners, readers of a checkpoint, commands, live servers."""

from __future__ import annotations

import copy
import json
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
import taskkit
from effort import some
from millstream.cli import main as cli
from millstream.core.keys import key_bytes, key_text, shard_of
from millstream.errors import CheckpointError, DefinitionError, RefusedRequest
from millstream.handle import Handle
from millstream.operators.pane_rows import PANES, PaneReader, UnmergedParts
from millstream.operators.panes import PaneWindow
from millstream.readable import listing, open_windows, shard_rows
from millstream.readable.listing import plain
from millstream.service.proto import service_pb2 as pb
from millstream.state.codec import msgpack
from millstream.state.manifest_log import ManifestLog
from millstream.state.reader import AsOf, CommittedState, steady
from millstream.state.storage import LocalStorage
from millstream.status import check
from millstream.status.report import overview
from operators.test_windows import KINDS, rows
from operators.windowkit import REDUCERS, pipeline, reduced

sys.path.insert(0, str(Path(__file__).parent.parent / "views"))
sys.path.insert(0, str(Path(__file__).parent.parent / "service"))
import livekit
import viewkit

#: By kind of window, how long a pane is. A local day is one.
PANE_WIDTHS = {"tumbling": 1000, "offset": 4000, "hopping": 1000, "hopping far": 1000}

Panes = dict[str, list[dict[str, Any]]]


def pane_of(name: str) -> Callable[[int], list[tuple[int, int]]]:
    """The pane of a time."""
    width = PANE_WIDTHS.get(name)
    if width is None:
        return KINDS[name][1]
    offset = 1000 if name == "offset" else 0

    def panes(time: int) -> list[tuple[int, int]]:
        start = (time - offset) // width * width + offset
        return [(start, start + width)]

    return panes


def open_panes(given: list[dict[str, Any]], name: str, low: int) -> Panes:
    """The panes that a window above the low watermark still needs, reduced from all records at once."""
    windows = KINDS[name][1]
    kept = [row for row in given if max(end for _, end in windows(row["at"])) > low]
    found: Panes = defaultdict(list)
    for (user, start, end), values in sorted(reduced(kept, pane_of(name)).items()):
        found[user].append({"start": start, "end": end, **values})
    return dict(found)


def calm(found: Any) -> Any:
    """Panes without what plain Python leaves open: which of 0.0 and -0.0 is the greatest."""
    found = copy.deepcopy(found)
    for panes in found.values():
        for pane in panes:
            pane["heavy"] = None if pane["heavy"] is None else pane["heavy"] + 0.0
    return found


def some_rows(dice: random.Random, name: str, least: int = 1) -> tuple[list[dict[str, Any]], int]:
    """Rows for a kind of window, none late, and by how much they are out of order."""
    spread = 3_600_000 if name == "day" else 400
    found = rows(dice, dice.randint(least, 60), KINDS[name][2], spread, 5 * spread)
    for row in found:
        row["weight"] = row["weight"] if row["weight"] == row["weight"] else None
    return found, 5 * spread


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=some(60), deadline=None)
@given(seed=st.integers(0, 10**9), shards=st.integers(1, 3))
def test_a_runner_shows_the_open_panes_of_plain_python_after_every_epoch(name: str, seed: int, shards: int) -> None:
    dice = random.Random(seed)
    given, disorder = some_rows(dice, name)
    runner = ms.testing.LocalRunner(pipeline(KINDS[name][0], disorder), shards=shards)
    at = 0
    while at < len(given):
        runner.push("visits", *given[at : (at := at + dice.randint(1, 20))])
        runner.epoch()
        wanted = calm(open_panes(given[:at], name, runner.low_watermark("windows")))
        assert calm(runner.state("windows")) == wanted and wanted
        user = dice.choice(["", "sue", "tod", "\0odd", "nobody"])
        assert runner.state("windows", user) == runner.state("windows").get(user)
    runner.drain()
    assert runner.state("windows") == {}


def recorded(name: str, seed: int, storage: Any = None, shards: int = 2, **more: Any) -> tuple[viewkit.Recorded, list[dict[str, Any]]]:
    """A checkpoint of some epochs, and the rows that came."""
    dice = random.Random(seed)
    given, disorder = some_rows(dice, name, 30)
    found = viewkit.Recorded(pipeline(KINDS[name][0], disorder, **more), shards=shards, storage=storage)
    at = 0
    while at < len(given):
        found.push(*given[at : (at := at + dice.randint(1, 15))], stream="visits")
        found.epoch()
    return found, given


ALL = shard_rows.Asked("windows", "state")


def with_program(found: viewkit.Recorded) -> PaneReader:
    made, kind = found.simulation.compiled.make("windows")
    assert isinstance(made, PaneWindow)
    return PaneReader.of_operator(made, kind)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("seed", range(some(12, least=3)))
def test_readers_of_a_checkpoint_see_what_the_runner_sees_with_the_program_and_without(name: str, seed: int) -> None:
    found, given = recorded(name, seed, shards=1 + seed % 3)
    low = found.latest.computations["windows"].low_watermark
    wanted = calm(open_panes(given, name, low))
    assert calm(found.runner.state("windows")) == wanted and wanted
    with CommittedState(found.log).newest() as cut:
        reader = with_program(found)
        assert calm(open_windows.states(cut, "windows", reader)) == wanted
        assert calm(open_windows.states(cut, "windows", reader, [*wanted, "nobody"])) == wanted
        listed = listing.listed(cut, "windows", 100)  # every reducer of the kit is one that can be made anew
        assert calm({row.key: row.state for row in listed.rows}) == wanted
        assert [row.key for row in listed.rows] == sorted(wanted, key=key_bytes)
        assert listed.keys == len(wanted) and listed.windows is not None
        assert listed.windows.panes == len({pane["end"] for panes in wanted.values() for pane in panes})
        (first, *_) = sorted(wanted, key=key_bytes)
        assert [row.key for row in listing.listed(cut, "windows", 1).rows] == [first]
        for key in wanted:
            (row,) = listing.looked_up(cut, "windows", [key]).rows
            assert calm({key: row.state}) == {key: wanted[key]} and row.shard == shard_of(key_bytes(key), found.shards)
        assert listing.looked_up(cut, "windows", ["nobody", 7]).rows == []
        flat = [(shard, row) for shard in range(found.shards) for row in shard_rows.rows(shard_rows.OneShard(cut, shard), ALL)]
        assert sorted(row[0] for _, row in flat) == sorted(map(shard_rows.text_of, wanted)) and all(row[1] == shard for shard, row in flat)
        assert {row[0]: len(json.loads(row[2])) for _, row in flat} == {
            shard_rows.text_of(key): len(panes) for key, panes in wanted.items()
        }
        text = shard_rows.text_of(first)
        one = ALL._replace(keys=[text])
        shards = shard_rows.shards_of(cut.computation("windows"), one, cut)
        assert [row[0] for at in shards for row in shard_rows.rows(shard_rows.OneShard(cut, at), one)] == [text]


# --- a point lookup


class Counting(AsOf):
    """A reader that counts the entries that it gives."""

    given = 0

    def scan(self, *args: Any, **options: Any) -> Iterator[tuple[bytes, bytes]]:
        for entry in super().scan(*args, **options):
            self.given += 1
            yield entry


def test_a_point_lookup_reads_the_panes_of_one_shard_and_decodes_the_rows_of_one_key() -> None:
    shards, users, epochs = 4, 200, 5
    found = viewkit.Recorded(
        pipeline(KINDS["tumbling"][0], 60_000, reducers={"landing": ms.count_distinct("page"), "n": ms.count()}), shards=shards
    )
    for epoch in range(epochs):
        few = [
            {"user": f"u{n}", "at": at * 1000, "id": f"{epoch}.{n}.{at}", "price": 1, "weight": None, "page": "home"}
            for n in range(users)
            for at in range(3)
        ]
        found.push(*few, stream="visits")
        found.epoch()
    made, kind = found.simulation.compiled.make("windows")
    assert isinstance(made, PaneWindow)
    decoded: list[bytes] = []

    def decode(raw: bytes) -> Any:
        decoded.append(raw)
        return kind.decode_sub(raw)

    reader = PaneReader(made.spec.kind, made.spec.reducers, kind.encode_sub, decode)
    with Counting(CommittedState(found.log), found.latest) as cut:
        key = key_bytes("u7")
        stored = {shard: len(list(cut.scan("windows", *PANES, shard=shard))) for shard in range(shards)}
        assert sum(stored.values()) == shards * 3 * epochs, "an entry for every shard, pane and epoch"
        cut.given = 0
        panes = open_windows.panes_of_key(cut, "windows", reader, key)
        assert panes is not None and [pane["n"] for pane in panes] == [epochs] * 3
        assert cut.given == stored[shard_of(key, shards)] == 3 * epochs
        assert len(decoded) <= 2 * 3 * epochs, "once to merge, once to show"
        decoded.clear()
        assert len(open_windows.states(cut, "windows", reader)) == users
        assert len(decoded) >= users * 3 * epochs, "who reads all decodes all"
        decoded.clear()
        assert open_windows.panes_of_key(cut, "windows", reader, b"u7x") is None and not decoded


@settings(max_examples=some(80), deadline=None)
@given(seed=st.integers(0, 10**9), start=st.binary(max_size=3), stop=st.none() | st.binary(max_size=3), at_once=st.integers(1, 9))
def test_a_range_is_what_it_is_of_all_in_order_however_few_rows_are_made_at_once(
    seed: int, start: bytes, stop: bytes | None, at_once: int
) -> None:
    dice = random.Random(seed)
    runner = ms.testing.LocalRunner(pipeline(KINDS["hopping"][0], 9_000, reducers={"n": ms.count(), "total": ms.sum("price")}), shards=2)
    for n in range(dice.randint(1, 50)):
        user = "".join(dice.choice("a\0äz") for _ in range(dice.randint(0, 2)))
        runner.push("visits", {"user": user, "at": n * 100, "id": str(n), "price": n, "weight": None, "page": None})
        if dice.random() < 0.3:
            runner.epoch()
    runner.epoch()
    engine = runner._engine
    made, kind = engine.compiled.make("windows")
    assert isinstance(made, PaneWindow)
    entries = [entry for shard in range(2) for entry in engine.stores["windows", shard].scan(*PANES)]
    reader = PaneReader.of_operator(made, kind)
    everything = dict(reader.rows(entries))
    assert list(everything) == sorted(everything, key=str.encode) and {key_text(key) for key in runner.state("windows")} == set(everything)
    reader.at_once = at_once
    wanted = {text: panes for text, panes in everything.items() if start <= text.encode() and (stop is None or text.encode() < stop)}
    assert list(reader.rows(entries, start, stop)) == list(wanted.items())


# --- other windows and reducers


def test_windows_that_results_came_from_are_told_apart_by_their_starts_as_well() -> None:
    p = ms.Pipeline("twice")
    source = ms.sources.files("in/", schema="user string, at long, id string, start long, end long")
    told = p.inject("told", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("1h"))
    told.by("user").window(ms.windows.same()).reduce(name="windows", n=ms.count(), least=ms.min("id"))
    found = viewkit.Recorded(p, shards=2)
    wanted: dict[str, dict[tuple[int, int], list[str]]] = defaultdict(lambda: defaultdict(list))
    dice = random.Random(3)
    for n in range(60):
        user, end = dice.choice("abc"), dice.choice([1000, 2000])
        start = end - dice.choice([500, 1000])
        wanted[user][end, start].append(f"{n:02d}")
        found.push({"user": user, "at": end - 1, "id": f"{n:02d}", "start": start, "end": end}, stream="told")
        if n % 7 == 0:
            found.epoch()
    found.epoch()
    shown = {
        user: [{"start": start, "end": end, "n": len(ids), "least": min(ids)} for (end, start), ids in sorted(panes.items())]
        for user, panes in wanted.items()
    }
    assert found.runner.state("windows") == shown
    with CommittedState(found.log).newest() as cut:
        assert {row.key: row.state for row in listing.listed(cut, "windows", 9).rows} == shown
        assert listing.listed(cut, "windows", 9).windows.panes == 4  # type: ignore[union-attr]
        assert [row.state for row in listing.looked_up(cut, "windows", ["b"]).rows] == [shown["b"]]


class Longest(ms.Reducer):
    """A reducer of a user's own."""

    def lift(self, value: Any) -> Any:
        return value["page"]

    def combine(self, a: Any, b: Any) -> Any:
        return max(a, b, key=lambda page: (len(page), page))

    def finish(self, total: Any) -> Any:
        return total.upper()


OWN = {"n": ms.count(), "longest": Longest(), "best": ms.top(2, "price")}


def own(storage: Any = None) -> viewkit.Recorded:
    found = viewkit.Recorded(pipeline(KINDS["tumbling"][0], 60_000, reducers=OWN), shards=2, storage=storage)
    for epoch, pages in enumerate((["a", "bb"], ["ccc"], [])):
        few = [{"user": "sue", "at": n, "id": f"{epoch}.{n}", "price": n, "weight": None, "page": page} for n, page in enumerate(pages)]
        found.push(*few, stream="visits")
        found.epoch()
    return found


def test_parts_that_only_the_program_can_merge_are_shown_as_they_are_stored() -> None:
    found = own()
    whole = {"start": 0, "end": 1000, "n": 3, "longest": "CCC", "best": [1, 0]}
    assert found.runner.state("windows") == {"sue": [whole]}
    with CommittedState(found.log).newest() as cut:
        assert open_windows.states(cut, "windows", with_program(found)) == {"sue": [whole]}
        (row,) = listing.looked_up(cut, "windows", ["sue"]).rows
        parts = {"longest": UnmergedParts(["ccc", "bb"]), "best": UnmergedParts([[0], [1, 0]])}
        (pane,) = row.state
        for name in parts:  # of two entries, in no order
            parts[name].parts.sort(key=len)
            pane[name].parts.sort(key=len)
        assert pane == {"start": 0, "end": 1000, "n": 3, **parts}
        assert plain(pane)["best"] == {"parts": [[0], [1, 0]]}


def test_stored_windows_of_other_reducers_are_refused_by_readers_too() -> None:
    found = own()
    changed = viewkit.Recorded(pipeline(KINDS["tumbling"][0], 60_000, reducers={"n": ms.count()}), shards=2)
    with CommittedState(found.log).newest() as cut, pytest.raises(CheckpointError, match=r"'windows'.*made by other reducers"):
        open_windows.states(cut, "windows", with_program(changed))


def test_what_was_pickled_is_not_loaded_unless_somebody_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reducers = {"n": ms.count(), "least": ms.min("price"), "landing": ms.count_distinct("page"), "mean": ms.mean("weight")}
    p = pipeline(KINDS["tumbling"][0], 60_000, reducers=reducers)
    p._computations[0] = msgspec.structs.replace(p._computations[0], codec=ms.codecs.pickle)
    found = viewkit.Recorded(p, shards=1)
    for n in range(3):
        found.push({"user": "sue", "at": n, "id": str(n), "price": n + 5, "weight": 0.1 + n, "page": f"p{n}"}, stream="visits")
        found.epoch()
    (wanted,) = found.runner.state("windows")["sue"]
    assert wanted == {"start": 0, "end": 1000, "n": 3, "least": 5, "landing": 3, "mean": (0.1 + 1.1 + 2.1) / 3}
    with CommittedState(found.log).newest() as cut:
        (row,) = listing.looked_up(cut, "windows", ["sue"], unpickle=True).rows
        assert row.state == [wanted]

        def load(*_: Any) -> Any:
            raise AssertionError("a pickle was loaded")

        monkeypatch.setattr("pickle.loads", load)
        (row,) = listing.looked_up(cut, "windows", ["sue"]).rows
        (pane,) = row.state
        assert pane["n"] == 3 and pane["least"] == 5, "what lies in plain columns needs no codec"
        assert [one.codec for one in pane["landing"].parts] == ["pickle"] * 3
        assert "--unpickle" in json.dumps(plain(pane))


# --- a checkpoint on disk: commands, status, live


def asked(capsys: pytest.CaptureFixture[str], *args: Any) -> tuple[int, str]:
    code = cli([str(arg) for arg in args])
    said = capsys.readouterr()
    return code, said.out + said.err


def test_commands_show_open_windows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "visits"
    found, given = recorded("tumbling", 5, LocalStorage(folder))
    state = found.latest.computations["windows"]
    wanted = calm(open_panes(given, "tumbling", state.low_watermark))
    code, said = asked(capsys, "state", folder, "windows", "--json")
    listed = json.loads(said)
    assert code == 0 and calm({row["key"]: row["state"] for row in listed["rows"]}) == wanted
    assert listed["windows"]["window"] == "tumbling('1s')" and listed["keys"] == len(wanted)
    key = next(key for key in wanted if key and not key.startswith("\0"))
    code, said = asked(capsys, "inspect", "state", folder, "windows", "--key", key, "--json")
    assert code == 0 and calm({key: json.loads(said)["rows"][0]["state"]}) == {key: wanted[key]}
    code, said = asked(capsys, "state", folder, "windows")
    assert f"{len(wanted)} keys, {listed['windows']['panes']} open windows of tumbling('1s')" in said and "timer" not in said
    code, said = asked(capsys, "state", folder, "windows", "--key", "nobody")
    assert code == 1 and "no open window for key 'nobody'" in said
    code, said = asked(capsys, "view", folder, "windows")
    assert code == 1 and "a window operator: `millstream state` shows it" in said
    code, said = asked(capsys, "status", folder)
    oldest = min(pane["end"] for panes in wanted.values() for pane in panes)
    assert code == 0 and f"the oldest ends at 1970-01-01 00:00:{oldest // 1000:02d}.000; " in said
    (one,) = overview(found.log).status.computations
    assert one.windows is not None and one.windows.next_end == oldest and (one.keys, one.timers) == (0, 0)


PROGRAM = """
import millstream as ms

class Longest(ms.Reducer):
    def lift(self, value): return value["page"]
    def combine(self, a, b): return max(a, b, key=lambda page: (len(page), page))
    def finish(self, total): return total.upper()

pipeline = ms.Pipeline("visits")
source = ms.sources.files("in/", schema="user string, at long, id string, price long, weight double, page string")
visits = pipeline.inject("visits", source, timestamp="at", id="id")
visits.by("user").window(ms.windows.tumbling("1s")).reduce(name="windows", n=ms.count(), longest=Longest(), best=ms.top(2, "price"))
"""


def test_with_the_pipelines_file_a_command_shows_what_its_own_reducers_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own(LocalStorage(tmp_path / "visits"))
    (tmp_path / "visits.py").write_text(PROGRAM)
    ask = ("state", tmp_path / "visits", "windows", "--json")
    wanted = {"start": 0, "end": 1000, "n": 3, "longest": "CCC", "best": [1, 0]}
    for more in ((), ("--key", "sue")):
        code, said = asked(capsys, *ask, *more, "--pipeline", tmp_path / "visits.py")
        assert code == 0 and json.loads(said)["rows"][0]["state"] == [wanted]
        code, said = asked(capsys, *ask, *more)
        (pane,) = json.loads(said)["rows"][0]["state"]
        assert pane["n"] == 3 and sorted(pane["longest"]["parts"]) == ["bb", "ccc"]
    code, said = asked(capsys, "state", tmp_path / "visits", "visits", "--pipeline", tmp_path / "visits.py")
    assert code == 1 and "They are: windows." in said


def test_a_check_of_views_refuses_a_window_operator() -> None:
    found, _ = recorded("tumbling", 1)
    with pytest.raises(DefinitionError, match="'windows' is a window operator"):
        check.planned(found.program, found.latest, ["windows"])
    assert check.planned(found.program, found.latest).consumers == []


@pytest.mark.parametrize("name", ["tumbling", "hopping"])
@pytest.mark.parametrize("seed", range(some(6, least=2)))
def test_live_state_has_the_open_panes_of_every_epoch(tmp_path: Path, name: str, seed: int) -> None:
    dice = random.Random(seed)
    given, disorder = some_rows(dice, name, 40)
    found = viewkit.Recorded(pipeline(KINDS[name][0], disorder), shards=2)

    async def main() -> None:
        at = 0
        async with livekit.served(found.storage, cache_folder=tmp_path) as live:
            while at < len(given):
                found.push(*given[at : (at := at + dice.randint(1, 20))], stream="visits")
                found.epoch()
                shown = found.runner.state("windows")
                wanted = calm(open_panes(given[:at], name, found.runner.low_watermark("windows")))
                assert calm(shown) == wanted
                keys = [*map(key_bytes, shown), b"nobody"]
                for form, read in ((pb.JSON, lambda value: json.loads(value)["state"]), (pb.BYTES, msgpack.decoder(object))):
                    reply = await livekit.got(live, *keys, table="windows", form=form, level=pb.LINEARIZABLE)
                    assert reply.at.epoch == found.latest.epoch
                    assert [read(value) for value in reply.values[:-1]] == list(shown.values())
                    assert (reply.values[-1], reply.versions[-1]) == (b"", 0)
                    _, scanned = await livekit.scanned(live, "windows", form=form)
                    assert {key: read(value) for key, value in scanned.items()} == {key_bytes(key): one for key, one in shown.items()}
                    _, some = await livekit.scanned(live, "windows", form=form, of={"prefix": b"s"})
                    assert list(some) == [key for key in sorted(keys) if key.startswith(b"s")]
                for part in ("timers", "holds"):
                    _, none = await scanned_if_any(live, part)
                    assert none == {}
            with pytest.raises(RefusedRequest, match="'windows' is a window operator"):
                await anext(live.watch(pb.WatchRequest(header=livekit.header("windows"))))

    livekit.run(main)


async def scanned_if_any(live: Any, part: str) -> tuple[int, dict[bytes, bytes]]:
    """A scan that may have no reply at all."""
    found: dict[bytes, bytes] = {}
    epoch = -1
    async for reply in live.scan(pb.ScanRequest(header=livekit.header("windows"), part=part)):
        found.update(zip(reply.keys, reply.values, strict=True))
        epoch = reply.at.epoch
    return epoch, found


def test_a_checkpoint_on_disk_is_read_as_a_handle_reads_it(tmp_path: Path) -> None:
    found, given = recorded("hopping", 9, LocalStorage(tmp_path))
    log = ManifestLog(LocalStorage(tmp_path))
    low = found.latest.computations["windows"].low_watermark
    shown = steady(log, lambda cut: open_windows.states(cut, "windows", with_program(found)))
    assert calm(shown) == calm(open_panes(given, "hopping", low))


def windowed(work: Path) -> tuple[ms.Pipeline, taskkit.Given]:
    """The rows of `taskkit`, in windows of a tenth of a second."""
    p, source = ms.Pipeline("kit"), taskkit.Given()
    rows = p.inject("rows", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("150ms"))
    tenths = ms.windows.tumbling("100ms")
    windows = (
        rows.by("key").window(tenths).reduce(name="windows", n=ms.count(), total=ms.sum("n"), first=ms.first("id"), best=ms.top(2, "n"))
    )
    p.emit(windows, ms.sinks.files(work / "windows"))
    return p, source


def test_a_handle_shows_what_a_resident_run_has_open(tmp_path: Path) -> None:
    """Epochs whose partial results were made where records were read, before the shard's task saw them."""
    with taskkit.ResidentRun(tmp_path, build=windowed) as run:
        handle = Handle.__new__(Handle)  # on a run without Spark: what it needs to read
        handle._program, handle._epochs = windowed(tmp_path)[0].program(), run.epochs
        for first in range(0, 600, 60):
            run.turn(*taskkit.numbered(60, first=first))
        latest = run.epochs.latest
        assert latest is not None
        low = latest.computations["windows"].low_watermark
        groups: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
        for row in taskkit.numbered(600):
            if (end := row["at"] // 100 * 100 + 100) > low:
                groups[row["key"]][end].append(row)
        wanted = {
            key: [
                {
                    "start": end - 100,
                    "end": end,
                    "n": len(mine),
                    "total": sum(row["n"] for row in mine),
                    "first": mine[0]["id"],
                    "best": sorted((row["n"] for row in mine), reverse=True)[:2],
                }
                for end, mine in sorted(panes.items())
            ]
            for key, panes in groups.items()
        }
        assert handle.state("windows") == wanted and len(wanted["k7"]) == 2
        assert handle.state("windows", "k7") == wanted["k7"] and handle.state("windows", 7) is None


def test_the_reducers_of_the_kit_can_all_be_made_anew() -> None:
    found, _ = recorded("tumbling", 0)
    shape = found.latest.computations["windows"].window
    assert shape is not None and all(shape.reducers.values()) and list(shape.reducers) == list(REDUCERS)
