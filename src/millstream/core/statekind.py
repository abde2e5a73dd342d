"""The kind of state that a computation class has: how it is made, encoded, checked and decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.core.codec import Codec
from millstream.core.computation import Computation
from millstream.core.keyspace import NoEntries
from millstream.core.mapstate import MapState


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

    def maps(self, state: Any) -> list[tuple[str, MapState]]:
        """The MapStates in a state, with the names of their fields."""
        if self.is_map:
            return [("", state)]
        return [(name, getattr(state, name)) for name in self.map_fields]
