"""Delivery: from a production to the rows of its consumers.

A route's key is worked out where the record is produced, with the value as the consumer will see it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.core.keys import BadKey, key_text
from millstream.core.record import Production, Record, single
from millstream.core.topology import PRODUCED, Route
from millstream.errors import HookError


class NoKey(HookError):
    """The key of a production cannot be worked out. why: without the record, for where the record stands beside it."""

    def __init__(self, why: str, record: Record) -> None:
        super().__init__(
            f"{why} (record {record!r}). The epoch was not committed; nothing is lost. Correct the key= of that computation, or send such records to a "
            f"stream with compute(..., on_error=ms.DEAD_LETTER)."
        )
        self.why = why


def field_of(value: Any, name: str) -> Any:
    """A named field of a value: an item of a dict, an attribute of anything else."""
    return value[name] if isinstance(value, dict) else getattr(value, name)


def named_key(key: Any) -> Callable[[Record], Any]:
    """A function that gives the key of a record. key: the name of a field, several, or a function already."""
    if isinstance(key, str):
        return lambda record: field_of(record.value, key)
    if isinstance(key, (list, tuple)):
        return lambda record: tuple(field_of(record.value, name) for name in key)
    return key  # type: ignore[no-any-return]


def route_key(route: Route, decode: Callable[[bytes], Any]) -> Callable[[Production], str]:
    """A function that gives the key text of a production on a route."""
    key = route.key
    if key is None or key is PRODUCED:
        return _own_key(route)
    extract = named_key(key)

    def text(production: Production) -> str:
        record = single(production.stream, production.key, production.timestamp, decode(production.body), production.id)
        try:
            return key_text(extract(record))
        except Exception as error:
            what = str(error) if isinstance(error, BadKey) else f"its key raised {type(error).__name__}: {error}"
            raise NoKey(f"stream {production.stream!r} into computation {route.computation!r}: {what}", record) from error

    return text


def _own_key(route: Route) -> Callable[[Production], str]:
    """A function that gives the production's own key: nothing is decoded for it."""

    def text(production: Production) -> str:
        try:
            return key_text(production.key)
        except BadKey as error:
            record = single(production.stream, production.key, production.timestamp, None, production.id)
            raise NoKey(f"stream {production.stream!r} into computation {route.computation!r}: {error}", record) from error

    return text
