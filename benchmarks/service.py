"""The state service beside a bare gRPC echo, in one run: `python -m benchmarks.service`.

    unary      Get and durable Upsert with 32 calls in flight, against an echo server with the same messages; CPU of the server per million calls
    line       a read and a write inside a partition, without gRPC: microseconds per message
    bulk       1 MB upserts of 100-byte values, durable, into memory and LMDB; against redis with appendfsync always, if it is installed
    snapshot   the p99 of small requests while a snapshot of a million rows is written, against without
    idle       a thousand partitions that nobody asks: memory, CPU, time to start
    etcd       the same unary calls against one etcd node, if it is installed

Every server is a process of its own, on the loopback. The last line is one JSON object with the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import psutil

from millstream.service.channel import Channel
from millstream.service.client import AsyncClient
from millstream.service.proto import service_pb2 as pb

PARTS = ("unary", "line", "bulk", "snapshot", "idle", "etcd")
VALUE = b"v" * 100
FLIGHT = 32


# --- servers, each in a process of its own


def serve(folder: str, told: str, store: str, partitions: int) -> None:
    """A node with one table."""
    from millstream.service import HASH, Table, functions, limits, stores
    from millstream.service.node import Node

    kind = stores.lmdb() if store == "lmdb" else stores.memory()
    table = Table("t", point=HASH, partitions=partitions, store=kind, functions=[functions.add])

    async def main() -> None:
        begun = time.perf_counter()
        node = Node([table], folder=folder, control_limits=limits.off(limits.CONTROL))
        await node.start()
        Path(told).write_text(
            json.dumps({"data": node.data.address, "control": node.control.address, "seconds": time.perf_counter() - begun})
        )
        await asyncio.Event().wait()

    asyncio.run(main())


def echo(folder: str, told: str) -> None:
    """The same messages, and nothing behind them."""
    reply = pb.GetReply(at=pb.Position(partition=1, term=1, lsn=1), values=[VALUE], versions=[1]).SerializeToString()
    written = pb.WriteReply(at=pb.Position(partition=1, term=1, lsn=1))

    async def get(request: Any, context: Any) -> Any:
        return pb.GetReply.FromString(reply)

    async def upsert(request: Any, context: Any) -> Any:
        return written

    async def main() -> None:
        server = grpc.aio.server()
        handlers = {
            "Get": grpc.unary_unary_rpc_method_handler(get, pb.GetRequest.FromString, pb.GetReply.SerializeToString),
            "Upsert": grpc.unary_unary_rpc_method_handler(upsert, pb.UpsertRequest.FromString, pb.WriteReply.SerializeToString),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("millstream.v1.Data", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        Path(told).write_text(json.dumps({"data": f"127.0.0.1:{port}"}))
        await asyncio.Event().wait()

    asyncio.run(main())


@contextlib.contextmanager
def running(what: str, *more: str) -> Iterator[tuple[dict[str, Any], psutil.Process]]:
    """A server as a child process; where it listens, and the process."""
    folder = tempfile.mkdtemp(prefix="millstream-bench-")
    told = Path(folder) / "told"
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.service", "--serve", what, folder, str(told), *more])
    try:
        for _ in range(1200):
            if told.exists() and told.read_text():
                break
            if process.poll() is not None:
                raise SystemExit(f"the server {what} ended with {process.returncode}")
            time.sleep(0.05)
        yield json.loads(told.read_text()), psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


# --- loads


async def in_flight(call: Callable[[int], Awaitable[Any]], seconds: float, flight: int = FLIGHT) -> tuple[float, list[float]]:
    """Calls a second with so many under way, and how long each took."""
    until = time.perf_counter() + seconds
    times: list[float] = []
    count = 0

    async def one(lane: int) -> None:
        nonlocal count
        while time.perf_counter() < until:
            count += 1
            begun = time.perf_counter()
            await call(count)
            times.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    await asyncio.gather(*(one(lane) for lane in range(flight)))
    return len(times) / (time.perf_counter() - begun), times


def cpu(process: psutil.Process) -> float:
    spent = process.cpu_times()
    return float(spent.user + spent.system)


async def calls(address: str, process: psutil.Process, name: str, request: Callable[[int], Any], seconds: float) -> dict[str, float]:
    channel = Channel(address)
    await channel.ask(name, request(0), 5)
    before = cpu(process)
    rate, times = await in_flight(lambda n: channel.ask(name, request(n), 5), seconds)
    spent = cpu(process) - before
    await channel.close()
    return {"rate": rate, "p50": statistics.median(times), "cpu": spent / len(times) * 1e6}


def get_request(n: int) -> Any:
    return pb.GetRequest(header=pb.Header(table="t"), keys=[b"key-%d" % (n % 1000)])


class Writer:
    """Durable upserts of one session."""

    def __init__(self) -> None:
        self.session = (time.time_ns() // 1_000_000).to_bytes(8, "big") + os.urandom(8)
        self.seq = 0

    def __call__(self, n: int) -> Any:
        self.seq += 1
        header = pb.Header(table="t", session=self.session, seq=self.seq, done=max(0, self.seq - 2 * FLIGHT))
        return pb.UpsertRequest(header=header, keys=[b"key-%d" % (self.seq % 1000)], values=[VALUE])


async def unary(args: argparse.Namespace) -> dict[str, float]:
    found: dict[str, list[dict[str, float]]] = {}
    with running("node", "memory", "1") as (node, process), running("echo") as (bare, echoing):
        async with AsyncClient(node["data"], "t") as client:
            await client.put_many({f"key-{n}": VALUE for n in range(1000)})
        for _ in range(args.rounds):
            for name, address, who, call, make in (
                ("echo get", bare["data"], echoing, "Get", lambda: get_request),
                ("get", node["data"], process, "Get", lambda: get_request),
                ("echo upsert", bare["data"], echoing, "Upsert", Writer),
                ("upsert", node["data"], process, "Upsert", Writer),
            ):
                one = await calls(address, who, call, make(), args.seconds)
                found.setdefault(name, []).append(one)
                print(
                    f"{name:12s} {one['rate']:8,.0f}/s   p50 {one['p50'] * 1000:5.1f} ms   server CPU {one['cpu']:6.1f} s per million",
                    flush=True,
                )
    best = {name: max(one["rate"] for one in each) for name, each in found.items()}
    spent = {name: min(one["cpu"] for one in each) for name, each in found.items()}
    return {
        "get_vs_echo": best["get"] / best["echo get"],
        "upsert_vs_echo": best["upsert"] / best["echo upsert"],
        "get_cpu_vs_echo": spent["get"] / spent["echo get"],
        "upsert_cpu_vs_echo": spent["upsert"] / spent["echo upsert"],
    }


async def line(args: argparse.Namespace) -> dict[str, float]:
    """A partition without gRPC. The log is one that has everything at once: what is measured is the line."""
    from millstream.service import Table
    from millstream.service.logs.none import none
    from millstream.service.messages import Descriptor, Op, Request
    from millstream.service.partition import Partition
    from millstream.service.stores import lmdb
    from millstream.service.stores.memory import memory

    folder = Path(tempfile.mkdtemp(prefix="millstream-bench-"))
    table = Table("t", store=lmdb(durable=True), log=none())
    partition = Partition(Descriptor(1, "t"), table, none().open(folder).of(1), memory().open(folder).of(1))
    await partition.open()
    session = (time.time_ns() // 1_000_000).to_bytes(8, "big") + os.urandom(8)
    count, flight = 100_000, FLIGHT
    writes = reads = float("inf")
    seq = 0
    for _ in range(args.rounds + 1):
        begun = time.process_time()
        for _ in range(count // flight):
            waiting = []
            for _ in range(flight):
                seq += 1
                key = b"key-%d" % (seq % 1000)
                asked = Request(Op.UPSERT, [key], [VALUE], session=session, seq=seq, done=max(0, seq - 2 * flight), size=108)
                waiting.append(partition.write(asked))
            await asyncio.gather(*waiting)
        writes = min(writes, (time.process_time() - begun) / count)
        begun = time.process_time()
        for n in range(count):
            partition.read_now(Request(Op.GET, [b"key-%d" % (n % 1000)]))
        reads = min(reads, (time.process_time() - begun) / count)
    shutil.rmtree(folder, ignore_errors=True)
    print(f"line         {reads * 1e6:5.1f} µs a read   {writes * 1e6:5.1f} µs a write", flush=True)
    return {"line_read_us": reads * 1e6, "line_write_us": writes * 1e6}


async def bulk(args: argparse.Namespace) -> dict[str, float]:
    """1 MB upserts, four under way."""
    import random

    rows = 9000
    found: dict[str, float] = {}
    chosen = random.Random(7)
    batches = [[b"%012d" % chosen.randrange(1_000_000) for _ in range(rows)] for _ in range(20)]
    for store in ("memory", "lmdb"):
        with running("node", store, "1") as (node, process):
            channel = Channel(node["data"])
            session = (time.time_ns() // 1_000_000).to_bytes(8, "big") + os.urandom(8)
            seq = 0

            async def send(n: int, channel: Channel = channel, session: bytes = session) -> None:
                nonlocal seq
                seq += 1
                header = pb.Header(table="t", session=session, seq=seq, done=max(0, seq - 16))
                await channel.ask("Upsert", pb.UpsertRequest(header=header, keys=batches[n % 20], values=[VALUE] * rows), 30)

            best = 0.0
            for _ in range(args.rounds):
                before = cpu(process)
                rate, times = await in_flight(send, args.seconds, 4)
                spent = (cpu(process) - before) / (len(times) * rows) * 1e6
                best = max(best, rate * rows)
                print(f"bulk {store:7s} {rate * rows:10,.0f} records/s   server CPU {spent:5.2f} s per million", flush=True)
            found[store] = best
            await channel.close()
    redis = redis_bulk(args, batches, rows)
    result = {"bulk_memory": found["memory"], "bulk_lmdb": found["lmdb"]}
    if redis:
        result["bulk_memory_vs_redis"] = found["memory"] / redis
        result["bulk_lmdb_vs_redis"] = found["lmdb"] / redis
    return result


def redis_bulk(args: argparse.Namespace, batches: list[list[bytes]], rows: int) -> float:
    """The same rows by MSET into redis with appendfsync always, four connections at once."""
    server = shutil.which("redis-server")
    if server is None:
        print("bulk redis   not installed (apt-get install redis-server)", flush=True)
        return 0.0
    from concurrent.futures import ThreadPoolExecutor

    folder = tempfile.mkdtemp(prefix="millstream-bench-")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = ["--port", str(port), "--dir", folder, "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--daemonize", "no"]
    process = subprocess.Popen([server, *options], stdout=subprocess.DEVNULL)

    def request(batch: list[bytes]) -> bytes:
        """As clients in Python make it: one argument after the other, for every request anew."""
        parts = [b"*%d\r\n$4\r\nMSET\r\n" % (2 * rows + 1)]
        for key in batch:
            parts += (b"$%d\r\n" % len(key), key, b"\r\n$%d\r\n" % len(VALUE), VALUE, b"\r\n")
        return b"".join(parts)

    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)

        def lane(number: int) -> int:
            done = 0
            with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                until = time.perf_counter() + args.seconds
                while time.perf_counter() < until:
                    connection.sendall(request(batches[(number + done) % 20]))
                    assert connection.recv(64) == b"+OK\r\n"
                    done += 1
            return done

        best = 0.0
        for _ in range(args.rounds):
            begun = time.perf_counter()
            with ThreadPoolExecutor(4) as lanes:
                done = sum(lanes.map(lane, range(4)))
            best = max(best, done * rows / (time.perf_counter() - begun))
        print(f"bulk redis   {best:10,.0f} records/s (MSET, appendfsync always)", flush=True)
        return best
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


async def snapshot(args: argparse.Namespace) -> dict[str, float]:
    """Small requests with and without a snapshot of a million rows beside them."""
    count = 200_000 if args.quick else 1_000_000
    with running("node", "memory", "1") as (node, _):
        async with AsyncClient(node["data"], "t", timeout="120s") as client:
            for at in range(0, count, 50_000):
                await client.put_many((b"%012d" % n, VALUE) for n in range(at, at + 50_000))
        channel = Channel(node["data"])
        control = Channel(node["control"])

        def p99(times: list[float]) -> float:
            return sorted(times)[int(len(times) * 0.99)]

        async def quiet() -> float:
            return p99((await in_flight(lambda n: channel.ask("Get", get_request(n), 10), args.seconds * 2, 8))[1])

        before = min([await quiet() for _ in range(2)])
        beside = []
        for number in range(2):
            load = asyncio.ensure_future(in_flight(lambda n: channel.ask("Get", get_request(n), 10), args.seconds * 2, 8))
            await asyncio.sleep(0.1)
            begun = time.perf_counter()
            done = await control.ask("Snapshot", pb.SnapshotRequest(partition=1, path=f"snap-{number}"), 120)
            took = time.perf_counter() - begun
            beside.append(p99((await load)[1]))
            print(
                f"snapshot     {done.rows:,} rows in {took:.1f} s; p99 of small requests {beside[-1] * 1000:.1f} ms, {before * 1000:.1f} ms without",
                flush=True,
            )
        await channel.close()
        await control.close()
    return {"snapshot_p99": min(beside) / before}


async def idle(args: argparse.Namespace) -> dict[str, float]:
    """A thousand partitions that nobody asks."""
    with running("node", "memory", "1") as (_, one), running("node", "memory", "1000") as (node, many):
        await asyncio.sleep(2)
        memory = (many.memory_info().rss - one.memory_info().rss) / 1e6
        handles = many.num_fds() - one.num_fds()
        before, begun = cpu(many), time.perf_counter()
        await asyncio.sleep(5)
        share = (cpu(many) - before) / (time.perf_counter() - begun)
        print(f"idle         1,000 partitions: {memory:.0f} MB more than 1, {handles} file handles more, {share:.1%} of a core", flush=True)
        print(f"             started in {node['seconds']:.1f} s", flush=True)
    return {"idle_mb": memory, "idle_cpu": share, "idle_handles": handles, "idle_start_s": node["seconds"]}


async def etcd(args: argparse.Namespace) -> dict[str, float]:
    """One etcd node with the same calls in flight, through the same gRPC library: its messages are written by hand here."""
    server = shutil.which("etcd")
    if server is None:
        print("etcd         not installed (apt-get install etcd-server)", flush=True)
        return {}
    folder = tempfile.mkdtemp(prefix="millstream-bench-")
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            ports.append(probe.getsockname()[1])
    at, peer = (f"http://127.0.0.1:{port}" for port in ports)
    options = ["--data-dir", folder, "--listen-client-urls", at, "--advertise-client-urls", at, "--listen-peer-urls", peer]
    options += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
    process = subprocess.Popen([server, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    try:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{ports[0]}")
        put = channel.unary_unary("/etcdserverpb.KV/Put")
        get = channel.unary_unary("/etcdserverpb.KV/Range")
        for _ in range(100):
            with contextlib.suppress(grpc.aio.AioRpcError):
                await put(field(1, b"key-1") + field(2, VALUE), timeout=1)
                break
            await asyncio.sleep(0.1)
        puts = gets = 0.0
        for _ in range(args.rounds):
            puts = max(puts, (await in_flight(lambda n: put(field(1, b"key-%d" % (n % 1000)) + field(2, VALUE)), args.seconds))[0])
            gets = max(gets, (await in_flight(lambda n: get(field(1, b"key-%d" % (n % 1000))), args.seconds))[0])
        print(f"etcd         {puts:8,.0f} puts/s   {gets:8,.0f} gets/s", flush=True)
        await channel.close()
        return {"etcd_puts": puts, "etcd_gets": gets}
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


async def main(args: argparse.Namespace) -> None:
    found: dict[str, float] = {}
    chosen = args.only.split(",") if args.only else PARTS
    for part in chosen:
        found |= await {"unary": unary, "line": line, "bulk": bulk, "snapshot": snapshot, "idle": idle, "etcd": etcd}[part](args)
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short runs, to see that it works")
    parser.add_argument("--only", help=f"parts, with commas: {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        what, folder, told, *more = given.serve
        if what == "node":
            serve(folder, told, more[0], int(more[1]))
        else:
            echo(folder, told)
    else:
        if given.quick:
            given.seconds, given.rounds = 1.0, 1
        asyncio.run(main(given))
