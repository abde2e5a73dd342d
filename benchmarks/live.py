"""The live state of a pipeline, without Spark: `python -m benchmarks.live`.

A checkpoint in a folder, 200,000 rows in 4 shards, of which each epoch changes 10,000, written by hand.

1. Looking for an epoch when there is none: microseconds.
2. Applying an epoch: microseconds per changed row; with a watcher of everything too. And the first load.
3. Freshness: a server in a process of its own; from the creation of a manifest until a watcher has the mark of that epoch.
4. Get, 32 in flight, at the level LINEARIZABLE and at SESSION, against a bare grpc.aio server that sends back a reply of the same size.

Targets: 20 µs a look, 6 µs a row, fresh within 100 ms (median) and 300 ms (p99), 0.85 of the echo. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import random
import statistics
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc.aio

from millstream.core.keys import shard_of
from millstream.core.keyspace import ROW, Row, encode_row
from millstream.service.blocking import ServerThread
from millstream.service.live.backend import LiveServer
from millstream.service.live.epochs import PinnedEpochs
from millstream.service.live.history import ChangeHistory
from millstream.service.live.tailer import ManifestTailer
from millstream.service.proto import service_pb2 as pb
from millstream.state.compaction import unit_name
from millstream.state.manifest import ComputationState, Manifest, ShardState
from millstream.state.manifest_log import ManifestLog
from millstream.state.segment import SegmentRef, encode_segment
from millstream.state.storage import LocalStorage

ROWS, CHANGED, SHARDS = 200_000, 10_000, 4
GET = "/millstream.v1.Data/Get"


class Writer:
    """Commits epochs by hand."""

    def __init__(self, folder: str) -> None:
        self.log = ManifestLog(LocalStorage(folder))
        self.log.identify("live", SHARDS, SHARDS, [])
        self.chains: list[list[SegmentRef]] = [[] for _ in range(SHARDS)]
        self.dice = random.Random(1)
        self.epoch = -1
        self.made: dict[int, float] = {}

    def commit(self, rows: range | list[int]) -> None:
        self.epoch += 1
        deltas: list[list[tuple[bytes, bytes | None]]] = [[] for _ in range(SHARDS)]
        state = encode_row(Row(b"%050d" % self.epoch, [(self.epoch, "close")]))
        for row in sorted(rows):
            key = b"user-%06d" % row
            deltas[shard_of(key, SHARDS)].append((ROW + key, state))
        for shard, delta in enumerate(deltas):
            data, name = encode_segment(delta), unit_name(self.epoch, str(shard))
            self.log.storage.put(name, data)
            self.chains[shard].append(SegmentRef(name, 0, len(data), len(delta), self.epoch, self.epoch))
        shards = [ShardState(list(chain)) for chain in self.chains]
        computations = {"C": ComputationState(low_watermark=self.epoch, shards=shards)}
        assert self.log.commit(Manifest(self.epoch, "1-a", int(time.time() * 1000), [(0, "1-a")], computations=computations))
        self.made[self.epoch] = time.monotonic()

    def some(self) -> None:
        self.commit(self.dice.sample(range(ROWS), CHANGED))


def applied(folder: str, rounds: int) -> dict[str, float]:
    """Looks and applications, in this thread."""
    writer = Writer(folder)
    writer.commit(range(ROWS))
    epochs, history = PinnedEpochs(Path(folder) / "copies"), ChangeHistory()
    tailer = ManifestTailer(writer.log, epochs, history)
    found = {"live_first_load_s": _timed(lambda: tailer.poll())}
    for name, watched in (("live_apply_us", False), ("live_apply_watched_us", True)):
        if watched:
            history.begin("C")
        times = []
        for _ in range(rounds):
            writer.some()
            times.append(_timed(lambda: tailer.poll()) / CHANGED * 1e6)
        found[name], found[f"{name}_best"] = statistics.median(times), min(times)
    tailer.poll()
    looks = [_timed(lambda: [tailer.poll() for _ in range(1000)]) * 1e3 for _ in range(5)]
    found["live_look_us"] = min(looks)
    epochs.close()
    return found


def _timed(act: Any) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def serve(folder: str, told: Connection) -> None:
    told.send(ServerThread(LiveServer(folder, "127.0.0.1:0", cache_folder=f"{folder}/served")).address)
    threading.Event().wait()


def echo(folder: str, told: Connection) -> None:
    """Sends back the same reply, whatever is asked; made anew each time, as a server must."""

    async def main() -> None:
        async def handle(request: pb.GetRequest, context: Any) -> pb.GetReply:
            return pb.GetReply(at=pb.Position(lsn=1, epoch=1, low_watermark=1), values=[bytes(64)], versions=[1])

        server = grpc.aio.server()
        method = grpc.unary_unary_rpc_method_handler(
            handle, request_deserializer=pb.GetRequest.FromString, response_serializer=pb.GetReply.SerializeToString
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("millstream.v1.Data", {"Get": method}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        told.send(f"127.0.0.1:{port}")
        await server.wait_for_termination()

    asyncio.run(main())


@contextlib.contextmanager
def started(target: Any, folder: str) -> Iterator[str]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(folder, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


async def fresh(address: str, writer: Writer, epochs: int) -> list[float]:
    """Seconds from a manifest until its mark, for each epoch. The writer commits in a thread, four epochs a second."""
    times: list[float] = []
    first = writer.epoch + 1

    def write() -> None:
        for _ in range(epochs):
            writer.some()
            time.sleep(0.25)

    async with grpc.aio.insecure_channel(address) as channel:
        async for reply in _watched(channel):
            now = time.monotonic()
            if reply.kind != pb.WatchReply.MARK:
                continue
            if reply.at.epoch < first:
                threading.Thread(target=write, daemon=True).start()
                continue
            times.append(now - writer.made[reply.at.epoch])
            if reply.at.epoch == first + epochs - 1:
                return times
    raise AssertionError("unreachable")


async def _watched(channel: Any) -> AsyncIterator[pb.WatchReply]:
    method = channel.unary_stream(
        "/millstream.v1.Data/Watch",
        request_serializer=pb.WatchRequest.SerializeToString,
        response_deserializer=pb.WatchReply.FromString,
    )
    request = pb.WatchRequest(header=pb.Header(table="C"), keys=[b"user-000001"])
    async for reply in method(request, wait_for_ready=True):
        yield reply


async def gets(address: str, seconds: float, level: Any, in_flight: int = 32) -> float:
    """Calls per second."""
    request = pb.GetRequest(header=pb.Header(table="C", level=level), keys=[b"user-000001"])
    async with grpc.aio.insecure_channel(address) as channel:
        get = channel.unary_unary(GET, request_serializer=pb.GetRequest.SerializeToString, response_deserializer=pb.GetReply.FromString)
        await get(request, wait_for_ready=True)
        until, done = time.perf_counter() + seconds, 0

        async def ask() -> None:
            nonlocal done
            while time.perf_counter() < until:
                await get(request)
                done += 1

        await asyncio.gather(*(ask() for _ in range(in_flight)))
        return done / seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as folder:
        found = applied(folder, 5 if quick else 15)
    print(
        f"a look {found['live_look_us']:.1f} µs; a changed row {found['live_apply_us']:.1f} µs (best {found['live_apply_us_best']:.1f}), "
        f"watched {found['live_apply_watched_us']:.1f} µs; {ROWS:,} rows first loaded in {found['live_first_load_s']:.2f} s"
    )
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(folder)
        writer.commit(range(ROWS))
        with started(serve, folder) as live, started(echo, folder) as bare:
            while True:
                try:
                    asyncio.run(gets(live, 0.1, pb.SESSION))
                    break
                except grpc.aio.AioRpcError:  # it is being read for the first time
                    time.sleep(0.05)
            times = asyncio.run(fresh(live, writer, 20 if quick else 60))
            found["live_fresh_p50_ms"] = statistics.median(times) * 1000
            found["live_fresh_p99_ms"] = sorted(times)[int(len(times) * 0.99)] * 1000
            print(f"fresh: p50 {found['live_fresh_p50_ms']:.0f} ms, p99 {found['live_fresh_p99_ms']:.0f} ms")
            rates: dict[str, list[float]] = {"echo": [], "linearizable": [], "session": []}
            for _ in range(2 if quick else 4):
                rates["echo"].append(asyncio.run(gets(bare, 1.5, pb.SESSION)))
                rates["linearizable"].append(asyncio.run(gets(live, 1.5, pb.LINEARIZABLE)))
                rates["session"].append(asyncio.run(gets(live, 1.5, pb.SESSION)))
    best = {name: max(every) for name, every in rates.items()}
    print("  ".join(f"{name} {rate:,.0f}/s" for name, rate in best.items()))
    found["live_get_of_echo"] = best["linearizable"] / best["echo"]
    found["live_get_session_of_echo"] = best["session"] / best["echo"]
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))


if __name__ == "__main__":
    main()
