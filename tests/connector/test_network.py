"""Who must act when two programs cannot meet: the author of the call, or the operator of the machine."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream import network
from millstream.connector import MemoryOutputs, PushClient, SinkServer, SourceServer, Tls, WorkerClient
from millstream.errors import DefinitionError, NetworkError


def sink(folder: Path, listen: str, **options: Any) -> SinkServer:
    return SinkServer(MemoryOutputs(), listen, **options)


def source(folder: Path, listen: str, **options: Any) -> SourceServer:
    return SourceServer(folder, listen, **options)


SERVERS = pytest.mark.parametrize("server", [sink, source])


@SERVERS
@pytest.mark.parametrize("listen", ["7401", "localhost", "127.0.0.1:port", "127.0.0.1:65536", ""])
def test_an_address_that_is_none_is_for_whoever_wrote_it(server: Callable[..., Any], tmp_path: Path, listen: str) -> None:
    with pytest.raises(DefinitionError, match="HOST:PORT"):
        server(tmp_path, listen)


@pytest.mark.parametrize(
    "call",
    [
        lambda address: WorkerClient.connect(address, "w"),
        lambda address: PushClient(address),
        lambda address: ms.sinks.connector(address).check(),
        lambda address: ms.sources.connector(dir="nowhere", listen=address),
    ],
)
def test_so_it_is_for_whoever_connects(call: Callable[[str], Any]) -> None:
    with pytest.raises(DefinitionError, match="HOST:PORT"):
        call("7401")


@SERVERS
@pytest.mark.parametrize("tls", [Tls(), Tls("no-such-certificate.pem")])
def test_a_certificate_that_cannot_be_used_is_for_whoever_named_it(server: Callable[..., Any], tmp_path: Path, tls: Tls) -> None:
    with pytest.raises(DefinitionError, match="certificate"):
        server(tmp_path, "127.0.0.1:0", tls=tls)


@pytest.mark.parametrize("call", [WorkerClient.connect, lambda address, name, tls: PushClient(address, tls=tls)])
def test_so_it_is_at_the_other_end(call: Callable[..., Any]) -> None:
    with pytest.raises(DefinitionError, match="cannot be used"):
        call("127.0.0.1:1", "w", tls=Tls(ca="no-such-ca.pem"))


@SERVERS
@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1", "example.com", ""])
def test_to_listen_beyond_this_machine_without_a_cookie_is_for_whoever_wrote_it(
    server: Callable[..., Any], tmp_path: Path, host: str
) -> None:
    with pytest.raises(DefinitionError, match="without a cookie"):
        server(tmp_path, f"{host}:0")
    server(tmp_path, f"{host}:0", cookie="secret")
    server(tmp_path, f"{host}:0", force=True)


@SERVERS
def test_a_port_that_is_taken_is_for_the_operator(server: Callable[..., Any], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(NetworkError, match=f"cannot listen on {address}") as caught:
            server(tmp_path, address).start()
    assert "Stop what listens there" in str(caught.value)
    with server(tmp_path, address) as started:
        assert started.address == address


@SERVERS
def test_an_address_of_another_machine_is_for_the_operator(server: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match=r"cannot listen on 192\.0\.2\.1:0"):
        server(tmp_path, "192.0.2.1:0", cookie="secret").start()


@given(st.sampled_from(["127.0.0.1", "::1", "localhost", "fe80::1", ""]), st.integers(0, 65535))
def test_what_is_written_is_read_again(host: str, port: int) -> None:
    assert network.parse_address(network.written(host, port)) == (host, port)
