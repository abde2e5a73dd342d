"""Names of workers are data: they come from a peer, and become file names only through `file_name`.

Rules
1. A name is 1 to 200 bytes of UTF-8. What it may contain is not restricted.
2. Different names have different file names, and a file name has no other characters than letters, digits, `_`, `-`, `%` and `~`: no
   slash, no dot, nothing that a shell, a path or a terminal could understand.
3. A name whose file name would be long is cut and told apart by its SHA-256. `~` appears in no other file name.
4. HELLO has no place for a fence (see `session`), so it stands at the end of the program's name: "millstream fence=7". No fence is fence 0.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote

NAME_LIMIT = 200
_LONGEST = 120
_CUT = 40
_FENCE = re.compile(r" fence=([0-9]{1,18})$")


def file_name(name: str) -> str:
    """The name of a file or folder that belongs to that worker alone.

    >>> file_name("app-w-worker1-id-7"), file_name("../../etc/passwd")
    ('app-w-worker1-id-7', '%2E%2E%2F%2E%2E%2Fetc%2Fpasswd')
    """
    safe = quote(name.encode(), safe="").replace(".", "%2E").replace("~", "%7E")
    if len(safe) <= _LONGEST:
        return safe
    return f"{safe[:_CUT]}~{hashlib.sha256(name.encode()).hexdigest()}"


def objection(name: str) -> str | None:
    """Why this cannot be a worker's name; None if it can."""
    size = len(name.encode())
    if not size:
        return "a worker needs a name"
    return f"a worker's name of {size} bytes is too long; the limit is {NAME_LIMIT}" if size > NAME_LIMIT else None


def with_fence(program: str, fence: int) -> str:
    """Rule 4.

    >>> with_fence("millstream", 7), fence_of("millstream fence=7"), fence_of("Celsius to Fahrenheit")
    ('millstream fence=7', 7, 0)
    """
    return f"{program} fence={fence}" if fence else program


def fence_of(program: str) -> int:
    found = _FENCE.search(program)
    return 0 if found is None else int(found[1])
