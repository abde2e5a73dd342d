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

    # A codec may also have these two. Without them, `encoder` encodes states too, and nothing is checked.
    #
    # def state_encoder(self, type) -> Callable[[Any], bytes]            encodes states of a type
    # def state_checker(self, type) -> Callable[[Any, bytes], None]      raises if a state would not come back equal from its bytes; or is None
