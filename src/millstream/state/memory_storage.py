"""In memory: a storage with the contract of state/storage.py, for simulations and tests; and entries with that of the core's Store."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterable, Iterator, Mapping

from millstream.errors import DamageError


class MemoryStorage:
    """Objects in a dictionary."""

    url = "memory"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self._lock = threading.Lock()  # threads may create and publish at once

    def create(self, name: str, data: bytes) -> bool:
        with self._lock:
            if name in self.objects:
                return False
            self.objects[name] = data
            return True

    def put(self, name: str, data: bytes) -> None:
        self.objects[name] = data

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if name not in self.objects:
            raise DamageError(f"{self.url}/{name} is missing")
        data = self.objects[name]
        return data[offset:] if length is None else data[offset : offset + length]

    def exists(self, name: str) -> bool:
        return name in self.objects

    def size(self, name: str) -> int:
        return len(self.read(name))

    def folders(self, prefix: str) -> list[str]:
        start = prefix + "/" if prefix else ""
        rest = (name[len(start) :] for name in tuple(self.objects) if name.startswith(start))
        return sorted({start + name.split("/", 1)[0] for name in rest if "/" in name})

    def list(self, prefix: str) -> list[str]:
        start = prefix + "/" if prefix else ""
        return sorted(name for name in tuple(self.objects) if name.startswith(start) and "/" not in name[len(start) :])

    def delete(self, names: Iterable[str]) -> None:
        for name in list(names):
            self.objects.pop(name, None)

    def publish(self, source: str, target: str) -> bool:
        with self._lock:
            if source not in self.objects:
                return True
            if target in self.objects and self.objects[target] != self.objects[source]:
                return False
            self.objects[target] = self.objects.pop(source)
            return True


class MemoryStore:
    """An ordered map in memory. Implements the core's Store."""

    def __init__(self, entries: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.entries = dict(entries)
        self._keys = sorted(self.entries)

    def get(self, key: bytes) -> bytes | None:
        return self.entries.get(key)

    def scan(self, start: bytes, stop: bytes, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        low, high = bisect.bisect_left(self._keys, start), bisect.bisect_left(self._keys, stop)
        found = self._keys[low:high]
        for key in reversed(found) if reverse else found:
            yield key, self.entries[key]

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        return (key for key, _ in self.scan(start, stop))

    def apply(self, delta: Mapping[bytes, bytes | None]) -> None:
        for key, value in delta.items():
            if value is None:
                if self.entries.pop(key, None) is not None:
                    del self._keys[bisect.bisect_left(self._keys, key)]
            else:
                if key not in self.entries:
                    bisect.insort(self._keys, key)
                self.entries[key] = value

    def stats(self) -> None:
        """Nothing to say."""

    def close(self) -> None:
        """Nothing to end."""
