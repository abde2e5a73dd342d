"""Codecs: how a Python value becomes the byte string that the system keeps.

msgpack is the default: compact, fast, typed, and a dataclass or Struct may gain fields with defaults between runs. pickle keeps any Python object, at several
times the cost, and ties the checkpoint to the classes' names.

Rules of msgpack
1. State comes back equal, or is refused at the hook that left it. What msgpack does not know travels as an extension type (`state/extensions.py`). What cannot
   come back (an object of a class that nothing names, an Enum, a Counter, a number or text of a subclass, a time zone without a name) is an error that says
   what to do.
2. Where the type is fully known (a dataclass or Struct whose annotations leave nothing open), the type does this work, and a state that contradicts its
   annotations is refused: it could be written, and never read again.
3. Values that are produced are for others to read, in other programs too. Dates, Decimals and the like keep their type; a tuple or a set becomes a list, and
   an object of a dataclass or Struct a dict, on every engine alike.
4. Encoding is deterministic.
5. Equal is: of the same classes, too, down to numbers, texts, keys and time zones. Only an int may come back as the float that an annotation asks for.
"""

from __future__ import annotations

import inspect
import pickle as _pickle
from collections.abc import Callable
from datetime import datetime, time, timezone
from functools import partial
from typing import Any

import msgspec
import ormsgpack

from millstream.core.mapstate import MapState
from millstream.core.statekind import Codec
from millstream.errors import DefinitionError
from millstream.state import extensions

__all__ = ["Codec", "msgpack", "pickle"]

_SCALARS = frozenset((int, str, float, bool, type(None), bytes))

_LENIENT = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_UUID
    | ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_NON_STR_KEYS
)
_STRICT = (
    (_LENIENT & ~ormsgpack.OPT_NON_STR_KEYS)
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_ENUM
)

_plain = msgspec.msgpack.Encoder().encode
_packb = ormsgpack.packb
_BIN8, _BIN16, _BIN32 = b"\xc4", b"\xc5", b"\xc6"  # how msgpack begins bytes: without them no bytearray has become some


def _enc_hook(value: Any) -> Any:
    for base in (float, int, str):  # numpy.float64 is a float
        if isinstance(value, base):
            return base(value)
    if isinstance(value, MapState):
        return _state_hook(value)
    raise TypeError(f"{type(value).__name__} cannot be kept as msgpack. {extensions.ADVICE}")


def _state_hook(value: Any) -> None:
    """A MapState leaves nothing in its row: its entries are sub-rows of their own."""
    if not isinstance(value, MapState):
        raise TypeError(extensions.refusal(value))
    if not value.is_bound:
        raise TypeError("a MapState must be the whole state, or a field of a dataclass or Struct that is the state")


def _dec_hook(type: Any, value: Any) -> Any:
    if type is MapState:
        return MapState()
    raise TypeError(f"no way to make a {type} from msgpack")


def _lenient_hook(value: Any) -> Any:
    found = extensions.extended(value)
    if found is not None:
        return ormsgpack.Ext(*found)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=_plain)
    return msgspec.to_builtins(value, builtin_types=extensions.KEPT, str_keys=False, enc_hook=_enc_hook)


def encode_value(value: Any) -> bytes:
    """What a production carries (rule 3)."""
    if value.__class__ in _SCALARS:
        try:
            return _plain(value)
        except OverflowError:
            pass
    return _packb(value, _lenient_hook, _LENIENT)


def _strict_hook(value: Any) -> Any:
    return ormsgpack.Ext(*extensions.firm(value, encode_firm))


def encode_firm(value: Any) -> bytes:
    """What an untyped state carries (rule 1)."""
    kind = value.__class__
    if kind is dict:
        if _is_flat(value):
            try:
                return _plain(value)
            except OverflowError:
                pass
        if value and next(iter(value)).__class__ is not str:
            return _plain(extensions.prepared(value, encode_firm))
    elif kind in _SCALARS and (kind is not int or -(2**63) <= value < 2**64):
        return _plain(value)
    try:
        data = _packb(value, _strict_hook, _STRICT)
    except TypeError:  # keys that are not text; or an error, which it names
        return _plain(extensions.prepared(value, encode_firm))
    if (_BIN8 in data or _BIN16 in data or _BIN32 in data) and extensions.has_buffers(value):
        return _plain(extensions.prepared(value, encode_firm))
    return data


