"""Staged rows, and what becomes of them: how a sink writes in two phases. `state_machine.py` calls this within a turn.

A transaction is called LABEL|FENCE|NUMBER|ATTEMPT: whose it is, of which run, which of its epochs, and which try at it.

Rules
0. A decision names transactions and says what is to become of them, and in which fence. So a run may commit what a run before it has staged.
1. Staged rows are entries that are not visible. COMMIT makes those of all transactions that it names visible at one position; DROP drops and CHECK counts them.
2. Numbers of a label are committed in ascending order. To commit again what was committed is harmless, and says so.
3. A fence never goes back: who comes with a lower one than the label has seen is refused. So neither a zombie task nor a replaced driver stages or decides.
4. SWEEP drops what failed attempts have left: all that is staged below a number under labels that begin with one, but not the transactions to keep.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from millstream.errors import RefusedRequest
from millstream.service.messages import LABEL, STAGED

_LONGEST = 1024  # letters of a transaction's name, which every staged row has in its key


class Txn(NamedTuple):
    label: str
    fence: int
    number: int
    attempt: str

    @property
    def text(self) -> str:
        return f"{self.label}|{self.fence}|{self.number}|{self.attempt}"


class LabelState(msgspec.Struct, array_like=True, gc=False):
    """What a label has come to: the highest fence, and the last number that was committed, with its transaction."""

    fence: int = 0
    number: int = -1
    txn: str = ""


class StagedRow(msgspec.Struct, array_like=True, gc=False):
    """A row that waits. A value of None removes the key."""

    key: bytes
    value: bytes | None


encode_staged = encode_label = msgspec.msgpack.Encoder().encode
decode_staged = msgspec.msgpack.Decoder(StagedRow).decode
decode_label = msgspec.msgpack.Decoder(LabelState).decode


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) < 19


def parse_txn(text: str) -> Txn:
    """Takes a name apart.

    >>> parse_txn("names-counts-3|7|41|a1").number
    41
    """
    if len(text) > _LONGEST:
        raise RefusedRequest(f"a transaction's name has {len(text):,} letters, and {_LONGEST:,} are allowed: {text[:60]!r}...")
    parts = text.rsplit("|", 3)
    if len(parts) != 4 or not parts[0] or "\0" in text or not _is_number(parts[1]) or not _is_number(parts[2]):
        raise RefusedRequest(f"a transaction is called LABEL|FENCE|NUMBER|ATTEMPT, and not {text!r}")
    return Txn(parts[0], int(parts[1]), int(parts[2]), parts[3])


def staged_prefix(txn: str) -> bytes:
    return STAGED + txn.encode() + b"\0"


def label_key(label: str) -> bytes:
    return LABEL + label.encode()
