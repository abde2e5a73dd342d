"""Whether an answer of the live server is what `millstream state` says of that key at that epoch.

Rule: the judge shares nothing with the server but the checkpoint. It reads the log, not the copy that the server keeps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from millstream.errors import Overtaken
from millstream.readable import listing
from millstream.state.manifest_log import ManifestLog
from millstream.state.reader import CommittedState
from millstream.state.storage import open_storage


class AnswerJudge:
    """Compares answers with the checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        self._log = ManifestLog(open_storage(checkpoint))
        self.compared = 0
        self.wrong: list[str] = []

    def compare(self, computation: str, key: str, epoch: int, answer: bytes | None) -> bool | None:
        """Whether they are the same; None if the epoch has been collected meanwhile."""
        try:
            with CommittedState(self._log).at(epoch) as cut:
                rows = listing.plain_listing(listing.looked_up(cut, computation, [key]))["rows"]
        except Overtaken:
            return None
        expected = _plain(rows[0]) if rows else None
        found = None if answer is None else msgspec.json.decode(answer)
        self.compared += 1
        if found != expected:
            self.wrong.append(f"{computation} of {key!r} at epoch {epoch}: the server says {found}, and the checkpoint {expected}")
            return False
        return True


def _plain(row: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(row))
