"""Snapshots: a store's entries as of one position, as objects. Any kind of store can be restored from them, in a folder or an object store.

    <name>/part-00000      frames (`state/framing.py`), each with up to 1,024 entries: msgpack, keys and values in turn; at most 8 MB of them
    <name>/snapshot.json   the position, and names, sizes, rows and checksums of the parts

Rules
1. `snapshot.json` comes last, and makes the snapshot whole. Without it there is none: what a crash has left is written over.
2. Beside the turns: the event loop gets its turn after every 1,024 entries at the latest, and a part is written in a thread.
3. A reader checks every frame and every part, so what is restored is what was saved; anything else is a DamageError that names the object and the place.
4. To drop a snapshot its `snapshot.json` goes first.
5. `rows` counts the rows of users. Entries that a partition keeps for itself (sessions, staged rows) may be in a snapshot too, and are no rows.
6. Parts are called part-NUMBER. A `snapshot.json` that names others is damaged: a reader must not be led elsewhere.
7. An upload carries whole snapshots elsewhere, however deep they lie: parts first and `snapshot.json` last, so the target never has a half one that looks
   whole. What the target has with the same bytes is not sent again, so a round after a crash goes on where the last one ended. Bytes are checked before they
   go; a snapshot that is damaged, or dropped meanwhile, does not keep others from being sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from zlib import crc32

import msgspec

from millstream.errors import DamageError, MillstreamError, StorageError
from millstream.service.messages import ENTRY
from millstream.state.framing import frame, framed_at
from millstream.state.storage import LocalStorage, Storage

WHOLE = "snapshot.json"
PART = 8 << 20
_BLOCK = 512  # entries of a frame at most
_BYTES = 1 << 18  # bytes after which a frame ends, if it has fewer
_FORMAT = 1
_REST = 2.0  # how long others have the event loop after each block, as a multiple of what the block took


class SnapshotPart(msgspec.Struct, frozen=True):
    name: str
    entries: int = msgspec.field(name="rows")
    bytes: int
    crc: int


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot that is whole. bytes: of its parts."""

    name: str
    lsn: int
    rows: int
    bytes: int
    parts: list[SnapshotPart] = []
    format: int = _FORMAT


_PART_NAME = re.compile(r"part-\d{5,}")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes]).decode


def is_part(name: str) -> bool:
    return _PART_NAME.fullmatch(name) is not None


async def write_snapshot(
    pinned: Iterable[tuple[bytes, bytes]], lsn: int, storage: Storage, name: str, *, part_bytes: int = PART
) -> Snapshot:
    """Saves entries as of a position under a name, beside the turns. A name that has this position already is left as it is."""
    found = await asyncio.to_thread(_whole, storage, name)
    if found is not None:
        if found.lsn == lsn:
            return found
        raise StorageError(f"{storage.url}/{name} holds a snapshot of position {found.lsn} already: choose another name")
    parts: list[SnapshotPart] = []
    frames: list[bytes] = []
    size = entries = rows = 0
    began = time.perf_counter()
    for block in _blocks(pinned):
        data = frame(_encode(block))
        if frames and size + len(data) > part_bytes:
            parts.append(await asyncio.to_thread(_put_part, storage, name, len(parts), frames, entries))
            frames, size, entries = [], 0, 0
        frames.append(data)
        size, entries = size + len(data), entries + len(block) // 2
        rows += sum(key[:1] == ENTRY for key in block[::2])
        await asyncio.sleep(_REST * min(0.1, time.perf_counter() - began))
        began = time.perf_counter()
    if frames:
        parts.append(await asyncio.to_thread(_put_part, storage, name, len(parts), frames, entries))
    whole = Snapshot(name, lsn, rows, sum(part.bytes for part in parts), parts)
    await asyncio.to_thread(storage.put, f"{name}/{WHOLE}", msgspec.json.format(msgspec.json.encode(whole)))
    return whole


def _blocks(entries: Iterable[tuple[bytes, bytes]]) -> Iterator[list[bytes]]:
    """Keys and values in turn, as many as go into a frame."""
    block: list[bytes] = []
    weight = 0
    for entry in entries:
        block += entry
        weight += len(entry[0]) + len(entry[1])
        if len(block) >= 2 * _BLOCK or weight >= _BYTES:
            yield block
            block, weight = [], 0
    if block:
        yield block


def _put_part(storage: Storage, name: str, number: int, frames: list[bytes], entries: int) -> SnapshotPart:
    part, data = f"part-{number:05d}", b"".join(frames)
    storage.put(f"{name}/{part}", data)
    return SnapshotPart(part, entries, len(data), crc32(data))


def _whole(storage: Storage, name: str) -> Snapshot | None:
    return describe_snapshot(storage, name) if storage.exists(f"{name}/{WHOLE}") else None


def describe_snapshot(storage: Storage, name: str) -> Snapshot:
    """What `snapshot.json` says. The name is the one by which it was found: a copy may have another."""
    try:
        data = storage.read(f"{name}/{WHOLE}")
    except DamageError:
        raise DamageError(f"{storage.url}/{name} is no snapshot, or was never finished: it has no {WHOLE}") from None
    try:
        found = msgspec.json.decode(data, type=Snapshot)
    except msgspec.MsgspecError as error:
        raise _damaged(storage, f"{name}/{WHOLE}", f"it cannot be read: {error}") from None
    if found.format != _FORMAT:
        raise _damaged(storage, f"{name}/{WHOLE}", f"it has format {found.format}, and this Millstream knows {_FORMAT}")
    strange = next((part.name for part in found.parts if not is_part(part.name)), None)
    if strange is not None:
        raise _damaged(storage, f"{name}/{WHOLE}", f"it names a part {strange!r}, and parts are called part-NUMBER")
    return msgspec.structs.replace(found, name=name)


