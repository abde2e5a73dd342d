"""The kind of state that a computation class has: how it is made, encoded, checked and decoded. Codecs themselves are in `state/codec.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, get_type_hints

from millstream.core.computation import Computation
from millstream.core.keyspace import NoEntries
from millstream.core.mapstate import MapState


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


class StateKind:
    """How the state of a computation class is made, encoded and decoded. Worked out once per worker process."""

    def __init__(self, computation: type[Computation] | Computation, codec: Codec) -> None:
        self.fresh: Callable[[], Any] = computation.State
        self.is_map = computation.State is MapState
        state_encoder: Any = getattr(codec, "state_encoder", None)
        state_checker: Any = getattr(codec, "state_checker", None)
        self.encode: Callable[[Any], bytes] = state_encoder(computation.State) if state_encoder else codec.encoder()
        self.encode_sub: Callable[[Any], bytes] = state_encoder(object) if state_encoder else codec.encoder()
        self.check: Callable[[Any, bytes], None] | None = state_checker(computation.State) if state_checker and not self.is_map else None
        sample = self.fresh()
        fields: Any = getattr(sample, "__struct_fields__", None) or getattr(sample, "__dataclass_fields__", ())
        self.map_fields = [name for name in fields if isinstance(getattr(sample, name), MapState)]
        for name in self.map_fields:
            getattr(sample, name).bind(NoEntries(), b"", self.encode_sub, self.encode_sub)
        self.decode = codec.decoder(object if self.is_map else computation.State)
        self.decode_sub = codec.decoder(object)
        self.empty = b"" if self.is_map else self.encode(sample)

    def older(self, stored: bytes, error: Exception) -> str:
        """What to say of a state that is stored and cannot be read as this kind."""
        try:
            found = self.decode_sub(stored)
            shown = f"{repr(found)[:300]} ({type(found).__name__})"
        except Exception:
            shown = f"{len(stored)} bytes that this codec cannot read"
        return (
            f"the stored state is of an older program, whose State was another type, and cannot be read as the new one: {error}\n"
            f"  stored: {shown}\n  State now: {_shape(self.fresh)}\n"
            f"  The epoch was not committed; nothing is lost. Put State back as it was: fields may be added with a default, or taken away. To begin anew "
            f"with this State, give the computation another name= and drop the old one (drop=[...], --drop), or use a new checkpoint."
        )

    def maps(self, state: Any) -> list[tuple[str, MapState]]:
        """The MapStates in a state, with the names of their fields."""
        if self.is_map:
            return [("", state)]
        return [(name, getattr(state, name)) for name in self.map_fields]


def _shape(kind: Any) -> str:
    """A type as somebody would write it, with its fields."""
    name = getattr(kind, "__name__", str(kind))
    fields: Any = getattr(kind, "__struct_fields__", None) or getattr(kind, "__dataclass_fields__", ())
    try:
        hints = get_type_hints(kind) if fields else {}
    except Exception:  # annotations that only its own module can read
        hints = {}
    spelled = {field: hint if hasattr(hint, "__args__") else getattr(hint, "__name__", hint) for field, hint in hints.items()}
    told = [f"{field}: {spelled[field]}" if field in spelled else field for field in fields]
    return f"{name}({', '.join(told)})" if told else name
