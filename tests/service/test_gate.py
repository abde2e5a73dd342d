"""The gate of a table: what it refuses is not kept and what it hides is not shown, whichever way something enters or leaves."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from servicekit import session

import millstream as ms
from millstream.errors import RefusedRequest
from millstream.service import Client, Table, Turn, TurnView, drop_fields, functions, hide_fields, keep_if, stores
from millstream.service.grpc_servers import DATA_CALLS, DATA_SERVICE
from millstream.service.messages import Decision
from millstream.service.proto import service_pb2 as pb

DOCUMENT = '{"name": "ann", "ssn": 1, "salary": 2}'  # ssn is not to be kept, salary not to be shown


def neighbour(turn: Turn, key: bytes, argument: bytes) -> bytes:
    """Puts a value under another key than the one that it is called with."""
    turn.put(argument.split(b" ", 1)[0], argument.split(b" ", 1)[1])
    return b""


def own_key_only(key: bytes, value: bytes) -> bytes:
    """A sanitizer that goes by key."""
    return b'"not yours"' if key.startswith(b"theirs") else value


def documents(**gate: object) -> Table:
    return Table("t", functions=[functions.swap, functions.append, functions.put_if_absent, functions.add, neighbour], **gate)  # type: ignore[arg-type]


def guarded() -> Table:
    return documents(
        before=[keep_if(lambda key, value: b"forbidden" not in value, "it is forbidden"), drop_fields("ssn")],
        after=[hide_fields("salary"), own_key_only],
    )


class Asked:
    """A table that is served, and how it is asked: by a client, and by calls of the proto."""

    def __init__(self, address: str, client: Client, channel: grpc.Channel) -> None:
        self.client = client
        self._channel = channel
        self._seq = 0

    def rpc(self, name: str, request: object) -> object:
        _, takes, gives, is_stream = next(one for one in DATA_CALLS if one[0] == name)
        make = self._channel.unary_stream if is_stream else self._channel.unary_unary
        call = make(f"/{DATA_SERVICE}/{name}", request_serializer=takes.SerializeToString, response_deserializer=gives.FromString)
        return call(request, timeout=10)


@contextlib.contextmanager
def asked(table: Table, folder: Path) -> Iterator[Asked]:
    with ms.testing.serving(table, folder=folder) as address, Client(address, "t") as client, grpc.insecure_channel(address) as channel:
        yield Asked(address, client, channel)


def staged(one: Asked, key: str, value: str | None) -> None:
    txn = f"{key}|1|1|x"
    (partition,) = one.client.stage([(key.encode(), None if value is None else value.encode())], txn)
    one.client.decide(partition, [txn], Decision.COMMIT, 1)


#: How something enters. Every call that writes is among them.
WAYS_IN: dict[str, Callable[[Asked, str, str], object]] = {
    "put": lambda one, key, value: one.client.put(key, value),
    "put_many": lambda one, key, value: one.client.put_many({key: value}),
    "stage": staged,
    "swap": lambda one, key, value: one.client.call("swap", key, value),
    "append": lambda one, key, value: one.client.call("append", key, value),
    "put_if_absent": lambda one, key, value: one.client.call("put_if_absent", key, value),
    "a function, under another key": lambda one, key, value: one.client.call("neighbour", "elsewhere", f"{key} {value}"),
}


def watched(one: Asked, key: str, enter: Callable[[], object]) -> list[bytes]:
    """What a watcher is told of a change, and another one of what is there."""
    told: list[bytes] = []
    watching = one.client.watch(prefix=key)
    for change in watching:
        told += [value for _, value, _ in change.rows if value is not None]
        if change.kind == "mark":
            enter()
        if change.kind == "changes":
            break
    watching.close()  # type: ignore[attr-defined]
    for change in one.client.watch(prefix=key):
        if change.kind != "snapshot":
            break
        told += [value for _, value, _ in change.rows if value is not None]
    for change in one.client.watch(prefix=key, after={1: 0}):  # what was kept for those who come back, or a snapshot
        told += [value for _, value, _ in change.rows if value is not None]
        if told and change.kind != "reset":
            break
    return told


def repeated(one: Asked, key: str) -> list[bytes]:
    """A call that is sent twice, and is answered again."""
    asked = pb.CallRequest(function="put_if_absent", key=key.encode(), argument=b"{}")
    asked.header.table, asked.header.session, asked.header.seq = "t", session(hash(key) % 2**60, 2**40), 1
    first, again = one.rpc("Call", asked), one.rpc("Call", asked)
    assert again.again  # type: ignore[attr-defined]
    return [first.result, again.result]  # type: ignore[attr-defined]


#: How something leaves, once it is there. Every call that shows values is among them.
WAYS_OUT: dict[str, Callable[[Asked, str], list[bytes]]] = {
    "get": lambda one, key: [one.client.get(key) or b""],
    "get, bounded": lambda one, key: [one.client.get(key, level="bounded", max_age="1s") or b""],
    "get, of many": lambda one, key: [one.client.get_many([key, "elsewhere"])[0].value or b""],
    "scan": lambda one, key: [found.value or b"" for found in one.client.scan(prefix=key)],
    "put_if_absent": lambda one, key: [one.client.call("put_if_absent", key, "{}")],
    "a call that is repeated": repeated,
    "swap": lambda one, key: [one.client.call("swap", key, "{}")],
}


def leaks(table: Table, folder: Path, prefix: str = "k") -> set[tuple[str, str]]:
    """Which ways in lead to which ways out with a field that is not to be seen."""
    found: set[tuple[str, str]] = set()

    def look(enter: str, leave: str, shown: list[bytes], at_least: int = 1) -> None:
        assert len(shown) >= at_least and (prefix != "k" or all(b"ann" in value for value in shown)), (enter, leave, shown)
        if any(b"ssn" in value or b"salary" in value or (prefix != "k" and b"ann" in value) for value in shown):
            found.add((enter, leave))

    with asked(table, folder) as one:
        for number, (enter, do) in enumerate(WAYS_IN.items()):
            for at, (leave, show) in enumerate(WAYS_OUT.items()):
                key = f"{prefix}-{number}-{at}"
                do(one, key, DOCUMENT)
                look(enter, leave, show(one, key))
            key = f"{prefix}-{number}-watched"
            look(enter, "watch", watched(one, key, lambda do=do, key=key: do(one, key, DOCUMENT)), 3)  # type: ignore[misc]
    return found


ALL = {(enter, leave) for enter in WAYS_IN for leave in (*WAYS_OUT, "watch")}


def test_whichever_way_it_enters_and_leaves_nothing_is_kept_or_shown_that_the_gate_holds_back(tmp_path: Path) -> None:
    assert leaks(guarded(), tmp_path) == set()


def test_a_sanitizer_that_goes_by_key_gets_the_key_on_every_way(tmp_path: Path) -> None:
    assert leaks(guarded(), tmp_path, "theirs") == set()


def test_without_a_gate_every_way_shows_it(tmp_path: Path) -> None:
    assert leaks(documents(), tmp_path) == ALL


@pytest.mark.slow
def test_a_gate_that_only_lets_in_or_only_lets_out_is_no_gate(tmp_path: Path) -> None:
    assert leaks(documents(before=[drop_fields("ssn")]), tmp_path / "in") == ALL
    assert leaks(documents(after=[hide_fields("salary")]), tmp_path / "out") == ALL


def test_every_call_of_the_data_plane_is_a_way_in_or_out_or_shows_no_values() -> None:
    assert {name for name, *_ in DATA_CALLS} == {"Upsert", "Remove", "Call", "Decide", "Get", "Scan", "Watch"} | {"Route"}


@pytest.mark.parametrize("enter", WAYS_IN)
def test_what_a_filter_refuses_enters_on_no_way(enter: str, tmp_path: Path) -> None:
    with asked(guarded(), tmp_path) as one:
        for value in ('{"name": "forbidden"}', "no JSON at all"):
            with pytest.raises(RefusedRequest, match=r"it is forbidden|no JSON object"):
                WAYS_IN[enter](one, "k", value)
        assert list(one.client.scan()) == []


def test_a_removal_passes_the_gate_and_can_be_refused(tmp_path: Path) -> None:
    def forever(key: bytes, value: bytes | None, turn: TurnView) -> bytes | None:
        if value is None and turn.get(key) is not None:
            raise RefusedRequest(f"key {key!r} stays")
        return value

    def drop(turn: Turn, key: bytes, argument: bytes) -> bytes:
        turn.remove(key)
        return b""

    with asked(Table("t", before=[forever], functions=[drop]), tmp_path) as one:
        one.client.remove("a")
        one.client.put("a", "1")
        for remove in (
            lambda: one.client.remove("a"),
            lambda: one.client.call("drop", "a"),
            lambda: staged(one, "a", None),
        ):
            with pytest.raises(RefusedRequest, match="stays"):
                remove()
        assert one.client.get("a") == b"1"


@pytest.mark.parametrize("value", ["no JSON at all", '[{"salary": 2}]', '{"salary": 2'])
def test_a_value_that_is_no_object_is_not_shown_and_spoils_no_scan_and_no_watch(value: str, tmp_path: Path) -> None:
    with asked(documents(after=[hide_fields("salary")], store=stores.memory()), tmp_path) as one:
        one.client.put_many({"a": '{"name": "ann"}', "b": value, "c": "7"})
        shown = [b'{"name": "ann"}', b"null", b"7"]
        assert [found.value for found in one.client.scan()] == shown
        assert [found.value for found in one.client.get_many(["a", "b", "c"])] == shown
        assert [row[1] for row in next(iter(one.client.watch())).rows] == shown
        assert one.client.call("append", "c", "0") == b"2"


@pytest.mark.parametrize("transform", [lambda key, value, turn: None, lambda key, value, turn: "text", lambda key, value, turn: 1 / 0])
def test_a_transform_that_gives_no_value_refuses_and_the_key_is_named(transform: object, tmp_path: Path) -> None:
    with asked(documents(before=[transform]), tmp_path) as one:
        for enter in WAYS_IN.values():
            with pytest.raises(RefusedRequest, match=r"before=\) cannot do with key b'k1'"):
                enter(one, "k1", json.dumps(1))
        assert list(one.client.scan()) == []


def test_a_sanitizer_that_raises_shows_nothing_changes_nothing_and_names_the_key(tmp_path: Path) -> None:
    def fails(key: bytes, value: bytes) -> bytes:
        raise ValueError("what is this?")

    with asked(documents(after=[fails]), tmp_path) as one:
        one.client.put("k1", "5")
        refused = pytest.raises(RefusedRequest, match=r"after=\) cannot do with key b'k1': ValueError: what is this?")
        ways = {**WAYS_OUT, "watch": lambda one, key: list(one.client.watch(prefix=key))}
        del ways["a call that is repeated"]  # by the proto, and so without our errors
        for leave in ways.values():
            with refused:
                leave(one, "k1")
        assert [(found.key, found.version) for found in one.client.scan(keys_only=True)] == [(b"k1", 1)]
