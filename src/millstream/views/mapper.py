"""The map: from a document to (group, part) pairs.

Rules
1. Functions take a document with `.key` and `.value`, and must not change it. `map` gives the new value, `flat_map` values, `filter` a bool; the document
   keeps its key. `by` gives the group: a field, several (the group is a tuple), a function, or nothing (one group for all).
2. The pairs of a document follow from the document alone. What raises is blamed on view and document.
3. Several values of one document for one group are one contribution of several parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from millstream.core.keys import BadKey, key_text
from millstream.core.links import Link, linked
from millstream.core.route_keys import field_of
from millstream.errors import HookError
from millstream.views.change import Document

GroupBy = Sequence[str] | Callable[[Document], Any]  # names of fields, or the user's function
Lift = Callable[[Any, Any], Any] | None  # what of a value and its version travels; None: the value
Pairs = dict[str, list[Any]]  # by group's key text: the parts


class MapFailed(HookError):
    """A map raised, or gave what cannot be used. why: without the document. cause: what was raised, if anything."""

    def __init__(self, view: str, document: Any, why: str) -> None:
        super().__init__(f"view {view!r}, document {document!r}: {why}")
        self.why = why


def group_of(by: GroupBy) -> Callable[[Document], Any]:
    if callable(by):
        return by
    names = tuple(by)
    if not names:
        return lambda document: ""
    if len(names) == 1:
        return partial(_only_field, names[0])
    return lambda document: tuple([_field(document.value, name) for name in names])


def _only_field(name: str, document: Document) -> Any:
    value = document.value
    return value[name] if value.__class__ is dict and name in value else _field(value, name)


def _field(value: Any, name: str) -> Any:
    if value.__class__ is dict:
        if name in value:
            return value[name]
        raise LookupError(f"by({name!r}): there is no such field; there are: {', '.join(map(str, value)) or 'none'}")
    try:
        return field_of(value, name)
    except AttributeError:
        raise LookupError(f"by({name!r}): the value {value!r} has no such field; give a function of the document instead") from None


def with_value(document: Document, value: Any) -> Document:
    return Document(document.key, value, document.version)


def _blamed(view: str, document: Document, error: Exception) -> MapFailed:
    """Rule 2."""
    if isinstance(error, BadKey):
        return MapFailed(view, document.key, f"its group: {error}. Give another `by`, or leave such documents out with `filter`")
    return MapFailed(view, document.key, f"{type(error).__name__}: {error}")


def pairs_of(view: str, links: Sequence[Link], by: GroupBy, lift: Lift) -> Callable[[Sequence[Document]], Pairs]:
    """A function that gives the pairs of the documents of one origin."""
    chain, group = linked(links, with_value), group_of(by)
    is_direct = not links

    def pairs(documents: Sequence[Document]) -> Pairs:
        found: Pairs = {}
        document = documents[0]
        try:
            for document in documents:
                for d in (document,) if is_direct else chain(document):
                    text = key_text(group(d))
                    part = d.value if lift is None else lift(d.value, d.version)
                    if text in found:
                        found[text].append(part)
                    else:
                        found[text] = [part]
        except Exception as error:
            raise _blamed(view, document, error) from error
        return found

    return pairs


def single_of(view: str, links: Sequence[Link], by: GroupBy, lift: Lift) -> Callable[[Document], tuple[str, Any]] | None:
    """A function for a map that gives every document exactly one pair; None if it does not."""
    if links:
        return None
    group = group_of(by)

    def single(document: Document) -> tuple[str, Any]:
        try:
            return key_text(group(document)), document.value if lift is None else lift(document.value, document.version)
        except Exception as error:
            raise _blamed(view, document, error) from error

    return single
