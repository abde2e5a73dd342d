"""The connector against the bare minimum, in one run: `python -m benchmarks.connector`.

1. Throughput: one worker puts out lines of 100 bytes and commits once a second, into files; against a plain TCP connection whose other end writes
   what it reads to a file, with an fsync a second. The worker writes line by line (`WorkerClient` puts them into large messages); and,
   as the original does it, one message per line, made beforehand.
2. Commits: one small transaction after another, each confirmed; against SQLite with synchronous=FULL, one row a transaction.

Every server is a process of its own, on the loopback. Targets: throughput of at least 100 MB/s or half of plain TCP, whichever is lower; at
least half of SQLite's commits. The last line is one JSON object with the ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import socket
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from millstream.connector import FileOutputs, SinkServer, WorkerClient
from millstream.connector.wire.codec import MESSAGE_HEAD, message_head
from millstream.connector.wire.messages import DATA_STREAM

LINE = b"x" * 99 + b"\n"


def sink(folder: str, told: Connection) -> None:
    with SinkServer(FileOutputs(folder)) as server:
        told.send(server.address)
        server.wait()


def raw(folder: str, told: Connection) -> None:
    """Plain TCP to a file. A byte is sent back when everything is synced."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        told.send(f"127.0.0.1:{server.getsockname()[1]}")
        peer, _ = server.accept()
    buffer = bytearray(512 << 10)
    view = memoryview(buffer)
    fd = os.open(Path(folder) / "raw", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    synced = time.monotonic()
    while size := peer.recv_into(view):
        at = 0
        while at < size:
            at += os.write(fd, view[at:size])
        if time.monotonic() - synced > 1:
            os.fdatasync(fd)
            synced = time.monotonic()
    os.fdatasync(fd)
    peer.send(b"!")


@contextlib.contextmanager
def started(target: object, folder: str) -> Iterator[str]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(folder, theirs), daemon=True)  # type: ignore[arg-type]
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


def raw_rate(folder: str, seconds: float) -> float:
    with started(raw, folder) as address:
        host, _, port = address.rpartition(":")
        piece = LINE * 2622
        with socket.create_connection((host, int(port))) as sock:
            began, sent = time.perf_counter(), 0
            while time.perf_counter() - began < seconds:
                sock.sendall(piece)
                sent += len(piece)
            sock.shutdown(socket.SHUT_WR)
            sock.recv(1)
            return sent / (time.perf_counter() - began) / 1e6


def sink_rate(folder: str, seconds: float) -> float:
    """Line by line through `write`, a commit a second."""
    with started(sink, folder) as address, WorkerClient.connect(address, "bench") as worker:
        began = committed = time.perf_counter()
        number = 0
        while committed - began < seconds:
            write = worker.write
            for _ in range(10_000):
                write(LINE)
            now = time.perf_counter()
            if now - committed > 1:
                number += 1
                assert worker.prepare(f"t{number}")
                worker.finish(f"t{number}", commit=True)
                committed = time.perf_counter()
        worker.confirm()
        return worker.committed / (time.perf_counter() - began) / 1e6


def single_rate(folder: str, seconds: float) -> float:
    """One message per line, as Wallaroo sends them."""
    size, lines = MESSAGE_HEAD + len(LINE), 10_000
    with started(sink, folder) as address, WorkerClient.connect(address, "bench") as worker:
        began = committed = time.perf_counter()
        number = 0
        while committed - began < seconds:
            at = worker._session.write(lines * len(LINE))
            data = bytearray(size * lines)
            for index in range(lines):
                data[index * size : (index + 1) * size] = message_head(DATA_STREAM, at + index * len(LINE), len(LINE)) + LINE
            worker._send_all(data)
            now = time.perf_counter()
            if now - committed > 1:
                number += 1
                assert worker.prepare(f"t{number}")
                worker.finish(f"t{number}", commit=True)
                committed = time.perf_counter()
        worker.confirm()
        return worker.committed / (time.perf_counter() - began) / 1e6


def sink_commits(folder: str, seconds: float) -> float:
    with started(sink, folder) as address, WorkerClient.connect(address, "bench") as worker:
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            worker.write(LINE)
            assert worker.prepare(f"t{count}")
            worker.finish(f"t{count}", commit=True, confirm=True)
            count += 1
        return count / (time.perf_counter() - began)


def sqlite_commits(folder: str, seconds: float) -> float:
    database = sqlite3.connect(Path(folder) / "db", isolation_level=None)
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE lines (line BLOB)")
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        database.execute("BEGIN")
        database.execute("INSERT INTO lines VALUES (?)", (LINE,))
        database.execute("COMMIT")
        count += 1
    database.close()
    return count / (time.perf_counter() - began)


def main() -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each measurement lasts (4)")
    parser.add_argument("--rounds", type=int, default=3, help="how often all of them are taken, one after another (3)")
    args = parser.parse_args()
    ways = {
        "plain TCP": raw_rate,
        "sink": sink_rate,
        "sink, a message per line": single_rate,
        "commits": sink_commits,
        "SQLite commits": sqlite_commits,
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(1, args.rounds + 1):
        for name, way in ways.items():
            print(f"round {turn} of {args.rounds}: {name}, {args.seconds:g} s", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(way(folder, args.seconds))
    medians = {name: statistics.median(values) for name, values in found.items()}
    for name, values in found.items():
        unit = "/s" if "commits" in name else "MB/s"
        print(f"{name:26} {medians[name]:8.0f} {unit:5} ({', '.join(f'{value:.0f}' for value in values)})")
    enough = min(100.0, medians["plain TCP"] / 2)
    result = {
        "sink_vs_tcp": round(medians["sink"] / medians["plain TCP"], 2),
        "commits_vs_sqlite": round(medians["commits"] / medians["SQLite commits"], 2),
    }
    print(
        f"targets: {enough:.0f} MB/s {'met' if medians['sink'] >= enough else 'MISSED'}, half of SQLite "
        f"{'met' if medians['commits'] >= medians['SQLite commits'] / 2 else 'MISSED'}"
    )
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main()
