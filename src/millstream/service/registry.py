"""The registry: where the desired state is kept, in a folder or an object store. Its calls may wait for a disk or a network.

    changes/<version>.json    one change; created if absent, which is the compare-and-set
    bases/<version>.json      everything as of a version, so that few changes have to be read

Rules
1. A version is its object. Two who want to make the same version cannot both create it.
2. The second line of an object is a CRC-32 of the first: damage is told from absence.
3. Changes that a base covers are removed some versions later, so that who is just reading finds them.
"""

from __future__ import annotations

import threading
from zlib import crc32

import msgspec

from millstream.errors import DamageError
from millstream.service.desired_state import Desired, RegistryChange
from millstream.state.storage import Storage

EVERY = 128  # changes, until a base is written
_decode_change = msgspec.json.Decoder(RegistryChange).decode
_decode_desired = msgspec.json.Decoder(Desired).decode


class Registry:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._known: Desired | None = None

    def read(self) -> Desired:
        """The newest version; looks only for what is new since the last time."""
        with self._lock:
            found = self._read()
            return Desired(found.version, found.next_id, dict(found.partitions), dict(found.nodes), dict(found.tables))

    def _read(self) -> Desired:
        known = self._known
        for _ in range(20):
            if known is None:
                names = self._storage.list("bases")
                known = _decode_desired(self._open(names[-1])) if names else Desired()
            try:
                while self._storage.exists(_change_name(known.version + 1)):
                    known.apply(_decode_change(self._open(_change_name(known.version + 1))))
            except DamageError:
                if self._storage.exists(_change_name(known.version + 1)):
                    raise
                known = None  # covered and removed while we read
                continue
            if all(_version(name) <= known.version for name in self._storage.list("bases")[-1:]):
                self._known = known
                return known
            known = None  # changes behind the one that we look for were removed: a base has them
        raise DamageError(f"the registry {self._storage.url} keeps changing, or misses a version")

    def change(self, change: RegistryChange, version: int) -> bool:
        """Makes a change to a version that was read; False if it is not the newest any more. Raises RefusedRequest if it may not be made."""
        with self._lock:
            found = self._read()
            if found.version != version:
                return False
            found.check(change)
            name = _change_name(version + 1)
            data = _seal(change)
            if not self._storage.create(name, data) and self._storage.read(name) != data:
                return False
            found.apply(change)
            if found.version % EVERY == 0:
                self._condense(found)
            return True

    def _condense(self, found: Desired) -> None:
        """Rule 3."""
        self._storage.create(f"bases/{found.version:020d}.json", _seal(found))
        bases = self._storage.list("bases")
        self._storage.delete(bases[:-2])
        if len(bases) > 1:
            before = _version(bases[-2])
            self._storage.delete([name for name in self._storage.list("changes") if _version(name) <= before])

    def _open(self, name: str) -> bytes:
        body, _, rest = self._storage.read(name).partition(b"\n")
        if rest.strip() != b"%08x" % crc32(body):
            raise DamageError(f"{self._storage.url}/{name} is damaged: its checksum does not match. Restore it from a copy.")
        return body


def _seal(value: object) -> bytes:
    body = msgspec.json.encode(value)
    return body + b"\n%08x\n" % crc32(body)


def _change_name(version: int) -> str:
    return f"changes/{version:020d}.json"


def _version(name: str) -> int:
    return int(name.rsplit("/", 1)[-1].removesuffix(".json"))
