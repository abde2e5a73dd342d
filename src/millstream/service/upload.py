"""The sidecar that carries snapshots away: from a folder of this host to a folder elsewhere or an object store.

Rules
1. A folder with `snapshot.json` is a snapshot, however deep it lies. One without is not whole yet, and is left for the next round.
2. Parts go first and `snapshot.json` last, so the target never has a half one that looks whole.
3. What is at the target is remembered by the target: a snapshot whose `snapshot.json` is there is not sent again, and a part that is there
   with the same bytes is not either. So a round after a crash goes on where the last one ended.
4. Bytes are checked against `snapshot.json` before they go: damage is not carried on. A snapshot that is damaged, or dropped meanwhile, does not keep others
   from being sent.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

from millstream.errors import DamageError, MillstreamError
from millstream.service.stores.snapshots import WHOLE, describe_snapshot
from millstream.state.storage import LocalStorage, Storage

Say = Callable[[str], None]


def upload_once(folder: Path | str, storage: Storage, say: Say = lambda text: None) -> list[str]:
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


def _send(source: Storage, target: Storage, name: str, say: Say) -> bool:
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
    folder: Path | str,
    storage: Storage,
    say: Say = print,
    *,
    every: float,
    stop: threading.Event,
) -> int:
    """Does `upload_once` again and again, until `stop` is set. Failures are said, and tried again. Returns how many were sent."""
    sent = 0
    while not stop.is_set():
        with contextlib.suppress(MillstreamError):  # it was said; the next round tries again
            sent += len(upload_once(folder, storage, say))
        stop.wait(every)
    return sent
