"""Steps without state, one behind the other: what `map`, `filter` and `flat_map` do to one item (a record, or a document of a view).

Rules
1. `map` gives the item's new value, `flat_map` values, one after the other, `filter` whether it stays. The item keeps all but its value.
2. A flat_map gives at most `MOST_VALUES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

MOST_VALUES = 100_000  # that one item may become

MAP, FLAT_MAP, FILTER = "map", "flat_map", "filter"

Link = tuple[str, Callable[[Any], Any]]  # what it is, and the user's function
LinkChain = Callable[[Any], Iterable[Any]]
Replace = Callable[[Any, Any], Any]  # an item with another value


def linked(links: Sequence[Link], replace: Replace) -> LinkChain:
    """Links as one function of an item, which gives what the item becomes."""
    found: LinkChain = lambda item: (item,)  # noqa: E731
    for kind, function in links:
        found = _WAYS[kind](found, function, replace)
    return found


def _mapped(before: LinkChain, f: Callable[[Any], Any], replace: Replace) -> LinkChain:
    return lambda item: [replace(one, f(one)) for one in before(item)]


def _flat_mapped(before: LinkChain, f: Callable[[Any], Any], replace: Replace) -> LinkChain:
    def run(item: Any) -> Iterable[Any]:
        found: list[Any] = []
        for one in before(item):
            values = f(one)
            if isinstance(values, (str, bytes, dict)) or not hasattr(values, "__iter__"):
                raise TypeError(f"flat_map must give a list of values (or any iterable), and gave {repr(values)[:80]}")
            for value in values:
                found.append(replace(one, value))
                if len(found) > MOST_VALUES:
                    raise ValueError(f"flat_map gave more than {MOST_VALUES:,} values. Split the input, or reduce it in the map")
        return found

    return run


def _filtered(before: LinkChain, f: Callable[[Any], Any], replace: Replace) -> LinkChain:
    return lambda item: [one for one in before(item) if f(one)]


_WAYS: dict[str, Callable[..., LinkChain]] = {MAP: _mapped, FLAT_MAP: _flat_mapped, FILTER: _filtered}
