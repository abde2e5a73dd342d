"""Clients that mean harm, and those that know nothing but service.proto."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from servicekit import SRC

from millstream.errors import Busy, DefinitionError, NetworkError, TooLarge, Unauthenticated, Unreachable
from millstream.network import Tls
from millstream.service import Table, functions
from millstream.service.channel import Channel
from millstream.service.limits import CONTROL, FRAME, off
from millstream.service.messages import LIMIT
from millstream.service.node import Node
from millstream.service.proto import service_pb2 as pb

PROTO = Path(SRC) / "millstream" / "service" / "proto" / "service.proto"


@contextlib.asynccontextmanager
async def a_node(folder: Path, **options: Any) -> AsyncIterator[Node]:
    node = Node([Table("t", functions=[functions.add])], folder=folder, **options)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def works(node: Node, **how: Any) -> None:
    """A client of good will is served."""
    channel = Channel(node.data.address, **how)
    try:
        await channel.ask("Upsert", pb.UpsertRequest(header=pb.Header(table="t"), keys=[b"a"], values=[b"1"]), 5)
        reply = await channel.ask("Get", pb.GetRequest(header=pb.Header(table="t"), keys=[b"a"]), 5)
        assert reply.values == [b"1"]
    finally:
        await channel.close()


async def throw(address: str, data: bytes) -> bytes:
    """Sends bytes, and takes what comes until the other side closes or falls silent."""
    if address.startswith("unix:"):
        reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
    else:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
    try:
        with contextlib.suppress(OSError):
            writer.write(data)
            await writer.drain()
            writer.write_eof()
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            return await asyncio.wait_for(reader.read(), 3)
        return b""
    finally:
        writer.transport.abort()


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
GARBAGE = (
    b"\0" * 4096,
    os.urandom(64 << 10),
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /millstream.v1.Data/Upsert HTTP/1.0\r\nContent-Length: 99999999\r\n\r\n",
    PREFACE + os.urandom(4096),
    PREFACE + b"\xff\xff\xff\x01\x24\0\0\0\x01",
    b"\x16\x03\x01\x02\0" + os.urandom(512),
)


def test_garbage_and_other_protocols_on_both_ports_harm_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_node(tmp_path) as node:
            for address in (node.data.address, node.control.address):
                answers = await asyncio.gather(*(throw(address, data) for data in GARBAGE))
                assert all(b"200" not in answer[:20] for answer in answers)
            await works(node)
            assert node.manager.partitions[1].store.applied == 1

    asyncio.run(main())


def test_bytes_that_are_no_message_are_refused_and_those_of_strange_fields_are_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_node(tmp_path) as node, grpc.aio.insecure_channel(node.data.address) as channel:
            call = channel.unary_unary("/millstream.v1.Data/Upsert")
            for data in (b"\xff" * 100, os.urandom(1000), b"\x0a\xff\xff\xff\x7f"):
                with pytest.raises(grpc.aio.AioRpcError):
                    await call(data, timeout=5)
            strange = pb.UpsertRequest(header=pb.Header(table="t"), keys=[b"a"], values=[b"1"]).SerializeToString() + b"\xfa\x7f\x03xyz"
            assert pb.WriteReply.FromString(await call(strange, timeout=5)).at.lsn == 1
            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await channel.unary_unary("/millstream.v1.Data/Drop")(b"", timeout=5)
            assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(main())


def test_a_message_may_have_so_many_bytes_and_not_one_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_node(tmp_path) as node:
            channel = Channel(node.data.address)
            header = pb.Header(table="t")

            async def put(size: int) -> Any:
                return await channel.ask("Upsert", pb.UpsertRequest(header=header, keys=[b"k"], values=[b"x" * (size - 1)]), 10)

            assert (await put(LIMIT)).at.lsn == 1
            with pytest.raises(TooLarge, match=f"{LIMIT + 1:,} bytes"):
                await put(LIMIT + 1)
            with pytest.raises(TooLarge, match="larger than max"):  # by gRPC, before it is read
                await put(LIMIT + FRAME)
            with pytest.raises(TooLarge, match="a key has 4,097 bytes"):
                await channel.ask("Upsert", pb.UpsertRequest(header=header, keys=[b"k" * 4097], values=[b""]), 5)
            reply = await channel.ask("Get", pb.GetRequest(header=header, keys=[b"k"]), 10)
            assert len(reply.values[0]) == LIMIT - 1
            await channel.close()

    asyncio.run(main())


def test_connections_that_say_nothing_harm_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        import resource

        before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most != resource.RLIM_INFINITY and most < 6000:
            pytest.skip("needs 6,000 open files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(before, 6000), most))
        async with a_node(tmp_path) as node:
            await works(node)
            host, _, port = node.data.address.rpartition(":")
            process = psutil.Process()
            used = process.memory_info().rss
            silent: list[socket.socket] = []
            try:
                for number in range(2000):
                    one = socket.socket()
                    one.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        one.connect((host, int(port)))
                    silent.append(one)
                    if number % 50 == 49:
                        await asyncio.sleep(0.005)  # so that they are taken in, and not left in the kernel's queue
                await works(node)
                assert process.memory_info().rss - used < 150 << 20
            finally:
                for one in silent:
                    one.close()
            await works(node)

    asyncio.run(main())


def test_a_flood_on_the_control_plane_is_told_when_to_come_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_node(tmp_path) as node:
            channel = Channel(node.control.address)
            asked = [channel.ask("ListPartitions", pb.ListPartitionsRequest(), 10) for _ in range(50)]
            done = await asyncio.gather(*asked, return_exceptions=True)
            busy = [one for one in done if isinstance(one, Busy)]
            assert 1 <= len(done) - len(busy) <= CONTROL.burst + 1
            assert busy and all(one.retry_after > 0 for one in busy)
            await works(node)  # the data plane is another one
            await channel.close()

    asyncio.run(main())


def test_the_control_plane_is_its_owners(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_node(tmp_path / "a") as node:
            mode = os.stat(node.control.address.removeprefix("unix:")).st_mode
            assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
            wrong = Channel(node.data.address)
            with pytest.raises(DefinitionError, match="the other plane"):
                await wrong.ask("ListPartitions", pb.ListPartitionsRequest(), 5)
            await wrong.close()
        with pytest.raises(DefinitionError, match="open to every user of this machine"):
            async with a_node(tmp_path / "b", control="127.0.0.1:0"):
                pass
        async with a_node(tmp_path / "c", control="127.0.0.1:0", control_cookie="secret", control_limits=off(CONTROL)) as node:
            for cookie, allowed in (("", False), ("secrets", False), ("secret", True)):
                channel = Channel(node.control.address, cookie=cookie)
                if allowed:
                    assert len((await channel.ask("ListPartitions", pb.ListPartitionsRequest(), 5)).partitions) == 1
                else:
                    for name, asked in (
                        ("ListPartitions", pb.ListPartitionsRequest()),
                        ("RemovePartition", pb.RemovePartitionRequest(id=1)),
                    ):
                        with pytest.raises(Unauthenticated):
                            await channel.ask(name, asked, 5)
                await channel.close()
            assert list(node.manager.partitions) == [1]

    asyncio.run(main())


def test_data_with_a_wrong_cookie_is_denied(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_node(tmp_path, cookie="secret") as node:
            await works(node, cookie="secret")
            for cookie in ("", "wrong", "secret "):
                with pytest.raises(Unauthenticated, match="millstream-cookie"):
                    await works(node, cookie=cookie)
            stream = Channel(node.data.address)
            with pytest.raises(Unauthenticated):
                async for _ in stream.stream("Watch", pb.WatchRequest(header=pb.Header(table="t")), 5):
                    pass
            await stream.close()

    asyncio.run(main())


# --- certificates


def certificates(folder: Path) -> dict[str, str]:
    """An authority, a server's certificate for 127.0.0.1, a client's, and a client's of another authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    folder.mkdir(parents=True, exist_ok=True)
    now, paths = datetime.datetime.now(datetime.UTC), {}

    def made(name: str, by: tuple[Any, Any] | None) -> tuple[Any, Any]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        build = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if by is None else by[0].subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        )
        certificate = build.sign(key if by is None else by[1], hashes.SHA256())
        for what, data in (
            ("cert", certificate.public_bytes(serialization.Encoding.PEM)),
            (
                "key",
                key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
            ),
        ):
            path = folder / f"{name}.{what}"
            path.write_bytes(data)
            paths[f"{name}.{what}"] = str(path)
        return certificate, key

    ours, other = made("ca", None), made("other-ca", None)
    made("server", ours)
    made("client", ours)
    made("stranger", other)
    return paths


