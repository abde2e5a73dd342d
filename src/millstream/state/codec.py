"""Codecs: how a Python value becomes the byte string that the system keeps.

msgpack (through msgspec) is the default: compact, fast, typed, and a dataclass or Struct may gain fields with defaults between
runs. Tuples come back as lists unless the type says otherwise. pickle keeps any Python object, at several times the
cost, and ties the checkpoint to the classes' names.
"""

from __future__ import annotations

import pickle as _pickle
from collections.abc import Callable
from typing import Any

import msgspec

from millstream.core.codec import Codec
from millstream.core.mapstate import MapState
from millstream.errors import DefinitionError

__all__ = ["Codec", "msgpack", "named", "pickle"]


def _enc_hook(value: Any) -> Any:
    if isinstance(value, MapState):
        if value.is_bound:
            return None  # its entries are sub-rows of their own
        raise TypeError("a MapState must be the whole state, or a field of a dataclass or Struct that is the state")
    raise TypeError(
        f"{type(value).__name__} cannot be kept as msgpack. Use plain types, a dataclass or a msgspec.Struct, or say codec=ms.codecs.pickle."
    )


def _dec_hook(type: Any, value: Any) -> Any:
    if type is MapState:
        return MapState()
    raise TypeError(f"no way to make a {type} from msgpack")


class Msgpack:
    """msgpack through msgspec."""

    name = "msgpack"

    def encoder(self) -> Callable[[Any], bytes]:
        return msgspec.msgpack.Encoder(enc_hook=_enc_hook).encode

    def decoder(self, type: Any) -> Callable[[bytes], Any]:
        try:
            return msgspec.msgpack.Decoder(Any if type is object else type, dec_hook=_dec_hook).decode
        except TypeError as error:
            raise DefinitionError(f"msgpack cannot decode {type!r}: {error}") from error


def _dumps(value: Any) -> bytes:
    return _pickle.dumps(value, protocol=4)


class Pickle:
    """pickle, for values that nothing else can keep. Their classes must be importable by the workers, not defined in a script."""

    name = "pickle"

    def encoder(self) -> Callable[[Any], bytes]:
        return _dumps

    def decoder(self, type: Any) -> Callable[[bytes], Any]:
        return _pickle.loads


msgpack = Msgpack()
pickle = Pickle()


def named(name: str) -> Codec | None:
    """One of the built-in codecs, or None for a user's own."""
    built_in: dict[str, Codec] = {"msgpack": msgpack, "pickle": pickle}
    return built_in.get(name)
