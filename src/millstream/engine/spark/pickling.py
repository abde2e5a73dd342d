"""Pickling a program by value: what cloudpickle does not know of msgspec.

Rules
1. A class that workers cannot import (of `__main__`, a notebook, a file that `millstream run` executes) travels by value.
2. cloudpickle makes an empty class first and fills it afterwards; a Struct made so would have no fields. So it is made anew from its fields and its config.
3. What msgspec has worked out for a class stays here: it cannot be pickled, and each process works it out again.
4. Annotations that are strings are resolved here, where the module with their names is at hand.
5. The markers by which a dataclass's fields tell "no default" from a default are known by identity: they travel by name. A copy of `dataclasses.MISSING`
   would be taken for the default of every field that has none.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import typing
from functools import partial
from typing import Any

import msgspec
from pyspark.cloudpickle import cloudpickle

_MARKERS = {
    id(found): name for name in ("MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY") if (found := getattr(dataclasses, name, None)) is not None
}


def dumps(value: Any) -> bytes:
    """The value as bytes for `cloudpickle.loads`."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


loads = cloudpickle.loads


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if id(obj) in _MARKERS:
            return getattr, (dataclasses, _MARKERS[id(obj)])
        if isinstance(obj, msgspec.Meta):
            return partial(msgspec.Meta, **dict(obj.__rich_repr__())), ()  # what was given
        reduced = super().reducer_override(obj)
        if not isinstance(obj, type) or not isinstance(reduced, tuple) or reduced[0] is not cloudpickle._make_skeleton_class:
            return reduced
        make, args, (attributes, slots), *rest = reduced
        attributes.pop("__msgspec_cache__", None)
        if any(isinstance(hint, str) for hint in attributes.get("__annotations__", {}).values()):
            attributes["__annotations__"] = _resolved(obj, attributes["__annotations__"])
        if issubclass(obj, msgspec.Struct):
            made = {*obj.__struct_fields__, "__slots__", "__match_args__", *vars(msgspec.defstruct("_", []))} - {
                "__annotations__",
                "__doc__",
            }
            for name in [name for name in attributes if name in made]:
                del attributes[name]
            make, args = _make_struct, _struct_args(obj)
        return (make, args, (attributes, slots), *rest)


def _resolved(cls: type, annotations: dict[str, Any]) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception:
        return annotations
    return {name: hints.get(name, hint) for name, hint in annotations.items()}


def _struct_args(cls: type[msgspec.Struct]) -> tuple[Any, ...]:
    own = [field for field in msgspec.structs.fields(cls) if field.name in inspect.get_annotations(cls)]
    defaults = {field.name: field.default for field in own if field.default is not msgspec.NODEFAULT}
    factories = {field.name: field.default_factory for field in own if field.default_factory is not msgspec.NODEFAULT}
    config = {name: getattr(cls.__struct_config__, name) for name in dir(cls.__struct_config__) if not name.startswith("_")}
    config["rename"] = {field.name: field.encode_name for field in own if field.encode_name != field.name} or None
    config["kw_only"] = any(field.name not in cls.__match_args__ for field in own)
    annotations = dict.fromkeys((field.name for field in own), Any)
    namespace = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__annotations__": annotations, **defaults}
    return cls.__name__, cls.__bases__, namespace, factories, config, cloudpickle._get_or_create_tracker_id(cls)


def _make_struct(
    name: str, bases: tuple[type, ...], namespace: dict[str, Any], factories: dict[str, Any], config: dict[str, Any], tracker: str
) -> Any:
    namespace |= {field: msgspec.field(default_factory=factory) for field, factory in factories.items()}
    made = type(msgspec.Struct)(name, bases, namespace, **config)  # type: ignore[misc]
    return cloudpickle._lookup_class_or_track(tracker, made)
