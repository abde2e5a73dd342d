"""The log of transactions: what is torn is dropped, what is damaged is told, and never the one for the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.connector.sink.protocol import txnlog as t
from millstream.connector.sink.protocol.ledger import Open, Recovered
from millstream.errors import DamageError

ENTRIES: list[t.Entry] = [
    t.Named("w/1"),
    t.Prepared("a", 0, 10),
    t.Committed("a", 10),
    t.Prepared("b", 10, 20),
    t.RolledBack("b", 10),
    t.Vetoed("c", "bytes 10 to 12 never came"),
    t.RolledBack("c", 10),
    t.Sealed(7),
    t.Prepared("d", 10, 30),
]
LOG = t.MAGIC + b"".join(map(t.encode_entry, ENTRIES))
ENDS = [len(t.MAGIC) + sum(len(t.encode_entry(entry)) for entry in ENTRIES[:count]) for count in range(len(ENTRIES) + 1)]


def test_records_come_back() -> None:
    assert t.decode_log(LOG) == (ENTRIES, len(LOG))


def test_a_log_that_is_cut_anywhere_has_its_whole_records_and_a_torn_tail() -> None:
    for cut in range(len(LOG)):
        whole = sum(end <= cut for end in ENDS[1:])
        assert t.decode_log(LOG[:cut]) == (ENTRIES[:whole], ENDS[whole] if cut >= ENDS[0] else 0), cut


@pytest.mark.parametrize("zeros", [1, 3, 100])
def test_a_tail_of_zeros_is_torn_too(zeros: int) -> None:
    for cut in range(len(t.MAGIC), len(LOG)):
        found, size = t.decode_log(LOG[:cut] + bytes(zeros))
        whole = sum(end <= cut for end in ENDS[1:])
        # a zero that the record would have had there anyway completes it
        assert found[:whole] == ENTRIES[:whole] and len(found) <= whole + 1 and size == ENDS[len(found)]


def test_a_changed_byte_anywhere_but_in_the_last_record_is_damage() -> None:
    for at in range(ENDS[-2]):
        changed = bytearray(LOG)
        changed[at] ^= 0x15
        with pytest.raises(DamageError):
            t.decode_log(bytes(changed))


def test_a_changed_byte_in_the_last_record_is_damage_unless_its_end_is_missing() -> None:
    for at in range(ENDS[-2], ENDS[-1]):
        changed = bytearray(LOG)
        changed[at] ^= 0x15
        with pytest.raises(DamageError, match="Restore it"):
            t.decode_log(bytes(changed), "the log of w")


def test_a_record_of_another_kind_is_damage() -> None:
    payload = b"\x81\xa4type\xa4what"
    entry = t.frame(payload)
    with pytest.raises(DamageError, match="no known kind"):
        t.decode_log(t.MAGIC + entry)


def test_another_file_is_no_log() -> None:
    for data in (b"hello world, this is no log", b"hi", b"MSTX2\n"):
        with pytest.raises(DamageError):
            t.decode_log(data)


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_a_torn_tail_or_damage(data: bytes) -> None:
    try:
        found, size = t.decode_log(t.MAGIC + data)
    except DamageError:
        return
    assert b"".join(map(t.encode_entry, found)) == (t.MAGIC + data)[len(t.MAGIC) : size]


def test_the_last_records_decide() -> None:
    expected = {
        1: Recovered(),
        2: Recovered(0, Open("a", 10), None),
        3: Recovered(10, None, "a"),
        4: Recovered(10, Open("b", 20), "a"),
        5: Recovered(10, None, "a"),
        6: Recovered(10, Open("c", 10, "bytes 10 to 12 never came"), "a"),
        7: Recovered(10, None, "a"),
        8: Recovered(10, None, "a", 7),
        9: Recovered(10, Open("d", 30), "a", 7),
    }
    for count, recovered in expected.items():
        assert t.recovered(ENTRIES[:count]) == recovered
        entries, _ = t.decode_log(t.condensed("w/1", recovered))
        assert entries[0] == t.Named("w/1") and t.recovered(entries) == recovered
