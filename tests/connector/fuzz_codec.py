"""Fuzzing, guided by coverage: arbitrary bytes into the decoder, the sink's session and the log. Started by `test_codec_fuzz.py`, or by hand:

python tests/connector/fuzz_codec.py -max_total_time=60
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["millstream.connector"]):
    from millstream.connector.sink.outputs.memory import MemoryOutputs
    from millstream.connector.sink.protocol import txnlog
    from millstream.connector.sink.protocol.session import SinkSession
    from millstream.connector.sink.server import SessionRunner
    from millstream.connector.wire import messages as m
    from millstream.connector.wire.codec import encode
    from millstream.connector.wire.decoder import Decoder
    from millstream.errors import DamageError, RemoteProtocolError

LIMIT = 4096
GREETING = encode(m.Hello(m.SINK_VERSION, "", "p", "w")) + encode(m.Notify(1, "w", 0))


class Never:
    is_cut = False

    def part(self, last_words: m.Frame) -> None:
        """Nobody is there to be told."""


def decoded(data: bytes, first: int, join: int | None) -> list[m.Frame] | None:
    """What a decoder makes of the bytes, given in two pieces; None if it refuses them."""
    decoder, found = Decoder(LIMIT, join=join), []
    try:
        for piece in (data[:first], data[first:]):
            decoder.receive(piece)
            while (frame := decoder.next()) is not None:
                found.append(frame)
    except RemoteProtocolError:
        return None
    if join is None:
        assert b"".join(map(encode, found)) == data[: len(data) - decoder.pending]
    return found


def one(data: bytes) -> None:
    first = data[0] if data else 0
    whole = decoded(data[1:], len(data), None)
    assert decoded(data[1:], first, None) == whole
    assert (decoded(data[1:], first, 1) is None) == (whole is None)

    outputs = MemoryOutputs()
    runner = SessionRunner(SinkSession(), Decoder(LIMIT, join=1), outputs("w"), Never(), lambda workers: None)  # type: ignore[arg-type]
    runner.feed(GREETING)
    assert not runner.is_over
    for piece in (data[1:first], data[max(1, first) :]):
        if not runner.is_over:
            runner.feed(piece)
    ledger = runner.session.ledger
    assert 0 <= ledger.committed <= ledger.received
    assert len(outputs.committed("w")) == ledger.committed

    try:
        entries, size = txnlog.decode_log(txnlog.MAGIC + data)
    except DamageError:
        return
    assert txnlog.MAGIC + b"".join(map(txnlog.encode_entry, entries)) == (txnlog.MAGIC + data)[:size]


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