def test_certificates_of_servers_and_of_clients(tmp_path: Path) -> None:
    paths = certificates(tmp_path / "pem")
    ca = paths["ca.cert"]
    own = Tls(paths["client.cert"], paths["client.key"], ca)

    async def main() -> None:
        async with a_node(tmp_path / "a", tls=Tls(paths["server.cert"], paths["server.key"])) as node:
            await works(node, tls=Tls(ca=ca))
            for wrong in (None, Tls(ca=paths["other-ca.cert"])):
                with pytest.raises(Unreachable):
                    await works(node, tls=wrong)
        mutual = Tls(paths["server.cert"], paths["server.key"], ca)
        async with a_node(tmp_path / "b", tls=mutual, control="127.0.0.1:0", control_tls=mutual, control_limits=off(CONTROL)) as node:
            await works(node, tls=own)
            stranger = Tls(paths["stranger.cert"], paths["stranger.key"], ca)
            for wrong in (Tls(ca=ca), stranger, None):
                with pytest.raises(Unreachable):
                    await works(node, tls=wrong)
                channel = Channel(node.control.address, tls=wrong)
                with pytest.raises(Unreachable):
                    await channel.ask("ListPartitions", pb.ListPartitionsRequest(), 5)
                await channel.close()
            channel = Channel(node.control.address, tls=own)
            assert len((await channel.ask("ListPartitions", pb.ListPartitionsRequest(), 5)).partitions) == 1
            await channel.close()

    asyncio.run(main())


