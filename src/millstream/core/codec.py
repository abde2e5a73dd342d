"""What the core asks of a codec; the codecs themselves are in `state/codec.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Codec(Protocol):
    """Turns Python values into bytes and back. `name` is kept in the checkpoint, so that a change is noticed."""

    name: str

    def encoder(self) -> Callable[[Any], bytes]:
        """A function that encodes one value. It must be deterministic."""

    def decoder(self, type: Any) -> Callable[[bytes], Any]:
        """A function that decodes one value of a type (`object` when it is not known)."""
