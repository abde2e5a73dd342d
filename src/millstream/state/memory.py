"""Storage in memory, with the contract of state/storage.py: for simulations and tests."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.errors import DamageError


class MemoryStorage:
    """Objects in a dictionary."""

    url = "memory"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def create(self, name: str, data: bytes) -> bool:
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

    def list(self, prefix: str) -> list[str]:
        start = prefix + "/" if prefix else ""
        return sorted(name for name in self.objects if name.startswith(start) and "/" not in name[len(start) :])

    def delete(self, names: Iterable[str]) -> None:
        for name in list(names):
            self.objects.pop(name, None)

    def publish(self, source: str, target: str) -> bool:
        if source not in self.objects:
            return True
        if target in self.objects and self.objects[target] != self.objects[source]:
            return False
        self.objects[target] = self.objects.pop(source)
        return True
