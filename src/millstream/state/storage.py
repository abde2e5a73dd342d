"""Storage: named objects with create-if-absent, on a local (or mounted) disk or in an object store (S3, Azure, Google).

Contract, the same for all, and for the one in memory (`tests/unit/test_storage.py` runs it on a disk, on S3 and Azure servers, and in memory):
1. `create` makes an object that was not there, whole or not at all, durable when it returns; it says no if the name is taken.
2. `put` writes an object under a name that nobody else uses; whole or not at all, durable when it returns.
3. `publish` moves an object to a name a reader may see, whole. Doing it again does nothing.
4. `read`, `list`, `folders`, `delete` do what they say; deleting what is not there is no error.
5. Whatever the disk or the store refuses is a StorageError that names the object.

Local disk: bytes go to a hidden file, fsync, then `link` (create, publish) or `rename`, then fsync of the folder; only then the old name goes. obstore's own
local store is not used, because it does not fsync.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from millstream.errors import DamageError, MillstreamError, StorageError
from millstream.state.durable import sync_folder, write_all

_HIDDEN = ".tmp-"
#: What `link` says on a file system that has no such thing.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Storage(Protocol):
    """Objects under one root."""

    url: str

    def create(self, name: str, data: bytes) -> bool:
        """Makes the object; False if the name is taken."""

    def put(self, name: str, data: bytes) -> None:
        """Writes the object."""

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """The object's bytes, or a part of them. DamageError if it is not there."""

    def exists(self, name: str) -> bool:
        """Whether there is such an object."""

    def size(self, name: str) -> int:
        """How many bytes the object has. DamageError if it is not there."""

    def folders(self, prefix: str) -> list[str]:
        """The names of the folders directly in a folder, sorted: those with objects in them. A local one may be empty."""

    def list(self, prefix: str) -> list[str]:
        """The names of all objects directly in a folder, sorted."""

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects."""

    def publish(self, source: str, target: str) -> bool:
        """Moves source to target. False if target is there already; nothing happens if source is gone."""


class LocalStorage:
    """A folder."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()
        self.url = str(self.root)

    def _path(self, name: str) -> str:
        return f"{self.url}/{name}"  # a text: objects are made and asked for many times a second

    def _write(self, path: str, data: bytes) -> str:
        hidden = f"{os.path.dirname(path)}/{_HIDDEN}{secrets.token_hex(8)}"
        try:
            try:
                _write_through(hidden, data)
            except FileNotFoundError:
                _make_folder(Path(path).parent)
                _write_through(hidden, data)
        except OSError as error:
            _unlink(hidden)
            advice = (
                "See that this user may write there, or choose another place"
                if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
                else "Make room or repair the disk"
            )
            raise StorageError(
                f"cannot write {path}: {error.strerror or error}. {advice}, then run again; nothing committed is lost."
            ) from error
        return hidden

    def check(self) -> None:
        """At the start of whatever will write here: whether the file system has what `create` and `publish` need. Nothing is left behind, also no folder."""
        there = next(path for path in (self.root, *self.root.parents) if path.is_dir())
        hidden = self._write(str(there / _HIDDEN), b"")
        linked = f"{hidden}-2"
        try:
            with _refusals("use", self.url):
                _link(hidden, linked)
        finally:
            _unlink(hidden)
            _unlink(linked)

    def create(self, name: str, data: bytes) -> bool:
        path = self._path(name)
        hidden = self._write(path, data)
        try:
            with _refusals("create", path):
                try:
                    _link(hidden, path)
                except FileExistsError:
                    return False
                sync_folder(os.path.dirname(path))
        finally:
            _unlink(hidden)
        return True

    def put(self, name: str, data: bytes) -> None:
        path = self._path(name)
        hidden = self._write(path, data)
        try:
            with _refusals("write", path):
                os.replace(hidden, path)
                sync_folder(os.path.dirname(path))
        except StorageError:
            _unlink(hidden)
            raise

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        path = self._path(name)
        with _refusals("read", path):
            try:
                with open(path, "rb") as handle:
                    if offset:
                        handle.seek(offset)
                    return handle.read() if length is None else handle.read(length)
            except FileNotFoundError as error:
                raise DamageError(f"{path} is missing") from error

    def exists(self, name: str) -> bool:
        path = self._path(name)
        try:  # not `_refusals`, which costs more than the look: every epoch looks several times
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise StorageError(f"cannot look at {path}: {error.strerror or error}") from error
        return True

    def size(self, name: str) -> int:
        path = self._path(name)
        with _refusals("look at", path):
            try:
                return os.stat(path).st_size
            except FileNotFoundError as error:
                raise DamageError(f"{path} is missing") from error

    def _names(self, prefix: str, wanted: Callable[[os.DirEntry[str]], bool]) -> list[str]:
        folder = self._path(prefix) if prefix else self.url
        with _refusals("list", folder):
            try:
                with os.scandir(folder) as entries:
                    names = [e.name for e in entries if wanted(e) and not e.name.startswith(".")]
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted(f"{prefix}/{name}" if prefix else name for name in names)

    def folders(self, prefix: str) -> list[str]:
        return self._names(prefix, os.DirEntry.is_dir)

    def list(self, prefix: str) -> list[str]:
        return self._names(prefix, os.DirEntry.is_file)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            path = self._path(name)
            with _refusals("delete", path), contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def publish(self, source: str, target: str) -> bool:
        here, there = self._path(source), self._path(target)
        with _refusals("publish", there):
            if not self.exists(source):
                return True
            _make_folder(Path(there).parent)
            try:
                _link(here, there)
            except FileNotFoundError:
                return True  # somebody else has just moved it
            except FileExistsError:
                try:
                    if not os.path.samefile(here, there):
                        return False
                except FileNotFoundError:
                    return True
            sync_folder(os.path.dirname(there))  # also of a name that is there already: whoever made it may have died before this
            with contextlib.suppress(FileNotFoundError):
                os.unlink(here)
        return True


