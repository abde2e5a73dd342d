"""Live state as people see it: rows as `millstream state --json` shows them, tables and views as `millstream view --json` does; pickles stay closed."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from livekit import Checkpoint, got, header, row, run, scanned, served

import millstream as ms
from effort import some
from millstream.cli import main as cli
from millstream.core.keys import key_bytes
from millstream.core.keyspace import ROW, decode_row, encode_sub_key, sub_prefix
from millstream.errors import RefusedRequest, TooLarge
from millstream.service.limits import LIMIT, pages
from millstream.service.live.backend import LiveBackend
from millstream.service.proto import service_pb2 as pb
from millstream.simulation.simulated_run import InputPlan
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import LocalStorage
from sparklog import SparkLogDriver, SparkLogSimulation

NOON = 1_714_564_800_000
SCHEMA = "id long, name string, age long, ts long, gone boolean"


@dataclass
class Visit:
    started: int = 0
    pages: ms.MapState = field(default_factory=ms.MapState)


class Visits(ms.Computation):
    State = Visit

    def process_record(self, record: ms.Record) -> None:
        self.state.started = self.state.started or record.timestamp
        for at in range(record.value["age"]):
            self.state.pages[at] = record.value["name"]
        self.set_timer("idle", record.timestamp + 1_000, kind=ms.WALL_CLOCK)
        self.set_timer("close", record.timestamp + 60_000, hold=record.timestamp)

    def process_timer(self, timer: ms.Timer) -> None:
        self.state.started += 1


class Closed(ms.Computation):
    State = set
    codec = ms.codecs.pickle

    def process_record(self, record: ms.Record) -> None:
        self.state.add(record.value["name"])


def people() -> ms.Pipeline:
    pipeline = ms.Pipeline("people")
    users = pipeline.table("users", ms.sources.files("in/", schema=SCHEMA), key="id", version="ts", deleted="gone")
    users.by("name").reduce(ms.count(), name="names")
    users.by("age").join(users, name="pairs", how="left")
    return pipeline


def visits() -> ms.Pipeline:
    pipeline = ms.Pipeline("visits")
    stream = pipeline.inject("seen", ms.sources.files("in/", schema="id long, name string, age long, ts long"), timestamp="ts")
    pipeline.compute(Visits, stream, key="id")
    pipeline.compute(Closed, stream, key="id")
    return pipeline


def written(folder: Path, pipeline: ms.Pipeline, stream: str, *epochs: list[dict[str, Any]]) -> Path:
    """A checkpoint in a folder, by the production protocol with simulated tasks."""
    simulation = SparkLogSimulation(pipeline.program(), InputPlan([], []), [], seed=1, shards=3, storage=LocalStorage(folder))
    ManifestLog(simulation.storage).identify(pipeline.name, 3, 3, list(pipeline.topology().injectors))
    driver = SparkLogDriver(simulation)
    for number, rows in enumerate(epochs):
        simulation.plan.epochs.append([(stream, one) for one in rows])
        simulation.plan.clock.append(NOON + 1000 * number)
        driver.run(simulation.plan.epochs[-1], number)
    return folder


def user(id: int, name: str, age: int = 30, ts: int = 1, gone: bool = False) -> dict[str, Any]:
    return {"id": id, "name": name, "age": age, "ts": ts, "gone": gone}


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    assert cli(list(args)) == 0
    return json.loads(capsys.readouterr().out)


def asked(folder: Path, cache_folder: Path, ask: Any) -> Any:
    async def main() -> Any:
        async with served(folder, cache_folder=cache_folder) as live:
            return await ask(live)

    return run(main)


def test_a_row_is_what_the_command_line_shows(tmp_path, capsys):
    rows = [{"id": at % 4, "name": f"n{at}", "age": at * 5, "ts": NOON + at} for at in range(8)]
    folder = written(tmp_path / "c", visits(), "seen", rows[:5], rows[5:])
    for name in ("Visits", "Closed"):
        for key in range(4):
            (shown,) = printed(capsys, "state", str(folder), name, "--key", str(key), "--json")["rows"]
            found = asked(folder, tmp_path / "r", lambda live, n=name, k=key: got(live, key_bytes(k), table=n, form=pb.JSON))
            assert json.loads(found.values[0]) == shown
        _, every = asked(folder, tmp_path / "r", lambda live, n=name: scanned(live, n, form=pb.JSON))
        assert sorted(every) == sorted(key_bytes(k) for k in range(4))
        assert json.loads(every[key_bytes(1)])["key"] == 1
    assert len(shown["maps"]) == 0 and shown["state"]["codec"] == "pickle"


def test_timers_holds_and_maps_by_themselves(tmp_path, capsys):
    folder = written(
        tmp_path / "c", visits(), "seen", [{"id": 7, "name": "x", "age": 25, "ts": NOON}, {"id": 8, "name": "y", "age": 0, "ts": NOON}]
    )
    (shown,) = printed(capsys, "state", str(folder), "Visits", "--key", "7", "--limit", "25", "--json")["rows"]

    async def ask(live: LiveBackend) -> None:
        for form in (pb.JSON, pb.BYTES):
            decode = json.loads if form == pb.JSON else msgspec.msgpack.decode
            _, timers = await scanned(live, "Visits", form=form, of={"part": "timers"})
            assert sorted(timers) == [key_bytes(7), key_bytes(8)]
            found = decode(timers[key_bytes(7)])
            assert found == (shown["timers"] if form == pb.JSON else [[t["time"], t["tag"], t["kind"], t["hold"]] for t in shown["timers"]])
            _, holds = await scanned(live, "Visits", form=form, of={"part": "holds", "prefix": key_bytes(8)})
            assert list(holds) == [key_bytes(8)]
            _, pages = await scanned(live, "Visits", form=form, of={"part": "map:pages", "prefix": key_bytes(7)})
            values = [decode(value) for value in pages.values()]
            assert values == ([{"key": k, "value": v} for k, v in shown["maps"][0]["first"]] if form == pb.JSON else ["x"] * 25)
            assert (await scanned(live, "Visits", form=form, of={"part": "map:pages", "prefix": key_bytes(8)}))[1] == {}
        with pytest.raises(RefusedRequest, match='has the parts "" '):
            await scanned(live, "Visits", of={"part": "windows"})

    asked(folder, tmp_path / "r", ask)


def test_tables_views_and_joins_are_what_they_show(tmp_path, capsys):
    folder = written(
        tmp_path / "c",
        people(),
        "users",
        [user(7, "Sue", 7), user(8, "Sue", 9), user(9, "Ann", 7, ts=3), user(10, "Tod")],
        [user(9, "Ánn", 8, ts=4), user(10, "", ts=5, gone=True)],
    )
    for name in ("users", "names", "pairs"):
        shown = printed(capsys, "view", str(folder), name, "--json")["rows"]

        async def ask(live: LiveBackend, name: str = name, shown: list[dict[str, Any]] = shown) -> None:
            found = [
                (key, json.loads(value))
                async for reply in live.scan(pb.ScanRequest(header=header(name, form=pb.JSON)))
                for key, value in zip(reply.keys, reply.values, strict=True)
            ]
            assert [value for _, value in found] == shown and [key for key, _ in found] == [key_bytes(one["key"]) for one in shown]
            for one in shown:
                reply = await got(live, key_bytes(one["key"]), table=f"people/{name}", form=pb.JSON)
                assert json.loads(reply.values[0]) == ([one] if name == "pairs" else one)
            gone = await got(live, key_bytes(10), b"nobody", table=name, form=pb.JSON)
            assert list(gone.versions) == [0, 0], "a deleted document is kept, and not shown"
            if name == "pairs":
                with pytest.raises(RefusedRequest, match="is a join"):
                    await anext(live.watch(pb.WatchRequest(header=header(name, form=pb.JSON))))

        asked(folder, tmp_path / "r", ask)


class Trap:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_nothing_that_was_pickled_is_ever_loaded(tmp_path):
    trap = tmp_path / "sprung"
    world = Checkpoint()
    world.codec = "pickle"
    bait = pickle.dumps(Trap(str(trap)))
    world.commit(C={ROW + b"a": row(bait), sub_prefix(b"a", "pages") + encode_sub_key(1): bait})

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path / "r") as live:
            for form in (pb.BYTES, pb.JSON):
                found = await got(live, "a", form=form)
                assert found.versions[0]
                await scanned(live, form=form)
                stream = live.watch(pb.WatchRequest(header=header(form=form)))
                assert (await anext(stream)).keys
                await stream.aclose()  # type: ignore[attr-defined]
            assert "pickle" in json.loads(found.values[0])["state"]["codec"]

    run(main)
    assert not trap.exists()
    pickle.loads(decode_row(world.rows_at(0)[b"a"]).state)
    assert trap.exists(), "it is a trap"


@settings(max_examples=some(50), deadline=None, database=None)
@given(st.lists(st.integers(0, 400_000), max_size=12), st.integers(0, 14), st.booleans())
def test_portions_are_small_and_together_all(sizes: list[int], limit: int, in_thread: bool) -> None:
    rows = [(b"%d" % at, bytes(size)) for at, size in enumerate(sizes)]

    async def main() -> list[Any]:
        return [one async for one in pages(islice(((*row, 7) for row in rows), limit or None), in_thread=in_thread)]

    found = asyncio.run(main())
    assert [row[:2] for page in found for row in page] == rows[: limit or None]
    assert all(sum(len(key) + len(value) for key, value, _ in page) <= LIMIT for page in found) and all(found[1:])


def test_a_row_that_no_message_can_carry_is_named(tmp_path):
    world = Checkpoint()
    world.put(C={"large": bytes(3 << 20)})

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path) as live:
            with pytest.raises(TooLarge, match="3,145,7"):
                await got(live, "large")
            with pytest.raises(TooLarge, match="large"):
                await scanned(live)

    run(main)


def test_a_long_scan_gives_way_to_others(tmp_path):
    world = Checkpoint()
    world.commit(C={ROW + b"%06d" % at: row(b"x" * 20) for at in range(40_000)})

    async def main() -> None:
        async with served(world.storage, cache_folder=tmp_path) as live:
            await got(live, "000000")
            scan = asyncio.ensure_future(scanned(live, level=pb.SESSION))
            turns = 0
            while not scan.done():
                await got(live, "000001", level=pb.SESSION)
                await asyncio.sleep(0)
                turns += 1
            assert turns > 5 and len((await scan)[1]) == 40_000

    run(main)
