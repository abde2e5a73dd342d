"""The live server as clients see it: over gRPC, in a thread beside a run, and in another process while drivers are killed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from livekit import Checkpoint, header, run

import job
import support
import taskkit as kit
from millstream.core.keyspace import decode_row
from millstream.errors import DefinitionError, NetworkError
from millstream.service.blocking import ServerThread
from millstream.service.live.backend import LiveServer
from millstream.service.proto import service_pb2 as pb


class Asking:
    """A client of the data plane, by the proto alone."""

    def __init__(self, channel: Any) -> None:
        def method(kind: str, name: str, takes: Any, gives: Any) -> Any:
            make = getattr(channel, kind)
            return make(f"/millstream.v1.Data/{name}", request_serializer=takes.SerializeToString, response_deserializer=gives.FromString)

        self.get = method("unary_unary", "Get", pb.GetRequest, pb.GetReply)
        self.scan = method("unary_stream", "Scan", pb.ScanRequest, pb.ScanReply)
        self.watch = method("unary_stream", "Watch", pb.WatchRequest, pb.WatchReply)
        self.upsert = method("unary_unary", "Upsert", pb.UpsertRequest, pb.WriteReply)
        self.route = method("unary_unary", "Route", pb.RouteRequest, pb.PartitionList)


def error_in(failed: grpc.RpcError) -> pb.Error:
    (found,) = [value for key, value in failed.trailing_metadata() if key == "millstream-error-bin"]
    return pb.Error.FromString(found)


def test_over_grpc(tmp_path):
    world = Checkpoint(2)

    async def main() -> None:
        server = LiveServer(world.storage, cache_folder=tmp_path)
        await server.start()
        try:
            async with grpc.aio.insecure_channel(server.address) as channel:
                ask = Asking(channel)
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await ask.get(pb.GetRequest(header=header(), keys=[b"00"]))
                assert failed.value.code() == grpc.StatusCode.UNAVAILABLE and error_in(failed.value).reason == pb.NOT_READY
                world.some()
                found = await ask.get(pb.GetRequest(header=header(), keys=[b"%02d" % k for k in range(30)]))
                assert {b"%02d" % k: v for k, v in enumerate(found.values) if v} == world.rows_at(0)
                replies = [reply async for reply in ask.scan(pb.ScanRequest(header=header("p/C")))]
                assert {k: v for r in replies for k, v in zip(r.keys, r.values, strict=True)} == world.rows_at(0)
                health = health_pb2_grpc.HealthStub(channel)
                for name in ("", "C"):
                    said = await health.Check(health_pb2.HealthCheckRequest(service=name))
                    assert said.status == health_pb2.HealthCheckResponse.SERVING, name
                watching = ask.watch(pb.WatchRequest(header=header()))
                assert [(await watching.read()).kind for _ in range(2)] == [pb.WatchReply.SNAPSHOT, pb.WatchReply.MARK]
                world.put(C={"x": b"1"})
                assert list((await watching.read()).keys) == [b"x"]
                watching.cancel()
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await ask.upsert(pb.UpsertRequest(header=header(), keys=[b"x"], values=[b"y"]))
                assert error_in(failed.value).reason == pb.REFUSED and "read only" in str(failed.value.details())
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await ask.get(pb.GetRequest(header=header(complete_to=10**12), keys=[b"x"]), timeout=0.1)
                assert failed.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
                (whole,) = (await ask.route(pb.RouteRequest(table="C"))).partitions
                assert (whole.primary, whole.start, whole.end) == (server.address, b"", b"")
        finally:
            await server.stop()

    run(main)


def test_in_a_thread_it_listens_or_says_why_not(tmp_path):
    world = Checkpoint(2)
    world.some()
    server = ServerThread(LiveServer(world.storage, "127.0.0.1:0", cache_folder=tmp_path))
    with grpc.insecure_channel(server.address) as channel:
        ask = Asking(channel)
        found = ask.get(pb.GetRequest(header=header(), keys=[b"%02d" % k for k in range(30)]))
        assert {b"%02d" % k: v for k, v in enumerate(found.values) if v} == world.rows_at(0)
        with pytest.raises(NetworkError, match="cannot listen on"):
            ServerThread(LiveServer(world.storage, server.address, cache_folder=tmp_path))
    server.stop()
    server.stop()


SERVE = """
import sys, threading
from millstream.service.blocking import ServerThread
from millstream.service.live.backend import LiveServer
print(ServerThread(LiveServer(sys.argv[1], "127.0.0.1:0")).address, flush=True)
threading.Event().wait()
"""


class Audience(threading.Thread):
    """Asks all the time, and notes what it is told."""

    def __init__(self, ask: Asking) -> None:
        super().__init__(daemon=True)
        self._ask = ask
        self.stopping = False
        self.epochs: list[int] = []
        self.failures: list[str] = []

    def run(self) -> None:
        while not self.stopping:
            try:
                self.epochs.append(self._ask.get(pb.GetRequest(header=header("Steps"), keys=[b"k0"])).at.epoch)
            except grpc.RpcError as error:
                if self.epochs:
                    self.failures.append(str(error))
            time.sleep(0.05)


@pytest.mark.crash
def test_drivers_are_killed_and_the_live_server_goes_on_answering(tmp_path):
    """A server in a process of its own, begun before there is a checkpoint; two drivers die, one of them right after a commit; a third ends the work."""
    checkpoint = tmp_path / "checkpoint"
    kit.write_rows(tmp_path, kit.numbered(240))
    server = subprocess.Popen([sys.executable, "-c", SERVE, str(checkpoint)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        with grpc.insecure_channel(server.stdout.readline().strip()) as channel:
            ask = Asking(channel)
            with pytest.raises(grpc.RpcError) as failed:
                ask.get(pb.GetRequest(header=header("Steps"), keys=[b"k0"]))
            assert error_in(failed.value).reason == pb.NOT_READY
            audience = Audience(ask)
            audience.start()
            for crash, last in (("epoch.6-committed@0", 0), ("epoch.5-checked@2", 1), ("", None)):
                assert kit.Driver(tmp_path, crash, resident=False).wait() == (-signal.SIGKILL if crash else 0)
                at = ask.get(pb.GetRequest(header=header("Steps"), keys=[b"k0"])).at
                assert last is None or at.epoch == last, "what was committed is seen, and nothing else"
                for name, expected in support.entries(checkpoint).items():
                    found = list(ask.scan(pb.ScanRequest(header=header(name, level=pb.AS_OF, as_of=at.epoch))))
                    rows = {key: decode_row(value) for r in found for key, value in zip(r.keys, r.values, strict=True)}
                    assert rows == support.rows_of(expected) and {r.at.epoch for r in found} == {at.epoch}, name
            audience.stopping = True
            audience.join()
            assert not audience.failures and audience.epochs == sorted(audience.epochs) and len(set(audience.epochs)) > 2
    finally:
        server.kill()
        server.wait()


@pytest.mark.spark
def test_a_run_serves_its_state_itself(spark, tmp_path):
    support.write_queries(tmp_path / "queries", support.queries(2, 20))
    handle = job.pipeline(tmp_path).run(spark, checkpoint=tmp_path / "checkpoint", trigger="100ms", serve="127.0.0.1:0", quiet=True)
    try:
        assert handle.serving is not None
        with grpc.insecure_channel(handle.serving) as channel:
            ask = Asking(channel)
            while handle.running and handle.status().epoch < 1:
                time.sleep(0.02)
            found = list(ask.scan(pb.ScanRequest(header=header("BucketCounter"))))
            assert {key for reply in found for key in reply.keys} and found[0].at.epoch >= 1
            handle.stop()
            with pytest.raises(grpc.RpcError):
                ask.get(pb.GetRequest(header=header("BucketCounter"), keys=[b"t0"]), timeout=5)
    finally:
        handle.stop()
    with pytest.raises(DefinitionError, match="without a cookie"):
        job.pipeline(tmp_path).run(spark, checkpoint=tmp_path / "checkpoint", serve="198.51.100.1:7400", quiet=True)


def test_a_client_scans_epochs_and_is_told_why_an_event_time_did_not_come(tmp_path) -> None:
    from millstream.errors import Stale
    from millstream.service.client import AsyncClient
    from millstream.service.live.backend import LiveServer
    from millstream.state.manifest_log import ManifestLog
    from millstream.state.storage import open_storage

    checkpoint = support.small_checkpoint(tmp_path / "checkpoint")
    manifest = ManifestLog(open_storage(checkpoint)).latest()
    assert manifest is not None
    name = sorted(manifest.computations)[0]

    async def main() -> None:
        server = LiveServer(checkpoint)
        await server.start()
        try:
            async with AsyncClient(server.address, name, timeout="1s") as client:
                assert await client.is_live()
                assert [found async for found in client.scan(part="epochs", as_json=True)]
                (first,) = [found async for found in client.scan(limit=1)]
                beyond = manifest.computations[name].low_watermark + 1
                if beyond < 2**63 - 1:
                    with pytest.raises(Stale, match=f"is complete to {beyond - 1} .*and {beyond} was asked for"):
                        await client.get_many([first.key], complete_to=beyond)
        finally:
            await server.stop()

    asyncio.run(main())