def _is_flat(value: dict[Any, Any]) -> bool:
    """Whether keys and values are scalars."""
    for parts in (value, value.values()):
        for part in parts:
            if part.__class__ not in _SCALARS:
                return False
    return True


def _ext_hook(code: int, data: memoryview) -> Any:
    return extensions.restored(code, data, _decode_any)


_decode_any = msgspec.msgpack.Decoder(ext_hook=_ext_hook).decode


class Msgpack:
    """msgpack, through msgspec and ormsgpack."""

    name = "msgpack"

    def encoder(self) -> Callable[[Any], bytes]:
        return encode_value

    def decoder(self, type: Any) -> Callable[[bytes], Any]:
        if type is object:
            return _decode_any
        if type in (dict, list, int, str, float, bool, bytes, tuple, set, frozenset):
            return partial(_decode_builtin, type)
        try:
            whole = msgspec.msgpack.Decoder(type, dec_hook=_dec_hook, ext_hook=_ext_hook).decode
            return whole if not has_open_parts(type) else partial(_decode_open, type)
        except TypeError as error:
            raise DefinitionError(f"msgpack cannot decode {type!r}: {error}") from error

    def state_encoder(self, type: Any) -> Callable[[Any], bytes]:
        """The encoder for states of a type (rules 1 and 2)."""
        if not _is_class_of_its_own(type):
            return encode_firm
        if not has_open_parts(type):
            return msgspec.msgpack.Encoder(enc_hook=_state_hook).encode

        def encode(value: Any) -> bytes:
            return encode_firm(msgspec.to_builtins(value, builtin_types=extensions.KEPT, str_keys=False, enc_hook=_state_hook))

        return encode

    def state_checker(self, type: Any) -> Callable[[Any, bytes], None] | None:
        """A function that raises if a state of a type would not come back equal from its bytes; None where that cannot be."""
        if type is object or type is MapState:
            return None
        if not _is_class_of_its_own(type):
            return partial(_check_class, type)
        decode = self.decoder(type)
        name = getattr(type, "__name__", str(type))

        def check(state: Any, data: bytes) -> None:
            try:
                found = decode(data)
            except msgspec.ValidationError as error:
                raise ValueError(
                    f"the state contradicts the annotations of {name}: {error}. It could be written, and never read again."
                ) from None
            if found != state or not alike(state, found):
                where = difference(state, found)
                if where is not None:
                    raise ValueError(
                        f"the state would not come back as it is: {where}. Change the annotation in {name}, or what is put there."
                    )

        return check


def _check_class(type: Any, state: Any, data: bytes) -> None:
    """States of a built-in type must be of it. An int may stand for a float."""
    if state.__class__ is not type and not (type is float and state.__class__ is int):
        raise ValueError(
            f"State is {type.__name__}, and the hook left a {state.__class__.__name__} ({repr(state)[:100]}): the next epoch could not "
            f"read it, or would find something else"
        )


def _is_class_of_its_own(type: Any) -> bool:
    return type is not object and type is not MapState and not (inspect.isclass(type) and type.__module__ == "builtins")


def _decode_builtin(type: Any, data: bytes) -> Any:
    """What was stored by another version of the program may be of another type."""
    found = _decode_any(data)
    return found if found.__class__ is type else msgspec.convert(found, type)


def _decode_open(type: Any, data: bytes) -> Any:
    found = _decode_any(data)
    try:
        return msgspec.convert(found, type, builtin_types=extensions.KEPT, dec_hook=_dec_hook)
    except msgspec.ValidationError:  # written while the class left nothing open: a Decimal is a text there
        return msgspec.convert(found, type, dec_hook=_dec_hook)


