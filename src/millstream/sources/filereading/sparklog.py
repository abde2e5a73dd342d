"""What Spark's file source has read, from the log that it keeps in the folder of the source (`sources/N` of Spark's checkpoint).

Rules
1. An entry is a file whose name is the number of a batch of this source: a line with the version, then one JSON object per file. Every tenth is
   compacted ("9.compact"): it repeats all entries before it, and may leave out files that are too old.
2. Entries behind the offset are not taken: they were planned, and not committed.
"""

from __future__ import annotations

import json
import os
import urllib.parse

from millstream.errors import CheckpointError


def names_read(offset: str, folder: str) -> dict[str, int]:
    """The absolute paths of the files up to an offset such as {"logOffset": 5}, with their times of modification (ms)."""
    try:
        last = int(json.loads(offset)["logOffset"])
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"{offset!r} is not an offset of Spark's file source") from None
    entries: dict[int, str] = {}
    compact = -1
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        number = name.removesuffix(".compact")
        if number.isdigit() and int(number) <= last:
            if name != number:
                compact = max(compact, int(number))
            entries[int(number)] = name if name != number else entries.get(int(number), name)
    found: dict[str, int] = {}
    wanted = range(max(compact, 0), last + 1)
    for number_ in wanted:
        if number_ not in entries:
            raise CheckpointError(
                f"Spark's log of the files that were read lacks entry {number_}: {folder} has no such file. Restore the checkpoint as a whole"
            )
        with open(os.path.join(folder, entries[number_]), encoding="utf-8") as handle:
            for line in handle.read().split("\n")[1:]:
                if line:
                    entry = json.loads(line)
                    found[_path(entry["path"])] = int(entry["timestamp"])
    return found


def _path(address: str) -> str:
    """The path in a URI as Spark writes it.

    >>> _path("file:///in%20dir/a%25.json")
    '/in dir/a%.json'
    """
    return urllib.parse.unquote(address.split(":", 1)[1].removeprefix("//") if address.startswith("file:") else address)
