"""A decoder that gives runs of MESSAGEs gives what one that gives messages does, and fails where it fails, whatever comes in whatever pieces."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import some
from millstream.connector.wire import messages as m
from millstream.connector.wire.codec import encode
from millstream.connector.wire.decoder import Decoder, RunDecoder
from millstream.errors import RemoteProtocolError

LIMIT = 300
U64 = st.integers(0, (1 << 64) - 1)
FRAMES = st.one_of(
    st.builds(m.Message, U64, U64, st.binary(max_size=40), st.integers(-(1 << 63), (1 << 63) - 1), st.binary(max_size=10)),
    st.builds(m.Notify, U64, st.text(max_size=10), U64),
    st.builds(m.Eos, U64),
    st.builds(m.Hello, st.text(max_size=5), st.text(max_size=5), st.text(max_size=5), st.text(max_size=5)),
    st.builds(m.Error, st.text(max_size=5)),
)
GARBAGE = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda n, body: struct.pack(">I", n) + body, st.integers(0, LIMIT + 50), st.binary(max_size=60)),
    st.builds(lambda n, k: struct.pack(">IBQQqH", n, 5, 1, 2, 3, k) + b"x" * 50, st.integers(0, 80), st.integers(0, 80)),
)


def heard(decoder: Any, pieces: list[bytes]) -> tuple[list[m.Frame], str | None]:
    found: list[m.Frame] = []
    try:
        for piece in pieces:
            decoder.receive(piece)
            while (frame := decoder.next()) is not None:
                if isinstance(frame, list):
                    found += [m.Message(stream, id, payload, at, key) for stream, id, at, key, payload in frame]
                else:
                    found.append(frame)
    except RemoteProtocolError as error:
        return found, str(error)
    return found, None


@settings(max_examples=some(400), deadline=None)
@given(
    st.lists(st.one_of(FRAMES.map(encode), FRAMES.map(encode), GARBAGE), max_size=8), st.lists(st.integers(1, 60), min_size=1, max_size=12)
)
def test_runs_are_the_same_messages_only_faster(parts: list[bytes], cuts: list[int]) -> None:
    wire, pieces, at, turn = b"".join(parts), [], 0, 0
    while at < len(wire):
        pieces.append(wire[at : at + cuts[turn % len(cuts)]])
        at += cuts[turn % len(cuts)]
        turn += 1
    assert heard(RunDecoder(LIMIT), pieces) == heard(Decoder(LIMIT, two_phase=False), pieces)
    assert heard(RunDecoder(LIMIT), [wire]) == heard(Decoder(LIMIT, two_phase=False), [wire])


def test_after_an_error_there_is_nothing_but_the_error() -> None:
    decoder = RunDecoder(LIMIT)
    decoder.receive(b"\0\0\0\0")
    for _ in range(2):
        assert heard(decoder, [encode(m.Eos(1))])[1] == "a frame of length 0"
    assert decoder.pending == 0


def test_a_large_frame_in_tiny_pieces_is_not_copied_again_and_again() -> None:
    decoder = RunDecoder(1 << 20)
    wire = encode(m.Message(1, 1, b"x" * 500_000))
    for at in range(len(wire) - 1):
        decoder.receive(wire[at : at + 1])
        assert at > 40 or decoder.next() is None
    decoder.receive(wire[-1:])
    assert isinstance(decoder.next(), list)
