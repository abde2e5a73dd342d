"""A part of a storage as a storage of its own: every name gets a prefix."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.state.storage import LocalStorage, Storage


class PrefixedStorage:
    """Objects under a prefix of another storage, with one client for all of them."""

    def __init__(self, storage: Storage, prefix: str) -> None:
        self._storage = storage
        self._prefix = f"{prefix.strip('/')}/"
        self.url = f"{storage.url}/{prefix.strip('/')}"

    def create(self, name: str, data: bytes) -> bool:
        return self._storage.create(self._prefix + name, data)

    def put(self, name: str, data: bytes) -> None:
        self._storage.put(self._prefix + name, data)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._storage.read(self._prefix + name, offset, length)

    def exists(self, name: str) -> bool:
        return self._storage.exists(self._prefix + name)

    def folders(self, prefix: str) -> list[str]:
        cut = len(self._prefix)
        return [name[cut:] for name in self._storage.folders((self._prefix + prefix).rstrip("/"))]

    def list(self, prefix: str) -> list[str]:
        cut = len(self._prefix)
        return [name[cut:] for name in self._storage.list((self._prefix + prefix).rstrip("/"))]

    def delete(self, names: Iterable[str]) -> None:
        self._storage.delete(self._prefix + name for name in names)

    def publish(self, source: str, target: str) -> bool:
        return self._storage.publish(self._prefix + source, self._prefix + target)


def under(storage: Storage, prefix: str) -> Storage:
    """What is under a prefix.

    >>> from millstream.state.memory_storage import MemoryStorage
    >>> whole = MemoryStorage()
    >>> under(whole, "a/b").put("c", b"1")
    >>> whole.read("a/b/c"), under(whole, "a").list("b")
    (b'1', ['b/c'])
    """
    return LocalStorage(storage.root / prefix) if isinstance(storage, LocalStorage) else PrefixedStorage(storage, prefix)
