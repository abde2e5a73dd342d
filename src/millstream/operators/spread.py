"""Windows with hot keys: partial results per key and salt come first, and are joined behind.

Rules
1. A record's salt is the CRC-32 of its id: it is the same in every attempt, on every engine.
2. Records are counted by a window operator that is called `<name>.parts`. Its key is the user's with the salt behind it, and it tells its reducers' parts
   instead of what they show. The operator with the user's name joins the parts of a window, so its results are those of one operator: a reducer does not
   depend on how values are grouped (`reducers/base.py`).
3. A session, and a window that changes, cannot be joined of parts: which records a session has shows only where all of the key's records are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

from millstream.core.keys import MAX_SHARDS
from millstream.core.route_keys import named_key
from millstream.core.topology import Input, as_key
from millstream.errors import DefinitionError
from millstream.operators.expressions import Expression, as_expression, as_text
from millstream.operators.record_keys import record_key
from millstream.operators.window_spec import WindowSpec
from millstream.operators.windows import Session
from millstream.reducers.base import Reducer


def check_spread(name: str, spec: WindowSpec, spread: int) -> None:
    """Raises DefinitionError if a window cannot be spread."""
    if isinstance(spread, bool) or not isinstance(spread, int) or not 2 <= spread <= MAX_SHARDS:
        raise DefinitionError(f"window {name!r}: spread={spread!r}: give a whole number from 2 to {MAX_SHARDS}")
    if isinstance(spec.kind, Session):
        why = "which records a session has shows only where all of its key's records are"
    elif spec.changes:
        why = "a window with lateness= or early= tells changes, and those of its parts would not be those of the whole"
    else:
        return
    raise DefinitionError(f"window {name!r}: {spec.kind.describe()} cannot have spread=, because {why}")


def salted(name: str, key: Any, stream: str, spread: int, injected: Callable[[str], Any]) -> Any:
    """A stream's key with the salt behind it. injected: an injector by its stream, None for an internal stream."""
    key, injector = as_key(as_text(key)), injected(stream)
    if injector is None:
        return SaltedKey(record_key(name, Input(stream, key)), spread)
    if not isinstance(injector.id, str):
        raise DefinitionError(
            f"window {name!r}: spread= parts the records of stream {stream!r} by their ids: give inject(id=) a column's name or SQL text"
        )
    return (*(key if isinstance(key, tuple) else (key,)), Expression("crc32", as_expression(injector.id).cast("string")) % spread)


class SaltedKey:
    """The key of records of an internal stream, with the salt behind it."""

    def __init__(self, key: Any, spread: int) -> None:
        self._key, self._spread = key, spread

    def __call__(self, record: Any) -> Any:
        key, salt = named_key(self._key)(record), crc32(record.id.encode()) % self._spread
        return (*key, salt) if isinstance(key, tuple) and len(key) != 1 else (key, salt)

    def __repr__(self) -> str:
        return f"{self._key!r}, crc32(id) % {self._spread}"


class Unsalted:
    """The key without the salt."""

    def __call__(self, record: Any) -> Any:
        key = record.key[:-1]
        return key[0] if len(key) == 1 else key

    def __repr__(self) -> str:
        return "the key without the salt"


class OfParts(Reducer):
    """A reducer that reads its own parts, which stand in a field of the value."""

    def __init__(self, reducer: Reducer, field: str) -> None:
        self.reducer, self.field, self.empty = reducer, field, reducer.empty

    def lift(self, value: Any) -> Any:
        return value[self.field]

    def combine(self, a: Any, b: Any) -> Any:
        return self.reducer.combine(a, b)

    def finish(self, total: Any) -> Any:
        return self.reducer.finish(total)

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return self.reducer.functions

    def describe(self) -> str:
        return f"the parts of {self.reducer.describe()}"
