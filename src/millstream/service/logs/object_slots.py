"""Slots: what the log of objects is made of, and which of it counts. Pure.

    <partition>/slots/<number, 20 digits>    created if absent, never changed; a frame around msgpack

A slot holds records of a term, or a seal. Each says the last position behind it, so a reader can begin at any slot that counts.

Rules
1. The slots count in the order of their numbers. A seal ends all lower terms: records of a lower term behind it count as nothing.
2. The records that count follow each other without a hole. Anything else is damage.
3. Trimming removes slots with records only, and never the newest slot. A seal stays for ever: it lies where an old owner would write next, so an old
   owner finds it however late it wakes. (There is one for each change of owners, of a hundred bytes.)
4. Trimming removes the highest of the slots first. So the newest slots, down to the first number that is missing, are the log: that run begins with a
   slot that counts, whose own words say which term and which position it begins with.
"""

from __future__ import annotations

import msgspec

from millstream.errors import DamageError
from millstream.state.framing import frame, framed_at


class Slot(msgspec.Struct, array_like=True, gc=False):
    """What a slot holds. by: which process made it. first: the position of its first record; of a seal, the one that comes next."""

    term: int
    by: bytes
    first: int
    last: int
    seals: bool = False
    records: list[bytes] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Slot).decode


def slot_name(number: int) -> str:
    """The name of a slot's object below its partition.

    >>> slot_name(7)
    'slots/00000000000000000007'
    """
    return f"slots/{number:020d}"


def encode_slot(slot: Slot) -> bytes:
    return frame(_encode(slot))


def decode_slot(data: bytes, where: str) -> Slot:
    found = framed_at(data, 0)
    if found.defect is not None or found.end != len(data):
        what = found.defect.value if found.defect else "there is something behind its end"
        raise damaged_slot(where, f"at byte 0: {what}")
    try:
        return _decode(data[found.start : found.stop])
    except msgspec.MsgspecError as error:
        raise damaged_slot(where, f"it is no slot of a log: {error}") from None


def damaged_slot(where: str, what: str) -> DamageError:
    error = DamageError(f"{where} is damaged: {what}. Restore it from a copy, or the partition from a snapshot that is newer.")
    error.object = where
    return error


class SlotWalk:
    """Goes through slots in order and says what counts.

    >>> walk = SlotWalk()
    >>> [walk.counts(slot, "here") for slot in (Slot(1, b"a", 1, 2), Slot(2, b"b", 3, 2, True), Slot(1, b"a", 3, 3), Slot(2, b"b", 3, 3))]
    [True, True, False, True]
    >>> walk.term, walk.last
    (2, 3)
    """

    def __init__(self) -> None:
        self.term = 0
        self.last = 0
        self.is_begun = False

    def counts(self, slot: Slot, where: str) -> bool:
        """Rule 1, for the next slot."""
        if slot.term < self.term:
            return False
        if self.is_begun and slot.first != self.last + 1:
            raise damaged_slot(where, f"it goes on with position {slot.first} behind {self.last}")
        self.term, self.last, self.is_begun = slot.term, slot.last, True
        return True
