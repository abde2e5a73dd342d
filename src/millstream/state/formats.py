"""Formats: the versions of what a checkpoint holds, and what becomes of other versions. docs/state-and-commit.md lists all of them.

Rules
1. What the version before wrote is read; version 0.2 is the first, and checkpoints begin with it. The number of a format that is no longer read is dropped a
   version later, never at once.
2. A newer number is refused by name, before anything else is looked at: it is no damage, and trying to read it could go wrong silently.
3. A number rises when a version that does not know the change would go wrong. A field with a default, and bytes where nobody looks, need no new number.
4. A manifest's number speaks for all that only manifests lead to: units with their segments and stored productions, rows, map entries, ids, parts of sinks.
5. What decides nothing (the text of a claim, a sign of life) is passed over if it is newer.
"""

from __future__ import annotations

import msgspec

from millstream.errors import CheckpointError, DamageError


class Format(msgspec.Struct, frozen=True):
    """The versions of one kind of object: the oldest that is read, and the newest, which is written."""

    oldest: int
    newest: int

    def check(self, name: str, found: int) -> None:
        """Says no to an object of another version."""
        if self.oldest <= found <= self.newest:
            return
        reads = str(self.newest) if self.oldest == self.newest else f"{self.oldest} to {self.newest}"
        older = "run the version of Millstream that comes behind the one that wrote it first, or start with a new checkpoint"
        what = "upgrade Millstream" if found > self.newest else older
        raise CheckpointError(f"{name} has format {found}; this version of Millstream reads {reads}: {what}.")

    def check_json(self, name: str, data: bytes) -> None:
        """Says no to a JSON object of another version, whatever else is in it."""
        try:
            found = msgspec.json.decode(data, type=_Said).format
        except msgspec.MsgspecError as error:
            raise DamageError(
                f"{name} does not say its format: {error}. Restore it from a copy, or start with a new checkpoint."
            ) from error
        self.check(name, found)


class _Said(msgspec.Struct):
    format: int


MANIFEST = Format(5, 5)
IDENTITY = Format(3, 3)
CLAIM = Format(1, 1)
SIGN = Format(1, 1)
