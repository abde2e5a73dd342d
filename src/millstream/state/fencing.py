"""Runs: who owns a checkpoint. Claims, and the marks of those that were refused.

Rules
1. `runs/<number>` is created exclusively at the start of a run. Numbers grow, without gaps above the newest: whoever finds the number behind its own has
   been replaced. A claim says `<token> <seconds> <format> <host> <process>`: the run, when it began, and where it runs.
2. A token is `<number>-<random>`. Whatever a run makes carries it, or its number.
3. One that has been replaced writes nothing. It leaves `refused/<number>-...` instead, an empty object; the owner counts those, and removes them.
4. Claims decide who may go on, never what is committed: that is for the manifests, which are created exclusively. A run that is older than the last
   `KEPT_CLAIMS` is stopped by the manifests alone.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from functools import lru_cache

import msgspec

from millstream.errors import MillstreamError
from millstream.state import formats
from millstream.state.storage import Storage

KEPT_CLAIMS = 1000
_CLAIMS, _REFUSED = "runs", "refused"


class Claim(msgspec.Struct, frozen=True):
    """A run, by its claim's own word. began: seconds since 1970."""

    token: str
    began: float
    host: str = ""
    process: str = ""

    def __str__(self) -> str:
        began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.began))
        return f"run {self.token}" + (f" on {self.host}, process {self.process}" if self.host else "") + f", begun {began}"


@lru_cache(1024)
def run_number(token: str) -> int:
    """The growing part of a run's token: 12 of "12-5f3a"."""
    return int(token.split("-")[0])


def superseded(storage: Storage, token: str) -> bool:
    return storage.exists(_claim_name(run_number(token) + 1))


def refuse(storage: Storage, token: str) -> None:
    """Leaves a mark of a write that was refused because its run has been replaced."""
    storage.put(f"{_REFUSED}/{run_number(token)}-{secrets.token_hex(6)}", b"")


class Runs:
    """The runs of a checkpoint."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def claim(self, last: str | None) -> str:
        """Begins a run: its token, whose number is above that of every run before. last: the token in the newest manifest."""
        number = max([*self._numbers(), run_number(last) if last else 0])
        while True:
            number += 1
            token = f"{number}-{secrets.token_hex(4)}"
            host = socket.gethostname().replace(" ", "-") or "?"
            text = f"{token} {time.time():.3f} {formats.CLAIM.newest} {host} {os.getpid()}"
            if self.storage.create(_claim_name(number), text.encode()):
                self.storage.delete(_claim_name(old) for old in self._numbers() if old < number - KEPT_CLAIMS)
                return token

    def last_claim(self) -> Claim | None:
        """The newest run; None if there is none, or its claim does not say."""
        names = self.storage.list(_CLAIMS)
        if not names:
            return None
        try:
            token, at, version, *where = self.storage.read(max(names)).decode().split(" ")
            formats.CLAIM.check(max(names), int(version))
            return Claim(token, float(at), *where[:2])
        except (ValueError, MillstreamError):
            return None

    def superseded(self, token: str) -> bool:
        return superseded(self.storage, token)

    def has_claim(self, token: str) -> bool:
        """Whether a run's own claim is still there: if not, the checkpoint has been deleted under it."""
        return self.storage.exists(_claim_name(run_number(token)))

    def is_there(self, token: str) -> bool:
        """Whether the claim of a run is there, where looking costs next to nothing (on a disk). Asked before every commit, so that no manifest is put where a
        checkpoint has been."""
        return "://" in self.storage.url or self.has_claim(token)

    def refusals(self) -> list[str]:
        """What replaced runs left behind since somebody last looked."""
        return self.storage.list(_REFUSED)

    def _numbers(self) -> list[int]:
        return [int(name.rsplit("/", 1)[-1]) for name in self.storage.list(_CLAIMS)]


@lru_cache(1024)
def _claim_name(number: int) -> str:
    return f"{_CLAIMS}/{number:010d}"