def read_snapshot(storage: Storage, name: str) -> tuple[Snapshot, Iterator[tuple[bytes, bytes]]]:
    """A snapshot and its entries, which are read part by part. DamageError if it is not what was saved."""
    found = describe_snapshot(storage, name)
    return found, _entries(storage, found)


def _entries(storage: Storage, snapshot: Snapshot) -> Iterator[tuple[bytes, bytes]]:
    for part in snapshot.parts:
        name = f"{snapshot.name}/{part.name}"
        data = storage.read(name)
        if len(data) != part.bytes:
            raise _damaged(storage, name, f"it has {len(data)} bytes instead of {part.bytes}")
        at = entries = 0
        while at < len(data):
            found = framed_at(data, at)
            if found.defect is not None:
                raise _damaged(storage, name, f"at byte {at}: {found.defect.value}")
            try:
                block = _decode(data[found.start : found.stop])
            except msgspec.MsgspecError as error:
                raise _damaged(storage, name, f"at byte {at}: {error}") from None
            entries += len(block) // 2
            moves = iter(block)
            yield from zip(moves, moves, strict=True)
            at = found.end
        if entries != part.entries or crc32(data) != part.crc:
            raise _damaged(storage, name, f"it has {entries} entries instead of {part.entries}, or is the part of another snapshot")


def _damaged(storage: Storage, name: str, what: str) -> DamageError:
    error = DamageError(f"{storage.url}/{name} is damaged: {what}. Use another snapshot.")
    error.object = name
    return error


def newest_snapshot(storage: Storage, prefix: str) -> Snapshot | None:
    found = [whole for name in storage.folders(prefix) if (whole := _whole(storage, name)) is not None]
    return max(found, key=attrgetter("lsn"), default=None)


def drop_older(storage: Storage, prefix: str, keep: str) -> list[str]:
    """Removes what is older than the snapshot `keep` under the same prefix, also what was never finished. Returns the names. Rule 4.

    What has a higher position, or no position yet and a later name, is left: another owner is writing it.
    """
    newest = describe_snapshot(storage, keep)
    gone = []
    for name in storage.folders(prefix):
        if name == keep:
            continue
        whole = _whole(storage, name)
        if (whole.lsn < newest.lsn) if whole is not None else (name < keep):
            drop_snapshot(storage, name)
            gone.append(name)
    return gone


def drop_snapshot(storage: Storage, name: str) -> None:
    storage.delete([f"{name}/{WHOLE}"])
    storage.delete(storage.list(name))
    if isinstance(storage, LocalStorage):  # object stores have no folders
        with contextlib.suppress(OSError):
            (storage.root / name).rmdir()


def upload_once(folder: Path | str, storage: Storage, say: Callable[[str], None] = lambda text: None) -> list[str]:
    """Sends every snapshot under a folder that the target does not have. Returns their names, which are their paths below the folder.

    Raises the first failure, after all others were tried.

    >>> from millstream.state.memory_storage import MemoryStorage
    >>> upload_once(Path("nothing/here"), MemoryStorage())
    []
    """
    root = Path(folder)
    source = LocalStorage(root)
    sent: list[str] = []
    failed: MillstreamError | None = None
    for path in sorted(root.rglob(WHOLE)):
        name = path.parent.relative_to(root).as_posix()
        if any(part.startswith(".") for part in path.parent.relative_to(root).parts):
            continue
        try:
            if _send(source, storage, name, say):
                sent.append(name)
        except MillstreamError as error:
            if not path.exists():
                say(f"{name} was dropped while it was sent")
                continue
            say(f"{name} could not be sent: {error}")
            failed = failed or error
    if failed is not None:
        raise failed
    return sent


def _send(source: Storage, target: Storage, name: str, say: Callable[[str], None]) -> bool:
    if target.exists(f"{name}/{WHOLE}"):
        return False
    whole = source.read(f"{name}/{WHOLE}")
    found = describe_snapshot(source, name)
    for part in found.parts:
        path = f"{name}/{part.name}"
        data = source.read(path)
        if len(data) != part.bytes or crc32(data) != part.crc:
            raise DamageError(f"{source.url}/{path} is damaged: its bytes are not those that {WHOLE} describes. It is not sent.")
        if not (target.exists(path) and target.read(path) == data):
            target.put(path, data)
    target.put(f"{name}/{WHOLE}", whole)
    say(f"{name}: position {found.lsn}, {found.rows} rows, {found.bytes} bytes to {target.url}")
    return True


def watch_and_upload(
    folder: Path | str, storage: Storage, say: Callable[[str], None] = print, *, every: float, stop: threading.Event
) -> int:
    """Does `upload_once` again and again, until `stop` is set. Failures are said, and tried again. Returns how many were sent."""
    sent = 0
    while not stop.is_set():
        with contextlib.suppress(MillstreamError):  # it was said; the next round tries again
            sent += len(upload_once(folder, storage, say))
        stop.wait(every)
    return sent
