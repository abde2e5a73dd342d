"""Documents and changes, and how they travel.

    document    a row of a table, of a view or of a join: key, value and, on tables, version
    change      what a document was and what it is (prev, next)
    origin      the row that sends a change, as the text of its key
    entry       what an origin says to one group

Rules
1. One message goes to a group from a shard in an epoch, however many origins speak: [generation, lengths, entry, entry, ...]. Entries are encoded one by
   one, where an error can still be blamed on a document, and packed without being looked at again. lengths: of the entries, as bytes of 1, 2 or 4 each,
   little end first, so that whoever reads many messages need not look for where entries end.
2. An entry of a view that keeps origins *sets* or *removes* the contribution of its origin: [origin, how, parts]. Said twice, it is said once.
   Without origins it takes parts out and puts parts in: [old parts, new parts]. The sender adds these up: its message is one entry, [how many more parts,
   how many of those put in say something, their total, how many of those taken out do, their total].
3. Entries of one origin to one group are in order, and the last one counts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from millstream.core.statekind import Codec
from millstream.reducers.base import Reducer

INSERT, UPDATE, REMOVE = 0, 1, 2  # how: what the sender knows of the contribution before
RESTATED = 4  # added to how: said again, to heal; whoever hears it says it again too

_plain = msgspec.msgpack.Encoder().encode
_plain_list = msgspec.msgpack.Decoder(list).decode


class Document(msgspec.Struct, frozen=True, gc=False):
    """A row, as the functions of a map get it."""

    key: Any
    value: Any
    version: Any = None


_FIRM = frozenset((int, str, bytes, bool, type(None)))


def unchanged(old: Any, new: Any, encode: Callable[[Any], bytes]) -> bool:
    """Whether two values are the same, type included: 1, True and 1.0 are not, NaN and NaN are."""
    kind = new.__class__
    if kind is old.__class__ and kind in _FIRM:
        return bool(old == new)
    return encode(old) == encode(new)


def packed(generation: int, entries: Sequence[bytes]) -> bytes:
    """A message of entries that are encoded already (rule 1)."""
    lengths = list(map(len, entries))
    kind = f"<{len(lengths)}{'BHI'[width_of(max(lengths, default=0)) // 2]}"
    return b"".join((packed_head(generation, len(lengths), struct.pack(kind, *lengths)), *entries))


def width_of(length: int) -> int:
    """How many bytes say the lengths of entries of which this is the longest."""
    return 1 if length < 2**8 else 2 if length < 2**16 else 4


def packed_head(generation: int, entries: int, lengths: bytes) -> bytes:
    """What stands before so many entries."""
    return b"\xdd" + (entries + 2).to_bytes(4, "big") + _plain(generation) + _plain(lengths)


def added_up(reducer: Reducer, entries: Sequence[bytes], encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> Sequence[bytes]:
    """One entry for many of a view without origins (rule 2). Where the reducer raises they stay as they are, and the visit of their group says why."""
    changes = list(map(decode, entries))
    removed, added = ([part for change in changes for part in change[side] or ()] for side in (0, 1))
    try:
        return [encode([len(added) - len(removed), *counted(reducer, added), *counted(reducer, removed)])]
    except Exception:
        return entries


def counted(reducer: Reducer, parts: Sequence[Any]) -> tuple[int, Any]:
    """How many parts say something, and their total."""
    known = [part for part in parts if part is not None]
    return len(known), reducer.fold(known) if known else None


def unpacked(data: bytes, decode: Callable[[bytes], Any]) -> tuple[int, list[Any]]:
    generation, _, *entries = decode(data)
    return generation, entries


class ViewCodec:
    """How the states of views are kept: each state class packs itself into a list of its first fields (is_plain: of plain values and bytes), and entries
    of maps are bytes already. What is inside is msgpack, so that whoever does not know the classes can read it."""

    def __init__(self, codec: Codec) -> None:
        self.name = codec.name
        self.of = codec

    def encoder(self) -> Callable[[Any], bytes]:
        return self.of.encoder()

    def decoder(self, type: Any) -> Callable[[bytes], Any]:
        if not hasattr(type, "pack"):
            return _as_it_is
        decode = _plain_list if type.is_plain else self.of.decoder(object)
        return lambda data: type(*decode(data))

    def state_encoder(self, type: Any) -> Callable[[Any], bytes]:
        if not hasattr(type, "pack"):
            return _as_it_is
        pack, encode = type.pack, _plain if type.is_plain else self.of.encoder()
        return lambda state: encode(pack(state))


def _as_it_is(data: Any) -> Any:
    return data
