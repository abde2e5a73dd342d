"""Clients and the processes they are in: gRPC's thread between clients; after a fork, also in Spark's Python workers, which are forked."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from servicekit import SRC, NodeProcess

from millstream.service import Client

FORKING = """
import os, sys
import millstream as ms
from millstream.errors import DefinitionError
client = ms.service.Client(sys.argv[1], "t", timeout="20s")
children = []
def fork(may):
    child = os.fork()
    if child:
        children.append(child)
        return
    try:
        for _ in range(5):
            client.call("add", "sum", "1")
        os._exit(0 if may else 1)
    except DefinitionError as error:
        os._exit(0 if not may and "was forked from process" in str(error) else 2)
    except BaseException as error:
        print("child:", repr(error), flush=True)
        os._exit(3)
for _ in range(2):
    fork(may=True)
for _ in range(5):
    client.call("add", "sum", "1")
fork(may=False)
for _ in range(5):
    client.call("add", "sum", "1")
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
print(codes, int.from_bytes(client.get("sum"), "big"))
client.close()
"""


@pytest.mark.crash
def test_a_client_that_was_not_used_goes_through_a_fork_and_one_that_was_is_refused_there(tmp_path: Path) -> None:
    """It would hang for ever: gRPC's threads are not there."""
    with NodeProcess(tmp_path) as node:
        environment = {**os.environ, "PYTHONPATH": SRC}
        command = [sys.executable, "-c", FORKING, node.address]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as it:
            try:
                said = it.communicate(timeout=40)
            except subprocess.TimeoutExpired:
                os.killpg(it.pid, signal.SIGKILL)  # its children too
                raise
        assert said[0] == "[0, 0, 0] 20\n", said


BETWEEN_CLIENTS = """
import gc, threading
import millstream as ms
from millstream.errors import Unreachable
def threads():
    return {one.name for one in threading.enumerate() if "poll" in one.name}
seen = []
for _ in range(2):
    client = ms.service.Client("127.0.0.1:1", "t", timeout="200ms")
    try:
        client.get("key")
    except Unreachable:
        client.close()
    del client
    gc.collect()
    seen.append(threads())
print(len(seen[0]), seen[0] == seen[1])
"""


def test_the_thread_of_grpc_outlives_the_clients() -> None:
    """The last one would wait for its end in a finalizer, and a finalizer may be called by that very thread: a deadlock."""
    said = subprocess.run(
        [sys.executable, "-c", BETWEEN_CLIENTS], env={**os.environ, "PYTHONPATH": SRC}, capture_output=True, text=True, timeout=60
    )
    assert said.stdout == "1 True\n", said


@pytest.mark.spark
@pytest.mark.crash
def test_a_client_in_spark_tasks_beside_one_in_the_driver(tmp_path: Path, spark: Any) -> None:
    with NodeProcess(tmp_path) as node:
        client = Client(node.address, "t", timeout="20s")
        client.call("add", "sum", "1")

        def add(rows: Any) -> Any:
            done = 0
            for row in rows:
                client.call("add", "sum", str(row))
                done += 1
            yield done, os.getpid()

        for _ in range(2):
            told = spark.sparkContext.parallelize(range(1, 11), 2).mapPartitions(add).collect()
            assert sum(done for done, _ in told) == 10 and os.getpid() not in {pid for _, pid in told}
            client.call("add", "sum", "1")
        assert int.from_bytes(client.get("sum") or b"", "big") == 2 * 55 + 3
        client.close()


def test_a_client_that_was_closed_can_be_used_again_and_from_many_threads(tmp_path: Path) -> None:
    import threading

    from millstream.service import Table, functions
    from millstream.service.node import Node

    async def main() -> None:
        node = Node([Table("t", functions=[functions.add])], folder=tmp_path)
        await node.start()

        def work() -> None:
            client = Client(node.data.address, "t")
            for _ in range(2):
                threads = [threading.Thread(target=lambda: [client.call("add", "sum", "1") for _ in range(20)]) for _ in range(6)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                client.close()
            assert int.from_bytes(client.get("sum") or b"", "big") == 240
            client.close()

        await asyncio.to_thread(work)
        await node.stop()

    asyncio.run(main())
