"""The join of streams: what an epoch reads, what it keeps, who sees that, what becomes of bad input; and twins, which show that the tests can fail."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opkit import joined, late_ids, left_over, many_rows, pair_ids, pipelines, small
from test_oracle import interval_join

import millstream as ms
from effort import some
from millstream.cli import main as cli
from millstream.core.arrivals import Arrivals
from millstream.core.keys import key_bytes, key_text
from millstream.core.outcome import Outcome, Times
from millstream.core.record import ListBatch
from millstream.core.time import BEGINNING, END
from millstream.engine.columns.arrow_rows import ArrowInputs
from millstream.engine.columns.keying import Keying
from millstream.engine.program import Compiled
from millstream.engine.resident.partitioning import joined as put_together
from millstream.errors import HookError, InputError, RefusedRequest
from millstream.operators import interval_join as operator
from millstream.operators import waiting
from millstream.operators.expressions import NotInColumns
from millstream.operators.interval_join import IntervalJoin, JoinStep
from millstream.operators.pairs import sides_column
from millstream.readable import listing, open_windows
from millstream.service.proto import service_pb2 as pb
from millstream.state.codec import msgpack
from millstream.state.memory_storage import MemoryStore
from millstream.state.reader import CommittedState
from millstream.state.storage import LocalStorage
from millstream.status.report import overview
from millstream.testing import LocalRunner

sys.path.insert(0, str(Path(__file__).parent.parent / "views"))
sys.path.insert(0, str(Path(__file__).parent.parent / "service"))
import livekit
import viewkit

ARROW = pa.schema([("k", pa.string()), ("at", pa.int64()), ("id", pa.string()), ("n", pa.int64())])
Row = dict[str, Any]


def pipeline(how: str = "outer", after: str = "400ms", before: str = "200ms", **options: Any) -> ms.Pipeline:
    p = ms.Pipeline("pairs")
    source = ms.sources.files("in/", schema="k string, at long, id string, n long")
    left, right = (
        p.inject(name, source, timestamp="at", id="id", watermark=ms.watermarks.bounded("200ms"), dedup=None) for name in ("left", "right")
    )
    pairs = left.by("k").join(right.by("k"), after=after, before=before, how=how, late="late", name="pairs", **options)
    p.emit(pairs, ms.sinks.memory(), ids=True)
    return p


class Counting(MemoryStore):
    """A store that says how many bytes were read."""

    read = 0

    def get(self, key: bytes) -> bytes | None:
        found = super().get(key)
        self.read += len(found or b"")
        return found

    def keys(self, start: bytes, stop: bytes) -> Any:
        return (key for key, _ in self.scan(start, stop))


class OneShard:
    """A join on one shard, without engine: rows in, what it does out, epoch by epoch."""

    def __init__(self, p: ms.Pipeline) -> None:
        self.program = p.program()
        self.compiled = Compiled(self.program)
        self.keyings = [Keying(self.program, self.program.topology.injectors[name], ARROW, 1) for name in ("left", "right")]
        self.store = Counting()
        self.epochs = 0

    def run(self, arrivals: Any, late_before: int, low: int) -> Outcome:
        group = self.compiled.topology.levels[0][0]
        times = {"pairs": Times(0, late_before, low, self.epochs, least=late_before)}
        outcome = self.compiled.run_group(group, {"pairs": arrivals}, {"pairs": self.store}, times)["pairs"]
        self.store.apply(outcome.delta)
        self.epochs += 1
        return outcome

    def columns(self, lefts: list[Row], rights: list[Row], late_before: int = BEGINNING, low: int = BEGINNING) -> Outcome:
        """An epoch of rows that come as columns."""
        made = [
            keying.keyed(pa.Table.from_pylist(rows, schema=ARROW), 0)
            for keying, rows in zip(self.keyings, (lefts, rights), strict=True)
            if rows
        ]
        inputs = ArrowInputs(self.compiled, [keying.layout for keying in self.keyings], put_together(made) if made else None)
        inputs.take(())
        return self.run(inputs.arrivals("pairs", {}), late_before, low)

    def records(self, lefts: list[Row], rights: list[Row], late_before: int = BEGINNING, low: int = BEGINNING) -> Outcome:
        """An epoch of rows that come one by one."""
        given = [("left", row) for row in lefts] + [("right", row) for row in rights]
        arrivals = Arrivals.of(
            [(key_text(row["k"]), row["at"], row["id"], ListBatch(stream, [dict(row)], [row["id"]]), 0) for stream, row in given]
        )
        return self.run(arrivals, late_before, low)


def row(at: int, id: str, k: str = "a", n: int = 0) -> Row:
    return {"k": k, "at": at, "id": id, "n": n}


def ids_of(outcome: Outcome) -> list[tuple[Any, Any]]:
    values = [value for result in outcome.results for value in result.values()]
    return sorted(((v["left"] and v["left"]["id"], v["right"] and v["right"]["id"]) for v in values), key=repr)


# --- the same on every path


def random_rows(dice: random.Random, base: int, side: str) -> list[Row]:
    return [
        row(base + dice.randint(-700, 300), f"{side}{base}-{n % 9}", dice.choice(["sue", "tod", "\0x", "ä"]), n)
        for n in range(dice.randint(0, 12))
    ]


@settings(max_examples=some(100), deadline=None)
@given(seed=st.integers(0, 10**9), how=st.sampled_from(operator.HOWS), inline=st.sampled_from([1024, 60]))
def test_columns_in_any_order_and_records_come_to_the_same_entries_results_and_counts(seed: int, how: str, inline: int) -> None:
    check(seed, how, inline)


def check(seed: int, how: str = "outer", inline: int = 60) -> None:
    dice = random.Random(seed)
    ways = OneShard(pipeline(how)), OneShard(pipeline(how)), OneShard(pipeline(how))
    late_before = BEGINNING
    with small(inline):
        for number in range(8):
            base = 1_000_000 + number * 250
            lefts, rights = random_rows(dice, base, "l"), random_rows(dice, base, "r")
            low = END if number == 7 else max(late_before, base - 400)
            a = ways[0].columns(lefts, rights, late_before, low)
            b = ways[1].columns(dice.sample(lefts, len(lefts)), dice.sample(rights, len(rights)), late_before, low)
            c = ways[2].records(lefts, rights, late_before, low)
            encode = ways[0].compiled.encode_value
            for x in (b, c):
                assert x.delta == a.delta
                assert [one.content(encode) for one in x.results] == [one.content(encode) for one in a.results]
                assert sorted(map(repr, x.productions)) == sorted(map(repr, a.productions))
                x.counts.last_late = a.counts.last_late
                assert x.counts == a.counts
            late_before = low
    assert not ways[0].store.entries and a.counts.next_low is None


def test_a_pair_has_one_id_whoever_comes_first_and_every_pair_another() -> None:
    found = []
    for order in ((0, 1), (1, 0), (None, None)):
        one, sides = OneShard(pipeline()), ([row(100, "l"), row(101, "m")], [row(100, "r")])
        outcomes = (
            [one.columns(*sides)]
            if order[0] is None
            else [one.columns(*(rows if at == n else [] for at, rows in enumerate(sides))) for n in order]
        )
        found.append(
            sorted(p.id for outcome in outcomes for result in outcome.results for p in result.productions(one.compiled.encode_value))
        )
    assert found[0] == found[1] == found[2] and len(set(found[0])) == 2


# --- what an epoch reads and writes


def test_an_epoch_of_one_record_reads_what_can_match_where_one_key_has_all_that_waits() -> None:
    one = OneShard(pipeline("outer", after="16s", before="0s"))
    one.columns([row(n, f"l{n}") for n in range(100_000)], [], low=0)
    stored = sum(map(len, one.store.entries.values()))
    one.store.read = 0
    outcome = one.columns([], [row(20_000, "r")], 0, 0)
    assert len(ids_of(outcome)) == 16_001
    matched = stored * 16_001 / 100_000
    assert matched < one.store.read < 1.3 * matched, "the buckets that reach into the interval, and no other"
    assert sum(len(data or b"") for data in outcome.delta.values()) < 16_001 / 8 + 2_000, "a bit for every partner"
    one.store.read = 0
    assert ids_of(one.columns([], [row(200_000, "far")], 0, 0)) == [] and one.store.read < 100


def test_an_epoch_of_one_record_reads_few_chunks_where_many_keys_wait() -> None:
    one = OneShard(pipeline("left", after="16s", before="0s"))
    one.columns([row(n % 16_000, f"l{n}", f"key {n}") for n in range(100_000)], [], low=0)
    stored = sum(map(len, one.store.entries.values()))
    one.store.read = 0
    outcome = one.columns([], [row(15_999, "r", "key 31")], 0, 0)
    assert ids_of(outcome) == [("l31", "r")]
    assert 0 < one.store.read < stored / 12, "a chunk of each bucket"
    assert len(outcome.delta) < 5 and sum(len(data or b"") for data in outcome.delta.values()) < 500


def test_an_epoch_that_tells_a_record_looks_at_its_bucket_and_reads_its_chunk() -> None:
    one = OneShard(pipeline("left", after="16s", before="0s"))
    one.columns([row(n % 16_000, f"l{n}", f"key {n}") for n in range(100_000)], [], low=0)
    one.columns([], [row(n, f"r{n}", f"key {n}") for n in range(16_000) if n != 40], 0, 0)
    stored = sum(map(len, one.store.entries.values()))
    one.store.read = 0
    assert len(ids_of(one.columns([], [], 0, 16_040))) == 6 * 40, "of seven keys at a time, one has its partner"
    assert one.store.read < stored / 8
    one.store.read = 0
    assert one.columns([], [], 16_040, 16_040).delta == {} and one.store.read < 100
    assert len(ids_of(one.columns([], [], 16_040, 16_041))) == 7 and one.store.read < stored / 8


def test_a_bucket_has_few_entries_however_many_epochs_it_lasts() -> None:
    one = OneShard(pipeline("inner", after="1600s", before="0s"))
    most = written = 0
    for n in range(600):
        outcome = one.columns([row(n, f"l{n}", f"key {n % 7}", n)], [], 0, 0)
        most = max(most, len(one.store.entries))
        written += sum(len(data or b"") for data in outcome.delta.values())
    assert most < 6 * waiting.MERGED
    stored = sum(map(len, one.store.entries.values()))
    assert written < 8 * stored, "a record is written again as often as its run moves up"
    assert len(ids_of(one.columns([], [row(600, "r", f"key {n}") for n in range(7)], 0, 0))) == 600 - 1 + 1


def test_twin_the_cost_of_many_keys_shows_without_hashes_in_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_of_them(self: waiting.Side, hashes: Any, first: int, last: int) -> list[bytes]:
        return self._names(waiting.first_name(self.side, first), waiting.first_name(self.side, last + 1))

    monkeypatch.setattr(waiting.Side, "_holding", all_of_them)
    with pytest.raises(AssertionError, match="a chunk of each bucket"):
        test_an_epoch_of_one_record_reads_few_chunks_where_many_keys_wait()


def test_keys_that_share_a_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "crc32", lambda text: 7)
    with small(60):
        runner = LocalRunner(joined(IntervalJoin, 30, 10, how="outer"))
        pushed = many_rows(60)
        for stream, one in pushed:
            runner.push(stream, one)
            runner.epoch()
        runner.drain()
    assert pair_ids(runner) == interval_join(pushed, 30, 10, "outer") and left_over(runner) == []


# --- twins


def nulls_beside_pairs() -> bool:
    """Whether a record is told both with a partner and without one, or twice with the same."""
    runner = LocalRunner(joined(IntervalJoin, 50, 50, how="outer", delay=0))
    for stream, one in (("left", row(100, "l")), ("right", row(120, "r")), ("left", row(130, "l2")), ("left", row(500, "x", "z"))):
        runner.push(stream, {name: one[name] for name in ("k", "at", "id")})
        runner.run()
    runner.drain()
    told = [pair[:2] for pair in pair_ids(runner)]
    assert {("l", "r"), ("l2", "r"), ("x", None)} <= set(told)
    return len(told) > 3


def test_no_record_is_told_with_a_partner_and_without() -> None:
    assert not nulls_beside_pairs()


@pytest.mark.parametrize("forgets", ["mark", "fresh"])
def test_twin_partners_that_are_not_noted_are_told_without_one(forgets: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if forgets == "mark":
        monkeypatch.setattr(waiting.Side, "mark", lambda self, name, places: None)
    else:
        monkeypatch.setattr(waiting.Side, "_write_paired", lambda self, name, paired: None)
    assert nulls_beside_pairs()


def test_twin_a_row_without_partner_that_comes_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def early() -> list[Any]:
        runner = LocalRunner(joined(IntervalJoin, 50, how="left", delay=0))
        runner.push("left", {"k": "a", "at": 100, "id": "l"})
        for stream in ("left", "right"):
            runner.advance_watermark(stream, 150)
        return pair_ids(runner)

    assert early() == [], "a right one at 150 is still allowed"
    real = JoinStep._expiries
    monkeypatch.setattr(JoinStep, "_expiries", lambda self, side, times: real(self, side, times) - 1)
    assert early() == [("l", None, 150)]


def test_twin_a_chunk_that_is_not_in_order_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting.WaitingRecords, "in_order", lambda self: self)
    with pytest.raises(AssertionError):
        for seed in range(20):
            check(seed)


def test_twin_a_look_that_is_not_worked_out_again_leaves_records_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def left() -> list[bytes]:
        runner = LocalRunner(joined(IntervalJoin, 50, how="left", delay=0))
        runner.push("left", *({"k": "a", "at": at, "id": str(at)} for at in (100, 900)))
        for stream in ("left", "right"):
            runner.advance_watermark(stream, 400)
        runner.drain()
        return left_over(runner)

    assert left() == []
    monkeypatch.setattr(JoinStep, "_first_look", lambda self, side: [])
    assert left() != []


def test_twin_what_was_told_before_the_epoch_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> Counter[Any]:
        runner = LocalRunner(joined(IntervalJoin, 500, how="left", delay=0))
        runner.push("left", *({"k": "a", "at": at, "id": str(at)} for at in (100, 105, 110)))
        for low in (601, 606, 611):
            for stream in ("left", "right"):
                runner.advance_watermark(stream, low)
        runner.drain()
        return Counter(pair[0] for pair in pair_ids(runner))

    assert told() == {"100": 1, "105": 1, "110": 1}
    real = JoinStep._expired

    def forgets(self: JoinStep, side: int, fresh: Any, is_due: bool) -> Any:
        if is_due:
            self._look = BEGINNING
        return real(self, side, fresh, is_due)

    monkeypatch.setattr(JoinStep, "_expired", forgets)
    assert told().total() > 3


# --- bad input


def test_values_of_any_type_are_joined_and_come_back_as_the_codec_has_them() -> None:
    class Makes(ms.Computation):
        State = type(None)

        def process_record(self, record: ms.Record) -> None:
            self.produce(VALUES[record.value["id"]])

    p = ms.Pipeline("values")
    source = ms.sources.files("in/", schema="k string, at long, id string")
    sides = []
    for name in ("left", "right"):
        rows = p.inject(name, source, timestamp="at", id="id", watermark=ms.watermarks.bounded("20ms"))
        sides.append(p.compute(Makes, rows, key="k", name=f"made_{name}", produces=f"values_{name}"))
    pairs = sides[0].by(lambda r: r.key).join(sides[1].by(lambda r: r.key), after="50ms", before="50ms", how="outer", name="pairs")
    p.emit(pairs, ms.sinks.memory())
    runner = LocalRunner(p)
    given = {name: {"k": name if name == "alone" else "a", "at": 100, "id": name} for name in VALUES}
    runner.push("left", *given.values())
    runner.epoch()
    runner.push("right", given["huge"])
    runner.drain()
    came = msgpack.decoder(object)(msgpack.encoder()(VALUES))
    wanted = [{"left": came[name], "right": came["huge"]} for name in VALUES if name != "alone"] + [{"left": came["alone"], "right": None}]
    assert sorted((value for _, value, _ in runner.output("pairs")), key=repr) == sorted(wanted, key=repr)


VALUES: dict[str, Any] = {
    "number": 1,
    "large": 2**80,
    "text": "x" * 10,
    "none": None,
    "list": [1, (2, 3)],
    "bytes": b"\0\xff",
    "float": -0.0,
    "huge": "y" * (3 * waiting.BYTES),
    "alone": {"a": {"b": [None]}},
}


@pytest.mark.parametrize("dead", [True, False])
def test_a_value_that_cannot_be_kept_is_named_and_costs_no_other(dead: bool) -> None:
    p = ms.Pipeline("bad")
    source = ms.sources.files("in/", schema="k string, at long, id string")
    left, right = (p.inject(name, source, timestamp="at", id="id", watermark=ms.watermarks.bounded("20ms")) for name in ("left", "right"))
    options: dict[str, Any] = {"on_error": ms.DEAD_LETTER} if dead else {}
    pairs = left.by("k").join(right.by("k"), after="50ms", name="pairs", **options)
    p.emit(pairs, ms.sinks.memory())
    runner = LocalRunner(p)
    broken = {"k": "a", "at": 100, "id": "bad"}
    made = runner._engine.compiled.encode_value

    def fragile(value: Any) -> bytes:
        if isinstance(value, dict) and value == broken:
            raise ValueError("not this one")
        return made(value)

    runner._engine.compiled.encode_value = fragile
    runner.push("left", {"k": "a", "at": 100, "id": "l"}, broken)
    runner.push("right", {"k": "a", "at": 120, "id": "r"})
    if not dead:
        with pytest.raises(HookError, match=r"(?s)'pairs', key 'a'.*not this one.*while handling: Record\(stream='left'.*'bad'"):
            runner.epoch()
        return
    runner.drain()
    assert [(value["left"]["id"], value["right"]["id"]) for _, value, _ in runner.output("pairs")] == [("l", "r")]
    assert runner.dead("pairs") == 1


def test_a_record_without_a_key_is_refused_by_name_or_becomes_a_dead_letter() -> None:
    with pytest.raises(InputError, match=r"stream 'left' into computation 'pairs'.*key.*null"):
        runner = LocalRunner(pipeline())
        runner.push("left", {"k": None, "at": 100, "id": "l", "n": 0})
        runner.epoch()
    runner = LocalRunner(pipeline(on_error=ms.DEAD_LETTER))
    runner.push("left", {"k": None, "at": 100, "id": "l", "n": 0}, row(100, "m"))
    runner.drain()
    assert runner.dead("pairs") == 1 and len(runner.output("pairs")) == 1


def test_times_and_intervals_at_the_ends_of_time() -> None:
    one = OneShard(pipeline("outer", after="3650000d", before="3650000d"))
    assert one.columns([row(END - 1, "l"), row(BEGINNING + 1, "m")], [row(END - 5, "r")], BEGINNING, BEGINNING).counts.keys == 3
    assert ids_of(one.columns([], [row(BEGINNING + 2, "s")], BEGINNING, 0)) == [("m", "s")]
    assert ids_of(one.columns([], [], 0, END)) == []
    assert not one.store.entries


# --- who sees what waits


def waits(given: list[tuple[str, Row]], low: int, after: int, before: int) -> dict[str, list[str]]:
    """By key, the ids of records that still may have a partner."""
    found: dict[str, list[str]] = {}
    for stream, one in sorted(given, key=lambda pushed: (pushed[1]["at"], pushed[0], pushed[1]["id"])):
        if one["at"] + (after if stream == "left" else before) >= low:
            found.setdefault(one["k"], []).append(one["id"])
    return found


def recorded(storage: Any = None) -> tuple[viewkit.Recorded, list[tuple[str, Row]]]:
    found, given = viewkit.Recorded(pipeline(), shards=2, storage=storage), []
    for n in range(60):
        given.append((("left", "right")[n // 3 % 2], row(1_000 + 10 * n, f"id{n:02}", "abc"[n % 3], n)))
        found.push(given[-1][1], stream=given[-1][0])
        if n % 7 == 0:
            found.epoch()
    given.append(("left", row(1_500, "alone", "d")))
    found.push(given[-1][1], stream="left")
    found.epoch()
    found.epoch()
    return found, given


def test_everybody_sees_the_records_that_wait(tmp_path: Path) -> None:
    found, given = recorded()
    state = found.latest.computations["pairs"]
    wanted = waits(given, state.low_watermark, 400, 200)
    shown = found.runner.state("pairs")
    assert list(shown) == sorted(wanted)
    for key, ids in wanted.items():
        kept = [one["id"] for one in shown[key]]
        assert set(ids) <= set(kept) and len(kept) - len(ids) < 6, "those of the oldest bucket stay with it"
        assert [one["timestamp"] for one in shown[key]] == sorted(one["timestamp"] for one in shown[key])
    first = shown["a"][0]
    assert set(first) == {"side", "timestamp", "id", "paired", "value"} and first["value"]["id"] == first["id"]
    assert {one["paired"] for some in shown.values() for one in some} == {True, False}
    with CommittedState(found.log).newest() as cut:
        reader = open_windows.reader_of(state, msgpack.decoder(object))
        assert open_windows.states(cut, "pairs", reader) == shown
        assert open_windows.states(cut, "pairs", reader, ["b", "nobody"]) == {"b": shown["b"]}
        assert dict(open_windows.panes(cut, "pairs", reader, b"b", b"c")) == {"b": shown["b"]}
        listed = listing.listed(cut, "pairs", 2)
        assert (listed.keys, [view.state for view in listed.rows]) == (4, [shown["a"], shown["b"]])
        assert [view.state for view in listing.looked_up(cut, "pairs", ["c", "nobody"]).rows] == [shown["c"]]
    (status,) = [one for one in overview(found.log).status.computations if one.name == "pairs"]
    assert status.kept == sum(map(len, shown.values())) and (status.keys, status.timers) == (0, 0)

    async def main() -> None:
        async with livekit.served(found.storage, cache_folder=tmp_path) as live:
            ways: list[tuple[Any, Callable[[bytes], Any]]] = [
                (pb.JSON, lambda value: json.loads(value)["state"]),
                (pb.BYTES, msgpack.decoder(object)),
            ]
            for form, read in ways:
                reply = await livekit.got(live, b"a", b"nobody", table="pairs", form=form, level=pb.LINEARIZABLE)
                assert [read(reply.values[0]), reply.values[1]] == [shown["a"], b""]
                _, scanned = await livekit.scanned(live, "pairs", form=form)
                assert {key: read(value) for key, value in scanned.items()} == {key_bytes(key): one for key, one in shown.items()}
            with pytest.raises(RefusedRequest, match="'pairs' is a join, and what waits in it cannot be watched"):
                await anext(live.watch(pb.WatchRequest(header=livekit.header("pairs"))))

    livekit.run(main)


def test_the_command_shows_what_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, _ = recorded(LocalStorage(tmp_path))
    assert cli(["inspect", "state", str(tmp_path), "pairs", "--json"]) == 0
    assert [one["state"] for one in json.loads(capsys.readouterr().out)["rows"]] == list(found.runner.state("pairs").values())
    assert cli(["inspect", "state", str(tmp_path), "pairs", "--key", "d"]) == 0
    assert "alone" in capsys.readouterr().out
    assert cli(["inspect", "state", str(tmp_path), "pairs", "--key", "nobody"]) == 1
    assert "No record of it waits for a partner" in capsys.readouterr().err
    assert cli(["status", str(tmp_path)]) == 0
    assert "kept for partners to come" in capsys.readouterr().out


def test_the_plan_says_what_a_join_does() -> None:
    p = pipeline()
    p.emit(ms.Stream("pairs", p).map({"left": "left.id"}), ms.sinks.memory())
    plan = p.explain()
    assert "pairs: on columns" in plan and "keeps: the records of both sides, in columns by side and span of time; no timers" in plan
    assert "map {'left': left.id}: on columns" in plan and "keeps: nothing" in plan


# --- what reads a join


class Seen(ms.Computation):
    State = type(None)

    def process_record(self, record: ms.Record) -> None:
        self.produce([record.key, record.value, record.id])


@pytest.mark.parametrize(
    "values", [[1, "text"], [None, 7, 8], [{"a": 1, "b": [2]}, {"a": None, "b": 3}], [{"a": 1}, {"b": 2}], [{1: 2}], [{"a": 2**70}]]
)
def test_a_side_is_a_column_where_its_values_are_alike(values: list[Any]) -> None:
    try:
        column = sides_column([*values, None], "left")
    except NotInColumns:
        assert values not in ([None, 7, 8],)
        return
    wanted = [{"a": 1}, {"a": None}] if values[0].__class__ is dict else values
    assert column.to_pylist() == [*wanted, None]


def test_steps_behind_a_join_give_the_same_on_columns_and_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> list[Any]:
        p = joined(IntervalJoin, 30, 10, how="outer")
        out = ms.Stream("out", p)
        p.emit(out.filter("left.at > 10").map({"id": "left.id", "other": "right.id"}), ms.sinks.memory(), name="mapped", ids=True)
        p.emit(out.flat_map(lambda r: [r.value["left"], r.value["right"]]), ms.sinks.memory(), name="both", ids=True)
        p.compute(Seen, out.map("left.id"), produces="seen")
        out.by(lambda r: r.key).window(ms.windows.tumbling("90ms")).reduce(
            n=ms.count("left"), first=ms.first("left"), some=ms.any_value("right"), name="counts"
        )
        runner = LocalRunner(p, shards=2)
        for stream, one in many_rows(60):
            runner.push(stream, one)
            runner.epoch()
        runner.drain()
        return [sorted(map(repr, runner.records(stream))) for stream in ("out~1", "out~2", "counts", "seen")]

    columns = told()
    assert all(len(some) > 20 and len(set(some)) == len(some) for some in columns[:2]) and len(columns[2]) > 3
    monkeypatch.setattr("millstream.operators.pairs.PairResults.rows", lambda self: None)
    assert told() == columns


def test_what_a_function_makes_of_a_pair_is_what_a_production_of_it_would_carry() -> None:
    for made, shown in ((lambda r: (r.value["left"]["id"], {"b", "a"}), [["l", ["a", "b"]]]), (lambda r: object(), None)):
        p = pipeline("inner")
        p.emit(ms.Stream("pairs", p).map(made), ms.sinks.memory())
        one = OneShard(p)
        made_of = one.compiled.topology.levels[0][0]
        times = {name: Times(0, BEGINNING, BEGINNING, 0) for name in made_of.computations}
        given = [(stream, row(100, stream[0])) for stream in ("left", "right")]
        arrivals = Arrivals.of([("a", r["at"], r["id"], ListBatch(stream, [r], [r["id"]]), 0) for stream, r in given])
        stores = {name: MemoryStore() for name in made_of.computations}
        if shown is None:
            with pytest.raises(HookError, match=r"(?s)'pairs~1', key 'a'.*the value produced on stream 'pairs~1' cannot be encoded"):
                one.compiled.run_group(made_of, {"pairs": arrivals}, stores, times)
        else:
            (result,) = one.compiled.run_group(made_of, {"pairs": arrivals}, stores, times)["pairs~1"].results
            assert list(result.values()) == shown


def test_a_join_and_what_is_behind_it_are_exactly_once_under_faults_in_any_epochs() -> None:
    p = pipeline()
    pairs = ms.Stream("pairs", p)
    p.emit(pairs.map({"k": "coalesce(left.k, right.k)", "n": "left.n"}), ms.sinks.memory(), name="mapped")
    named = pairs.filter("right.k is null").by(lambda r: r.value["left"]["k"]).window(ms.windows.tumbling("1s"))
    named.reduce(n=ms.count(), name="alone")
    rows = [(("left", "right")[n * 7 % 5 % 2], row(1_000 + 40 * n - n * 13 % 170, f"id{n}", "abc"[n % 3], n)) for n in range(60)]
    with small(60):
        ms.testing.assert_exactly_once(p, rows, seeds=range(some(30, 3)))


def test_windows_behind_a_join_count_its_pairs() -> None:
    p = pipelines()["outer"]
    ms.Stream("out", p).by(lambda r: r.key).window(ms.windows.tumbling("100ms")).reduce(n=ms.count(), name="counts")
    runner = LocalRunner(p)
    runner.push("left", *(one for stream, one in many_rows(60) if stream == "left"))
    runner.push("right", *(one for stream, one in many_rows(60) if stream == "right"))
    runner.drain()
    assert sum(value["n"] for _, value, _ in runner.output("counts")) == len(runner.output("out")) > 30
    assert runner.late("counts") == 0 and late_ids(runner) == set() and np.all(np.diff([at for _, _, at in runner.output("counts")]) >= 0)