class ObjectStorage:
    """A prefix in a store that obstore knows: s3://bucket/..., gs://bucket/..., az://container/..., abfss://container@account.dfs.core.windows.net/..."""

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        self.url = url.rstrip("/")
        with _refusals("open", url):
            self._store = self._client.store.from_url(self.url, **(options or {}))

    @property
    def _client(self) -> Any:
        import obstore

        return obstore

    def create(self, name: str, data: bytes) -> bool:
        errors = self._client.exceptions
        with _refusals("create", f"{self.url}/{name}"):
            try:
                self._client.put(self._store, name, data, mode="create", use_multipart=False)
            except (errors.AlreadyExistsError, errors.PreconditionError):
                return False
        return True

    def put(self, name: str, data: bytes) -> None:
        with _refusals("write", f"{self.url}/{name}"):
            self._client.put(self._store, name, data)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        with _refusals("read", f"{self.url}/{name}"):
            try:
                if not offset and length is None:
                    return bytes(self._client.get(self._store, name).bytes())
                size = 0 if length == 0 else self._size(name)
                end = size if length is None else min(size, offset + length)
                return bytes(self._client.get_range(self._store, name, start=offset, end=end)) if offset < end else b""
            except FileNotFoundError as error:
                raise DamageError(f"{self.url}/{name} is missing") from error

    def _size(self, name: str) -> int:
        return int(self._client.head(self._store, name)["size"])

    def exists(self, name: str) -> bool:
        with _refusals("look at", f"{self.url}/{name}"):
            try:
                self._size(name)
            except FileNotFoundError:
                return False
        return True

    def size(self, name: str) -> int:
        with _refusals("look at", f"{self.url}/{name}"):
            try:
                return self._size(name)
            except FileNotFoundError as error:
                raise DamageError(f"{self.url}/{name} is missing") from error

    def folders(self, prefix: str) -> list[str]:
        return sorted(str(path).rstrip("/") for path in self._listed(prefix)["common_prefixes"])

    def list(self, prefix: str) -> list[str]:
        return sorted(str(entry["path"]) for entry in self._listed(prefix)["objects"])

    def _listed(self, prefix: str) -> Any:
        with _refusals("list", f"{self.url}/{prefix}"):
            return self._client.list_with_delimiter(self._store, prefix=prefix or None)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            with _refusals("delete", f"{self.url}/{name}"), contextlib.suppress(FileNotFoundError):
                self._client.delete(self._store, name)

    def publish(self, source: str, target: str) -> bool:
        with _refusals("publish", f"{self.url}/{target}"), contextlib.suppress(FileNotFoundError, DamageError):
            if self.exists(source):
                if self.exists(target) and self.read(source) != self.read(target):
                    return False
                self._client.copy(self._store, source, target, overwrite=True)
                self.delete([source])
        return True


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

    def size(self, name: str) -> int:
        return self._storage.size(self._prefix + name)

    def folders(self, prefix: str) -> list[str]:
        return [name[len(self._prefix) :] for name in self._storage.folders((self._prefix + prefix).rstrip("/"))]

    def list(self, prefix: str) -> list[str]:
        return [name[len(self._prefix) :] for name in self._storage.list((self._prefix + prefix).rstrip("/"))]

    def delete(self, names: Iterable[str]) -> None:
        self._storage.delete(self._prefix + name for name in names)

    def publish(self, source: str, target: str) -> bool:
        return self._storage.publish(self._prefix + source, self._prefix + target)


def under(storage: Storage, prefix: str) -> Storage:
    """What is under a prefix, as a storage of its own."""
    return LocalStorage(storage.root / prefix) if isinstance(storage, LocalStorage) else PrefixedStorage(storage, prefix)


def open_storage(url: str | os.PathLike[str], options: dict[str, Any] | None = None) -> Storage:
    """The storage behind a path or a URL such as s3://bucket/prefix, gs://bucket/prefix or az://container/prefix. Options go to the object store's client."""
    text = os.fspath(url)
    if text.startswith("file://"):
        text = text[len("file://") :]
    return ObjectStorage(text, options) if "://" in text else LocalStorage(text)


@contextlib.contextmanager
def _refusals(doing: str, what: str) -> Iterator[None]:
    """Rule 5. A disk fails with OSErrors; the client of a store may fail with anything."""
    try:
        yield
    except MillstreamError:
        raise
    except Exception as error:
        raise StorageError(f"cannot {doing} {what}: {getattr(error, 'strerror', None) or error}") from error


def _link(here: str, there: str) -> None:
    try:
        os.link(here, there)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise StorageError(
            f"cannot use {os.path.dirname(there)}: its file system has no hard links ({error.strerror}), and Millstream commits by them. Such are vfat, exFAT "
            f"and many FUSE mounts of object stores. Choose a place on a local disk or on NFS, or the URL of an object store (s3://, gs://, az://, abfss://)."
        ) from error


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _write_through(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def _make_folder(folder: Path) -> None:
    """Makes a folder and what is missing above it, all of it durable."""
    missing = [folder, *folder.parents]
    missing = missing[: next((at for at, path in enumerate(missing) if path.exists()), len(missing))]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)