# --- from service.proto alone

ALONE = """
import sys, grpc
assert "millstream" not in sys.modules
import service_pb2 as pb, service_pb2_grpc as stubs
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
data = grpc.insecure_channel(sys.argv[1])
control = grpc.insecure_channel(sys.argv[2])
stub, header = stubs.DataStub(data), pb.Header(table="t")
assert stub.Upsert(pb.UpsertRequest(header=header, keys=[b"a", b"b"], values=[b"1", b"2"])).at.lsn == 1
assert list(stub.Get(pb.GetRequest(header=header, keys=[b"b", b"c"])).versions) == [1, 0]
assert stub.Call(pb.CallRequest(header=header, function="add", key=b"n", argument=b"5")).result == b"5"
assert stub.Remove(pb.RemoveRequest(header=header, keys=[b"a"])).at.lsn == 3
assert [list(one.keys) for one in stub.Scan(pb.ScanRequest(header=header))] == [[b"b", b"n"]]
watching = stub.Watch(pb.WatchRequest(header=header))
kinds = [next(watching).kind for _ in range(2)]
assert kinds == [pb.WatchReply.SNAPSHOT, pb.WatchReply.MARK], kinds
stub.Upsert(pb.UpsertRequest(header=header, keys=[b"z"], values=[b"9"]))
assert list(next(watching).keys) == [b"z"]
watching.cancel()
try:
    stub.Upsert(pb.UpsertRequest(header=header, keys=[b"z"], values=[b"9"], expect=[77]))
    raise SystemExit("no conflict")
except grpc.RpcError as error:
    assert error.code() is grpc.StatusCode.ABORTED
    (raw,) = [value for key, value in error.trailing_metadata() if key == "millstream-error-bin"]
    told = pb.Error.FromString(raw)
    assert told.reason == pb.CONFLICT and list(told.versions) == [4]
assert [one.id for one in stubs.ControlStub(control).ListPartitions(pb.ListPartitionsRequest()).partitions] == [1]
for channel in (data, control):
    health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=""))
    assert channel is control or health.status == health_pb2.HealthCheckResponse.SERVING
assert health_pb2_grpc.HealthStub(data).Check(health_pb2.HealthCheckRequest(service="t")).status == health_pb2.HealthCheckResponse.SERVING
assert "millstream.v1.Data" in ProtoReflectionDescriptorDatabase(control).get_services()
try:
    ProtoReflectionDescriptorDatabase(data).get_services()
    raise SystemExit("the data plane tells what it has")
except grpc.RpcError as error:
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
print("done")
"""


def test_a_client_that_is_made_from_service_proto_alone_does_everything(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO.parent}", f"--python_out={made}", f"--grpc_python_out={made}"]
    subprocess.run([*command, str(PROTO)], check=True, capture_output=True)
    (made / "alone.py").write_text(ALONE)

    async def main() -> None:
        async with a_node(tmp_path / "node", control_limits=off(CONTROL)) as node:
            environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, str(made / "alone.py"), node.data.address, node.control.address),
                cwd=made,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            said, _ = await asyncio.wait_for(process.communicate(), 60)
            assert process.returncode == 0 and said == b"done\n", said.decode()

    asyncio.run(main())


@pytest.mark.parametrize("there", ["a file", "a folder", "a link", "a socket of somebody", "a socket of nobody"])
def test_only_a_socket_that_nobody_listens_on_is_removed(there: str, tmp_path: Path) -> None:
    path = Path(tempfile.mkdtemp(dir="/tmp", prefix="ms-")) / "s"
    somebody = socket.socket(socket.AF_UNIX)
    if there == "a file":
        path.write_text("mine")
    elif there == "a folder":
        path.mkdir()
    elif there == "a link":
        (path.parent / "target").write_text("mine")
        path.symlink_to(path.parent / "target")
    else:
        somebody.bind(str(path))
        if there == "a socket of somebody":
            somebody.listen()
        else:
            somebody.close()

    async def main() -> None:
        node = Node([Table("t")], folder=tmp_path / "n", control=f"unix:{path}")
        if there == "a socket of nobody":
            await node.start()
            await node.stop()
            return
        with pytest.raises(NetworkError, match="is no socket" if "socket" not in there else "a process listens"):
            await node.start()
        assert os.path.lexists(path) and (there != "a file" or path.read_text() == "mine")

    asyncio.run(main())
    somebody.close()
    shutil.rmtree(path.parent)
