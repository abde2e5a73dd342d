"""Columns and fields that a pipeline names, compared with the schemas of its sources when it is defined. Pure.

Rule: only what is certainly wrong is refused. SQL text, functions, and sources whose columns cannot be told are Spark's business.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from millstream.core.topology import Injector, Input, check_columns
from millstream.sources.schema import columns as columns_of
from millstream.views.cdc import Feed


def check_injector(injector: Injector) -> None:
    injector.check(columns_of(injector.source.schema))


def check_keys(what: str, inputs: Sequence[Input], injectors: Sequence[Injector]) -> None:
    for one in inputs:
        keys = one.key if isinstance(one.key, tuple) else (one.key,)
        known = next((columns_of(injector.source.schema) for injector in injectors if injector.name == one.stream), None)
        check_columns(f"injected stream {one.stream!r}, {what}", keys, known)


def table_fields(
    name: str, inputs: Sequence[Input], injectors: Sequence[Injector], feed: Feed, version: Any, columns: Sequence[str] | None
) -> Collection[str] | None:
    """The fields of a table's documents; None if that cannot be told. Its rows must be documents themselves, of sources with a schema.
    Raises DefinitionError if the table names one that is not there."""
    check_keys(f"key of table {name!r}", inputs, injectors)
    by_name = {injector.name: injector for injector in injectors if injector.value is None}
    known = [columns_of(by_name[one.stream].source.schema) if one.stream in by_name else None for one in inputs]
    told = list(dict.fromkeys(column for some in known for column in some or ()))
    if feed.kind == "upserts" and None not in known:
        versions = version if isinstance(version, (list, tuple)) else [version]
        for what, given in (("version", versions), ("deleted", [feed.deleted])):
            plain = [one for one in given if not isinstance(one, str) or "." not in one]  # a path leads into a field
            check_columns(f"table {name!r}, {what}", plain, told)
        check_columns(f"table {name!r}, columns", columns or (), told)
    elif columns is None:
        return None
    return told if columns is None else list(columns)