class Pickle:
    """pickle, for values that nothing else can keep. Their classes must be importable by the workers, not defined in a script."""

    name = "pickle"

    def encoder(self) -> Callable[[Any], bytes]:
        return partial(_pickle.dumps, protocol=4)

    def decoder(self, type: Any) -> Callable[[bytes], Any]:
        return _pickle.loads


msgpack = Msgpack()
pickle = Pickle()


def difference(one: Any, other: Any, path: str = "state") -> str | None:
    """The first place where two values differ, for people; None if they are the same. NaN is NaN; a list is not a tuple; a MapState is passed over.

    >>> difference({"a": [1, (2,)]}, {"a": [1, [2]]})
    "state['a'][1] is (2,), and would come back as [2]"
    """
    if isinstance(one, MapState):
        return None
    if one.__class__ is other.__class__:
        fields = _fields(one)
        parts = None
        if isinstance(one, (list, tuple)) and len(one) == len(other):
            parts = [(one[at], other[at], f"[{at}]") for at in range(len(one))]
        elif isinstance(one, dict) and one.keys() == other.keys() and _alike_all(one, other):
            parts = [(one[key], other[key], f"[{key!r}]") for key in one]
        elif fields:
            parts = [(getattr(one, name), getattr(other, name), f".{name}") for name in fields]
        if parts is not None:
            return next((found for a, b, where in parts if (found := difference(a, b, path + where))), None)
        if (one == other or one != one or repr(one) == repr(other)) and alike(one, other):  # NaN, also in a set
            return None
    elif one == other and _is_asked_for(one, other):
        return None
    return f"{path} is {repr(one)[:200]}, and would come back as {repr(other)[:200]}"


def alike(one: Any, other: Any) -> bool:
    """Whether two values that are equal are of the same classes too, down to numbers and texts: a defaultdict equals a dict, and is none."""
    if one.__class__ is not other.__class__:
        return isinstance(one, MapState) or _is_asked_for(one, other)
    if isinstance(one, dict):
        return _alike_all(one, other) and (
            _SCALARS.issuperset(map(type, one.values())) or all(alike(value, other[key]) for key, value in one.items())
        )
    if isinstance(one, (list, tuple)):
        return _alike_all(one, other)
    if isinstance(one, (set, frozenset)):
        found = {element: element for element in other}
        return _alike_all(one, [found.get(element, element) for element in one])
    if isinstance(one, (datetime, time)):
        is_fixed = one.tzinfo.__class__ is other.tzinfo.__class__ is timezone and one.utcoffset() == other.utcoffset()
        return one.fold == other.fold and (one.tzinfo is other.tzinfo or is_fixed)
    return all(alike(getattr(one, name), getattr(other, name)) for name in _fields(one))


def _alike_all(one: Any, other: Any) -> bool:
    """Whether all elements, or keys, are alike in their order."""
    return _SCALARS.issuperset(map(type, one)) or all(map(alike, one, other))


def _is_asked_for(one: Any, other: Any) -> bool:
    return one.__class__ is int and other.__class__ is float


def _fields(value: Any) -> Any:
    return getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", None) or ()


def has_open_parts(type: Any) -> bool:
    """Whether a type's annotations leave some part untyped (`Any`, a bare dict or list)."""
    return _is_open(msgspec.inspect.type_info(type), set())


def _is_open(info: Any, seen: set[Any]) -> bool:
    if isinstance(info, msgspec.inspect.AnyType):
        return True
    cls = getattr(info, "cls", None)
    if cls is not None:
        if cls in seen:
            return False
        seen.add(cls)
    parts = [getattr(info, name, None) for name in ("key_type", "value_type", "item_type", "type")]
    parts += [*getattr(info, "item_types", ()), *getattr(info, "types", ()), *(field.type for field in getattr(info, "fields", ()))]
    return any(_is_open(part, seen) for part in parts if isinstance(part, msgspec.inspect.Type))
