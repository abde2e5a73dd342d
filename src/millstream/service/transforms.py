"""The gate of a table: filters, enrichers and sanitizers, for everything that enters and everything that leaves.

A transform of your own is a function. Before: `(key, value, turn) -> value` gets what is to be kept, and the turn, to look up what is there before this
request; it returns the value to keep instead, and raises `RefusedRequest` to refuse. Of a removal the value is None, and stays None.
After: `(key, value) -> value` gets what is to be shown, and returns what is shown instead.

Rules
1. All that enters passes `before`, key by key: what is written, removed or staged, and what functions put or remove. (What is restored was in before.)
2. All that leaves passes `after`, with its key: what is got, scanned and watched, and what a function returns, with the key that it was called with. An
   empty value shows nothing, and is not asked about.
3. They run in the order of the table's list, within the turn: nothing else of the partition runs meanwhile.
4. What is refused counts as the session's write that it is: a retry is refused again. Whatever else a transform raises refuses, too, and names the key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from millstream.errors import RefusedRequest, ServiceError

if TYPE_CHECKING:
    from millstream.service.state_machine import TurnView

Before = Callable[[bytes, "bytes | None", "TurnView"], "bytes | None"]
After = Callable[[bytes, bytes], bytes]


class Gate:
    """The transforms of one table.

    >>> Gate(after=[hide_fields("ssn")]).leave(b"a", b'{"ssn":1,"age":2}')
    b'{"age":2}'
    """

    def __init__(self, before: Sequence[Before] = (), after: Sequence[After] = ()) -> None:
        self._before = tuple(before)
        self.lets_all_in = not self._before
        self._after = tuple(after)

    def enter(self, key: bytes, value: bytes | None, turn: TurnView) -> bytes | None:
        found = value
        try:
            for transform in self._before:
                found = transform(key, found, turn)
                if (found is None) != (value is None) or not isinstance(found, (bytes, type(None))):
                    gave = f"{type(found).__name__} for a {type(value).__name__}"
                    raise TypeError(f"it gave a {gave}: return what to keep, or raise RefusedRequest")
        except ServiceError:
            raise
        except Exception as error:
            raise _failed("before=", key, error) from error
        return found

    def leave(self, key: bytes, value: bytes) -> bytes:
        if not value:
            return value
        try:
            for transform in self._after:
                value = transform(key, value)
                if not isinstance(value, bytes):
                    raise TypeError(f"it gave a {type(value).__name__}: return what to show, as bytes")
        except ServiceError:
            raise
        except Exception as error:
            raise _failed("after=", key, error) from error
        return value


def _failed(which: str, key: bytes, error: Exception) -> RefusedRequest:
    return RefusedRequest(f"a transform of this table ({which}) cannot do with key {key[:60]!r}: {type(error).__name__}: {error}")


def keep_if(test: Callable[[bytes, bytes], bool], why: str = "the table's filter said no") -> Before:
    """A filter: a key and value that do not pass are refused, and the whole request with them."""

    def transform(key: bytes, value: bytes | None, turn: TurnView) -> bytes | None:
        if value is not None and not test(key, value):
            raise RefusedRequest(f"key {key[:60]!r}: {why}")
        return value

    return transform


def enrich(change: Callable[[bytes, bytes, TurnView], bytes]) -> Before:
    """An enricher: every value that is put is replaced by what `change(key, value, turn)` makes of it."""

    def transform(key: bytes, value: bytes | None, turn: TurnView) -> bytes | None:
        return None if value is None else change(key, value, turn)

    return transform


def drop_fields(*names: str) -> Before:
    """A sanitizer: removes fields of values that are JSON objects, before they are kept. Other values are refused."""
    unwanted = set(names)

    def change(key: bytes, value: bytes, turn: TurnView) -> bytes:
        try:
            return _without(value, unwanted)
        except msgspec.MsgspecError as error:
            raise RefusedRequest(f"key {key[:60]!r}: the value is no JSON object ({error}), and this table takes no other") from None

    return enrich(change)


def hide_fields(*names: str) -> After:
    """A sanitizer on the way out: fields of JSON objects are kept, and not shown. A number, a text, true and false have none and are shown; of anything
    else it is not known what is in it, so `null` is shown.

    >>> hide_fields("ssn")(b"a", b'[{"ssn": 1}]'), hide_fields("ssn")(b"a", b"7")
    (b'null', b'7')
    """
    unwanted = set(names)

    def transform(key: bytes, value: bytes) -> bytes:
        try:
            return _without(value, unwanted)
        except msgspec.MsgspecError:
            with contextlib.suppress(msgspec.MsgspecError):
                msgspec.json.decode(value, type=bool | int | float | str | None)
                return value
            return b"null"

    return transform


def _without(value: bytes, unwanted: set[str]) -> bytes:
    fields = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    if unwanted.isdisjoint(fields):
        return value
    return msgspec.json.encode({name: field for name, field in fields.items() if name not in unwanted})
