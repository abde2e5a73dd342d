"""What a source's session asks of its caller. How and in which order, say the caller's duties in `session`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millstream.connector.intake.format.entries import IntakeEntry
from millstream.connector.wire.effects import Close as Close
from millstream.connector.wire.effects import Send as Send

if TYPE_CHECKING:
    from millstream.connector.source.protocol.session import SourceSession


class Admit(msgspec.Struct, frozen=True):
    """HELLO is right: is there room for one more session? Answer: None, or why there is none."""


class Keep(msgspec.Struct, frozen=True):
    """Keep these entries, behind those that came before."""

    entries: list[IntakeEntry]


class Fence(msgspec.Struct, frozen=True):
    """That session is a half-open connection of the peer that speaks now."""

    session: SourceSession
    why: str


SourceEffect = Send | Close | Admit | Keep | Fence
