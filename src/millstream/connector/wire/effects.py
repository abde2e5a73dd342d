"""What every session asks of its caller, whichever side it is on."""

from __future__ import annotations

import msgspec

from millstream.connector.wire import messages as m


class Send(msgspec.Struct, frozen=True):
    """Say this to the peer."""

    frame: m.Frame


class Close(msgspec.Struct, frozen=True):
    """End the connection. What is to be sent is sent before."""
