"""Pickling for the workers: cloudpickle, and what it does not know about msgspec.

A class of a script or notebook travels by value. Two things get in the way: msgspec leaves a cache on dataclasses that cannot be pickled,
and cloudpickle rebuilds a Struct class without its fields. Both are dealt with here, so that `State` may be defined anywhere.
"""

from __future__ import annotations

import inspect
import io
from typing import Any

import msgspec
from pyspark import cloudpickle
from pyspark.cloudpickle.cloudpickle import _should_pickle_by_reference

_CACHE = "__msgspec_cache__"
_MADE_BY_MSGSPEC = {"__dict__", "__weakref__", "__slots__", "__module__", "__annotations__", "__match_args__", "__doc__", "__qualname__"}


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type):
            if _CACHE in obj.__dict__:
                delattr(obj, _CACHE)
            if issubclass(obj, msgspec.Struct) and obj is not msgspec.Struct and not _should_pickle_by_reference(obj):
                return _rebuild, _taken_apart(obj)
        return super().reducer_override(obj)


def dumps(value: Any) -> bytes:
    """The bytes that `loads` turns back into the value, in another process."""
    with io.BytesIO() as buffer:
        _Pickler(buffer).dump(value)
        return buffer.getvalue()


loads = cloudpickle.loads


def _taken_apart(cls: type[msgspec.Struct]) -> tuple[Any, ...]:
    config = cls.__struct_config__
    parents = [base for base in cls.__mro__[1:] if issubclass(base, msgspec.Struct) and base is not msgspec.Struct]
    inherited = {field for base in parents for field in base.__struct_fields__}
    own = [f for f in msgspec.structs.fields(cls) if f.name not in inherited or f.name in inspect.get_annotations(cls)]
    fields = [(f.name, f.type, f.default, f.default_factory, f.encode_name) for f in own]
    slots = set(cls.__struct_fields__)
    namespace = {
        name: value
        for name, value in cls.__dict__.items()
        if name not in slots and name not in _MADE_BY_MSGSPEC and not name.startswith("__struct") and name != _CACHE
    }
    settings = {
        name: getattr(config, name)
        for name in ("frozen", "eq", "order", "array_like", "gc", "repr_omit_defaults", "omit_defaults", "forbid_unknown_fields", "weakref", "dict", "cache_hash")
    }
    return cls.__name__, fields, cls.__bases__, cls.__module__, namespace, settings, config.tag, config.tag_field


def _rebuild(
    name: str, fields: list[Any], bases: tuple[type, ...], module: str, namespace: dict[str, Any], settings: dict[str, Any], tag: Any, tag_field: Any
) -> type:
    nothing = msgspec.NODEFAULT
    made = []
    for field, kind, default, factory, encoded in fields:
        given: dict[str, Any] = {} if encoded == field else {"name": encoded}
        if default is not nothing:
            given["default"] = default
        if factory is not nothing:
            given["default_factory"] = factory
        made.append((field, kind, msgspec.field(**given)) if given else (field, kind))
    return msgspec.defstruct(
        name, made, bases=bases, module=module, namespace=namespace, tag=tag, tag_field=tag_field, kw_only=False, **settings
    )
