"""Keys of internal streams that are expressions: a function of the record, as a key of one's own would be.

Rules
1. A plain name is a field, as it was; so is a text that is no expression and has nothing of SQL in it ("user name").
2. Other texts must be understood, or the pipeline is refused: as the name of a field they would fail at the first record.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from millstream.core.topology import ComputationSpec, Input, is_expression
from millstream.errors import DefinitionError

from .expressions import Expression, NotUnderstood, as_expression


class RecordKey:
    """The key of records of an internal stream, by one expression or several. Its repr is the text."""

    def __init__(self, *expressions: Expression, is_tuple: bool) -> None:
        self._expressions, self._is_tuple = expressions, is_tuple

    def __call__(self, record: Any) -> Any:
        found = tuple(expression.row(record.value) for expression in self._expressions)
        return found if self._is_tuple else found[0]

    def __repr__(self) -> str:
        return ", ".join(expression.describe() for expression in self._expressions)


def with_record_keys(spec: ComputationSpec, injected: Collection[str]) -> ComputationSpec:
    """A computation whose keys of internal streams are functions where they were SQL texts. injected: the streams whose keys others work out."""
    return replace(spec, inputs=tuple(i if i.stream in injected else replace(i, key=record_key(spec.name, i)) for i in spec.inputs))


def record_key(computation: str, given: Input) -> Any:
    """The key of an internal stream, as a function of the record where it was SQL text."""
    parts = given.key if isinstance(given.key, tuple) else (given.key,)
    if not any(isinstance(part, str) and is_expression(part) for part in parts):
        return given.key
    try:
        return RecordKey(*map(as_expression, parts), is_tuple=isinstance(given.key, tuple))
    except NotUnderstood as error:
        if re.fullmatch(r"[\w.\- ]+", error.text) and parts == (given.key,):
            return given.key
        raise DefinitionError(
            f"computation {computation!r}: the key {error.text!r} of the internal stream {given.stream!r} is no expression that is known, {error.why}. "
            f"Give a function of the record instead; a field of this very name is key=lambda record: record.value[{error.text!r}]."
        ) from None
