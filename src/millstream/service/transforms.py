"""Filters, enrichers and sanitizers: what may be done to a request before its turn, and to an answer after it.

A transform of your own is a function. Before: it gets the request and the turn (committed state and what this turn has changed so far), and returns the
request, changed or not; it raises `RefusedRequest` to answer here. After: it gets the request and the answer, and returns the answer.

Rules
1. They run within the turn, in the order of the table's list: nothing else of the partition runs meanwhile.
2. A request that is refused counts as the session's write that it is: a retry is refused again.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millstream.errors import RefusedRequest
from millstream.service.messages import Answer, Op, Request
from millstream.service.turn import Turn

Before = Callable[[Request, Turn], Request]
After = Callable[[Request, Answer], Answer]


def keep_if(test: Callable[[bytes, bytes], bool], why: str = "the table's filter said no") -> Before:
    """A filter: an upsert whose keys and values do not all pass is refused."""

    def transform(request: Request, turn: Turn) -> Request:
        if request.op is Op.UPSERT or request.op is Op.STAGE:
            for key, value in zip(request.keys, request.values, strict=False):
                if not test(key, value):
                    raise RefusedRequest(f"key {key[:60]!r}: {why}")
        return request

    return transform


def enrich(change: Callable[[bytes, bytes, Turn], bytes]) -> Before:
    """An enricher: every value that is put is replaced by what `change(key, value, turn)` makes of it."""

    def transform(request: Request, turn: Turn) -> Request:
        if request.values and (request.op is Op.UPSERT or request.op is Op.STAGE):
            request.values = [change(key, value, turn) for key, value in zip(request.keys, request.values, strict=True)]
        return request

    return transform


def drop_fields(*names: str) -> Before:
    """A sanitizer: removes fields of values that are JSON objects, before they are kept."""
    unwanted = set(names)

    def change(key: bytes, value: bytes, turn: Turn) -> bytes:
        return _without(key, value, unwanted)

    return enrich(change)


def hide_fields(*names: str) -> After:
    """A sanitizer on the way out: fields of JSON objects are kept, and not shown."""
    unwanted = set(names)

    def transform(request: Request, answer: Answer) -> Answer:
        if answer.values:
            answer.values = [_without(b"", value, unwanted) if value else value for value in answer.values]
        return answer

    return transform


def _without(key: bytes, value: bytes, unwanted: set[str]) -> bytes:
    try:
        fields = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError as error:
        raise RefusedRequest(f"key {key[:60]!r}: the value is no JSON object ({error}), and this table takes no other") from None
    if unwanted.isdisjoint(fields):
        return value
    return msgspec.json.encode({name: field for name, field in fields.items() if name not in unwanted})
