"""A process that appends to a log, applies to a store, and prints what was confirmed: to be killed.

python logproc.py disk FOLDER            log on disk, store in LMDB: prints "<partition> <position>" for each append
python logproc.py objects FOLDER TERM    seals partition 1 in a term, then appends until it is fenced
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from millstream.errors import Fenced
from millstream.service.logs.disk import disk
from millstream.service.logs.objects import objects
from millstream.service.messages import LogRecord
from millstream.service.stores import lmdb


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def on_disk(folder: Path) -> None:
    shared, stores = disk(1 << 17).open(folder), lmdb().open(folder)

    async def write(partition: int) -> None:
        log, store = shared.of(partition), stores.of(partition)
        end = await log.seal(log.term + 1)
        async for record in log.read(store.applied):
            store.apply(record.changes, record.last)
        say(f"begins {partition} {end} {store.applied}")
        for lsn in range(end + 1, end + 100_000):
            changes: list[tuple[bytes, bytes | None]] = [(b"K%d" % (lsn % 50), b"%d" % lsn + b"x" * (lsn % 700)), (b"Klast", b"%d" % lsn)]
            await log.append(LogRecord(partition, log.term, lsn, lsn, 0, changes))
            store.apply(changes, lsn)
            say(f"{partition} {lsn}")
            if lsn % 100 == 0:
                await log.trim(lsn - 90)

    await asyncio.gather(*(write(partition) for partition in range(3)))


async def in_objects(folder: Path, term: int) -> None:
    log = objects(str(folder)).open(folder).of(1)
    end = await log.seal(term)
    say(f"sealed {end}")
    lsn = end
    try:
        while True:
            lsn += 1
            await log.append(LogRecord(1, term, lsn, lsn, 0, [(b"Kterm", b"%d" % term)]))
            await log.confirm(term)
            say(f"{lsn}")
    except Fenced:
        say("fenced")


if __name__ == "__main__":
    if sys.argv[1] == "disk":
        asyncio.run(on_disk(Path(sys.argv[2])))
    else:
        asyncio.run(in_objects(Path(sys.argv[2]), int(sys.argv[3])))
