"""Typed values: rows of a source as objects of a class of the user's, a dataclass or a Struct.

Rules
1. Fields are matched by name. Columns that the class does not have are left out; a field without a column has its default.
2. A value of another type than the annotation is an error that names stream, field and row; nothing is turned into another type.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from millstream.errors import DefinitionError, InputError


def is_class_of_values(given: Any) -> bool:
    return isinstance(given, type) and (dataclasses.is_dataclass(given) or issubclass(given, msgspec.Struct))


def required_fields(kind: type) -> list[str]:
    """The fields that a row must have."""
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        return [field.name for field in dataclasses.fields(kind) if field.default is missing and field.default_factory is missing]
    return [field.name for field in msgspec.structs.fields(kind) if field.required]


@lru_cache(256)
def converter(kind: type, stream: str) -> Callable[[Any], Any]:
    """A function that makes an object of a class of a row."""
    try:
        msgspec.convert({}, kind)
    except msgspec.ValidationError:
        pass
    except Exception as error:
        raise DefinitionError(f"injected stream {stream!r}, value={kind.__name__}: its fields cannot be read from rows: {error}") from error

    def made(row: Any) -> Any:
        try:
            return msgspec.convert(row, kind)
        except msgspec.ValidationError as error:
            raise InputError(f"stream {stream!r}: a row is no {kind.__name__}: {error}, in the row {repr(row)[:300]}") from None

    return made
