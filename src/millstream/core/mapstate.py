"""MapState: a key's state as many sub-rows, sorted by sub-key, read lazily and written only where changed.

`State = ms.MapState` makes the whole state a map; a field of that type in a dataclass or Struct makes a part of it one:

    @dataclass
    class Session:
        started: int = 0
        pages: ms.MapState = field(default_factory=ms.MapState)

A key with a million entries costs what an epoch touches: `get` reads one entry, `range` streams, and only changed entries
enter the delta. A value is taken as it is when it is set, and whoever asks gets an object of their own: changing one in place is never seen,
in this epoch or a later one. Set it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from millstream.core.keyspace import Store, after, decode_sub_key, encode_sub_key

_MISSING = object()


class MapState:
    """An ordered map that lives in the store, entry by entry.

    >>> pages = MapState()
    >>> pages["b"] = 2
    >>> pages["a"] = 1
    >>> list(pages.range("a", "b")), pages.get("c", 0), "b" in pages
    ([('a', 1)], 0, True)
    """

    __slots__ = ("_decode", "_dirty", "_encode", "_prefix", "_store")

    def __init__(self) -> None:
        self._store: Store | None = None
        self._prefix = b""
        self._encode: Callable[[Any], bytes] | None = None
        self._decode: Callable[[bytes], Any] | None = None
        self._dirty: dict[bytes, Any] = {}  # _MISSING, or the value: encoded, once the map is bound

    def bind(self, store: Store, prefix: bytes, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> None:
        """Called by the step: where the committed entries are."""
        self._store, self._prefix, self._encode, self._decode = store, prefix, encode, decode

    def _shown(self, kept: Any) -> Any:
        return kept if self._decode is None else self._decode(kept)

    @property
    def is_bound(self) -> bool:
        """Whether the step knows this map: as the state itself, or as a field of it."""
        return self._store is not None

    def belongs_to(self, prefix: bytes) -> bool:
        """Whether this is the map that was handed out for a field."""
        return self._prefix == prefix

    def _raw(self, sub_key: Any) -> bytes:
        return self._prefix + encode_sub_key(sub_key)

    def get(self, sub_key: Any, default: Any = None) -> Any:
        """The value under a sub-key, or the default."""
        raw = self._raw(sub_key)
        value = self._dirty.get(raw, self)
        if value is not self:
            return default if value is _MISSING else self._shown(value)
        data = self._store.get(raw) if self._store is not None else None
        return default if data is None else self._decode(data)  # type: ignore[misc]

    def __getitem__(self, sub_key: Any) -> Any:
        value = self.get(sub_key, _MISSING)
        if value is _MISSING:
            raise KeyError(sub_key)
        return value

    def __contains__(self, sub_key: Any) -> bool:
        return self.get(sub_key, _MISSING) is not _MISSING

    def __setitem__(self, sub_key: Any, value: Any) -> None:
        self._dirty[self._raw(sub_key)] = value if self._encode is None else self._encode(value)

    def __delitem__(self, sub_key: Any) -> None:
        if sub_key not in self:
            raise KeyError(sub_key)
        self._dirty[self._raw(sub_key)] = _MISSING

    def set(self, sub_key: Any, value: Any) -> None:
        """Does what `map[sub_key] = value` does."""
        self[sub_key] = value

    def delete(self, sub_key: Any) -> None:
        """Removes an entry; nothing happens if there is none."""
        self._dirty[self._raw(sub_key)] = _MISSING

    def pop(self, sub_key: Any, default: Any = _MISSING) -> Any:
        """Removes an entry and returns its value."""
        value = self.get(sub_key, _MISSING)
        if value is _MISSING:
            if default is _MISSING:
                raise KeyError(sub_key)
            return default
        self.delete(sub_key)
        return value

    def range(self, start: Any = None, stop: Any = None, reverse: bool = False) -> Iterator[tuple[Any, Any]]:
        """Entries with start <= sub-key < stop in order of sub-key; None leaves that side open. Changes made while it runs may or may not be seen."""
        low = self._raw(start) if start is not None else self._prefix
        high = self._raw(stop) if stop is not None else (after(self._prefix) if self._prefix else b"\xff")
        changed = sorted((raw for raw in self._dirty if low <= raw < high), reverse=reverse)
        stored = iter(self._store.scan(low, high, reverse)) if self._store is not None else iter(())
        skip = len(self._prefix)
        head = next(stored, None)
        for raw in changed:
            while head is not None and (head[0] > raw if reverse else head[0] < raw):
                yield decode_sub_key(head[0][skip:]), self._decode(head[1])  # type: ignore[misc]
                head = next(stored, None)
            if head is not None and head[0] == raw:
                head = next(stored, None)
            value = self._dirty.get(raw, _MISSING)
            if value is not _MISSING:
                yield decode_sub_key(raw[skip:]), self._shown(value)
        while head is not None:
            value = self._dirty.get(head[0], head)  # it may have been set since the loop began
            if value is not _MISSING:
                yield decode_sub_key(head[0][skip:]), self._decode(head[1]) if value is head else self._shown(value)  # type: ignore[misc]
            head = next(stored, None)

    def __iter__(self) -> Iterator[Any]:
        return (sub_key for sub_key, _ in self.range())

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All entries in order of sub-key."""
        return self.range()

    def clear(self) -> None:
        """Removes every entry; costs what there is."""
        for sub_key in list(self):
            self.delete(sub_key)

    def is_empty(self) -> bool:
        return next(iter(self), self) is self

    def take_over(self, store: Store, prefix: bytes, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> None:
        """Called by the step for a map that user code put in the place of the one it was given: what was stored goes."""
        gone = {key: _MISSING for key, _ in store.scan(prefix, after(prefix))}
        self._dirty = {**gone, **{prefix + raw: _MISSING if value is _MISSING else encode(value) for raw, value in self._dirty.items()}}
        self.bind(store, prefix, encode, decode)

    def changes(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Called by the step: what this epoch changed, encoded."""
        for raw, data in self._dirty.items():
            yield raw, None if data is _MISSING else data

    def copied(self) -> dict[bytes, Any]:
        """Called by the step: this epoch's changes so far, so that `put_back` can return to them."""
        return dict(self._dirty)

    def put_back(self, changes: dict[bytes, Any]) -> None:
        """Called by the step: as `copied` found it."""
        self._dirty = dict(changes)

    def __reduce__(self) -> Any:
        return MapState, ()  # its entries are sub-rows of their own, whatever the codec

    def __repr__(self) -> str:
        return f"MapState({dict(self.items())!r})"
