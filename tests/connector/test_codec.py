"""Messages and bytes: every vector of the wire, and every kind of nonsense."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.connector.wire import messages as m
from millstream.connector.wire.codec import decode, encode, message_head
from millstream.connector.wire.decoder import FRAME_LIMIT, Decoder
from millstream.errors import LocalProtocolError, RemoteProtocolError

TXN = "app-w-initializer-id-77:c_id=3"

#: What the original sends and expects, byte for byte.
VECTORS: list[tuple[m.Frame, str]] = [
    (
        m.Hello(m.SINK_VERSION, "Dragons-Love-Tacos", "Celsius to Fahrenheit", "initializer"),
        "0000004100000676302e302e310012447261676f6e732d4c6f76652d5461636f73001543656c7369757320746f2046616872656e68656974000b696e697469616c697a6572",
    ),
    (m.Ok(500), "0000000501000001f4"),
    (m.Error("Unsupported stream id 2"), "0000001a020017556e737570706f727465642073747265616d2069642032"),
    (
        m.Notify(1, "app-w-initializer-id-77", 0),
        "0000002a03000000000000000100176170702d772d696e697469616c697a65722d69642d37370000000000000000",
    ),
    (m.NotifyAck(True, 1, None), "0000001204010000000000000001ffffffffffffffff"),
    (m.NotifyAck(False, 1, 4096), "00000012040000000000000000010000000000001000"),
    (m.Message(1, 0, b"abc\n"), "0000001f0500000000000000010000000000000000000000000000000000006162630a"),
    (
        m.Message(1, 4, b"hello world", -1, b"key"),
        "000000290500000000000000010000000000000004ffffffffffffffff00036b657968656c6c6f20776f726c64",
    ),
    (m.Ack(10, ((1, 4096), (2, 7))), "00000029060000000a000000020000000000000001000000000000100000000000000000020000000000000007"),
    (m.Restart(), "000000050700000000"),
    (m.Restart("127.0.0.1:5555"), "00000013070000000e3132372e302e302e313a35353535"),
    (m.Eos(1), "00000009080000000000000001"),
    (m.ListUncommitted(77778), "00000024050000000000000000000000000000000000000000000000000000c90000000000012fd2"),
    (m.ReplyUncommitted(77778), "00000028050000000000000000000000000000000000000000000000000000ca0000000000012fd200000000"),
    (
        m.Phase1(TXN, ((1, 48, 176),)),
        "00000058050000000000000000000000000000000000000000000000000000cb001e6170702d772d696e697469616c697a65722d69642d37373a635f69643d33000000010000000000000001000000000000003000000000000000b0",
    ),
    (
        m.Vote(TXN, True),
        "0000003d050000000000000000000000000000000000000000000000000000cc001e6170702d772d696e697469616c697a65722d69642d37373a635f69643d3301",
    ),
    (
        m.Phase2(TXN, True),
        "0000003d050000000000000000000000000000000000000000000000000000cd001e6170702d772d696e697469616c697a65722d69642d37373a635f69643d3301",
    ),
    (
        m.WorkersLeft(7, ("worker2", "worker3")),
        "0000003a050000000000000000000000000000000000000000000000000000ce0000000000000007000000020007776f726b6572320007776f726b657233",
    ),
]

u32, u64 = st.integers(0, m.U32), st.integers(0, m.U64)
text = st.text(max_size=20).filter(lambda t: t.isprintable() or t.isascii())
point = st.none() | st.integers(0, m.U64 - 1)
frames = st.one_of(
    st.builds(m.Hello, text, text, text, text),
    st.builds(m.Ok, u32),
    st.builds(m.Error, text),
    st.builds(m.Notify, u64, text, u64),
    st.builds(m.NotifyAck, st.booleans(), u64, point),
    st.builds(
        m.Message, st.integers(1, m.U64), u64, st.binary(max_size=30), st.integers(-(1 << 63), (1 << 63) - 1), st.binary(max_size=10)
    ),
    st.builds(m.Ack, u32, st.lists(st.tuples(u64, u64), max_size=3).map(tuple)),
    st.builds(m.Restart, text),
    st.builds(m.Eos, u64),
    st.builds(m.ListUncommitted, u64),
    st.builds(m.ReplyUncommitted, u64, st.lists(text, max_size=3).map(tuple)),
    st.builds(m.Phase1, text, st.lists(st.tuples(u64, u64, u64), max_size=3).map(tuple)),
    st.builds(m.Vote, text, st.booleans()),
    st.builds(m.Phase2, text, st.booleans()),
    st.builds(m.WorkersLeft, u64, st.lists(text, max_size=3).map(tuple)),
)


def drained(decoder: Decoder) -> list[m.Frame]:
    found = []
    while (message := decoder.next()) is not None:
        found.append(message)
    return found


@pytest.mark.parametrize(("message", "wire"), VECTORS, ids=lambda v: type(v).__name__ if not isinstance(v, str) else "")
def test_every_vector_of_the_wire_encodes_and_decodes(message: m.Frame, wire: str) -> None:
    assert encode(message).hex() == wire
    assert decode(bytes.fromhex(wire)[4:]) == message


def test_the_vectors_leave_no_kind_of_message_out() -> None:
    assert {type(message) for message, _ in VECTORS} == set(m.KINDS)


@given(st.lists(frames, max_size=6), st.lists(st.integers(0, 400), max_size=8))
def test_messages_come_back_however_the_bytes_are_split(sent: list[m.Frame], cuts: list[int]) -> None:
    wire = b"".join(map(encode, sent))
    decoder, found, at = Decoder(), [], 0
    for cut in [*sorted(cuts), len(wire)]:
        decoder.receive(wire[at:cut])
        at = max(at, cut)
        found += drained(decoder)
    assert found == sent and decoder.pending == 0


@given(st.binary(max_size=200), st.booleans(), st.sampled_from([None, 1]))
def test_arbitrary_bytes_end_in_messages_or_a_remote_protocol_error(data: bytes, two_phase: bool, join: int | None) -> None:
    decoder = Decoder(limit=100, two_phase=two_phase, join=join)
    decoder.receive(data)
    try:
        found = drained(decoder)
    except RemoteProtocolError as first:
        with pytest.raises(RemoteProtocolError) as again:
            decoder.next()
        assert again.value is first
        return
    if join is None:
        assert b"".join(map(encode, found)) == data[: len(data) - decoder.pending]


@given(frames, st.data())
def test_a_changed_byte_is_another_message_or_a_remote_protocol_error(message: m.Frame, data: st.DataObject) -> None:
    body = bytearray(encode(message)[4:])
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode(body)
    except RemoteProtocolError:
        return
    assert encode(found)[4:] == body


@given(
    st.lists(st.tuples(st.sampled_from([1, 1, 1, 2]), st.booleans(), st.binary(max_size=5), st.sampled_from([b"", b"k"])), max_size=12),
    st.integers(1, 60),
)
def test_joined_messages_are_the_same_bytes_at_the_same_offsets(sent: list[tuple[int, bool, bytes, bytes]], chunk: int) -> None:
    wire, expected, offset = b"", {}, 0
    for stream, jump, payload, key in sent:
        offset += 7 * jump
        wire += encode(m.Message(stream, offset, payload, 3, key))
        expected.update({(stream, offset + i): byte for i, byte in enumerate(payload)})
        offset += len(payload)
    wire += encode(m.Eos(1))
    decoder, found = Decoder(join=1), []
    for at in range(0, len(wire), chunk):
        decoder.receive(wire[at : at + chunk])
        found += drained(decoder)
    assert found.pop() == m.Eos(1)
    assert {(f.stream, f.id + i): byte for f in found for i, byte in enumerate(f.payload)} == expected


def test_a_run_of_lines_is_one_message() -> None:
    decoder = Decoder(join=1)
    decoder.receive(b"".join(encode(m.Message(1, 100 * i, b"x" * 100)) for i in range(50)))
    assert drained(decoder) == [m.Message(1, 0, b"x" * 5000)]


@pytest.mark.parametrize(
    ("wire", "says"),
    [
        (b"\0\0\0\0", "length 0"),
        (b"\xff\xff\xff\xff", "limit"),
        (b"\0\0\0\x01\x09", "unknown tag 9"),
        (b"\0\0\0\x01\xc9", "unknown tag 201"),
        (b"\0\0\0\x01\x01", "too short"),
        (b"\0\0\0\x03\x02\0\x05", "too short"),
        (b"\0\0\0\x06\x01\0\0\0\0\0", "too many"),
        (b"\0\0\0\x04\x02\0\x01\xff", "UTF-8"),
        (b"\0\0\0\x12\x04\x02" + bytes(16), "boolean"),
        (b"\0\0\0\x09\x06\0\0\0\0\xff\xff\xff\xff", "items"),
        (message_head(0, 0, 0), "empty"),
        (message_head(0, 0, 1) + b"\x05", "unknown tag 5 on stream 0"),
        (message_head(0, 1, 9) + b"\xc9" + bytes(8), "an id"),
        (struct.pack(">IBQQqH", 27, 5, 1, 0, 0, 4), "too short"),
        (b"\0\0\0\x05\x05\0\0\0\x01", "too short"),
    ],
)
@pytest.mark.parametrize("join", [None, 1])
def test_nonsense_is_named(wire: bytes, says: str, join: int | None) -> None:
    decoder = Decoder(join=join)
    decoder.receive(wire)
    with pytest.raises(RemoteProtocolError, match=says):
        decoder.next()


def test_in_source_use_stream_0_is_a_stream_like_any_other() -> None:
    message = m.Message(0, 3, b"data", key=b"k")
    assert decode(encode(message)[4:], two_phase=False) == message


def test_a_length_over_the_limit_is_refused_before_its_bytes_come() -> None:
    decoder = Decoder(limit=1000)
    decoder.receive(struct.pack(">I", 1001))
    with pytest.raises(RemoteProtocolError, match="limit"):
        decoder.next()


def test_a_long_frame_in_small_pieces_takes_time_and_memory_in_proportion() -> None:
    size, piece = 4 << 20, 4096
    wire = encode(m.Message(1, 0, bytes(size)))
    tracemalloc.start()
    decoder, found = Decoder(join=1), []
    for at in range(0, len(wire), piece):
        decoder.receive(wire[at : at + piece])
        found += drained(decoder)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 1 and peak < 4 * size


@pytest.mark.parametrize(
    "message",
    [
        m.Ok(-1),
        m.Ok(1 << 32),
        m.Error("x" * 65536),
        m.Notify(1 << 64, "n", 0),
        m.NotifyAck(True, 1, m.U64),
        m.Message(1, -1, b""),
        m.Message(1, 0, b"", key=b"k" * 65536),
        m.Message(1, 0, b"", event_time=1 << 63),
        m.Ack(0, ((1, -1),)),
        m.Phase1("t", ((1, 2, 1 << 64),)),
        m.Restart("\ud800"),
    ],
)
def test_what_the_wire_cannot_say_is_our_own_mistake(message: m.Frame) -> None:
    with pytest.raises(LocalProtocolError):
        encode(message)


def test_the_limit_leaves_room_for_useful_frames() -> None:
    assert len(encode(m.Message(1, 0, bytes(1 << 20)))) < FRAME_LIMIT
