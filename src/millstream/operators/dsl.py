"""What users write: `stream.by(...).window(...).reduce(...)`. Nothing is in the pipeline until the last call, which gives a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from millstream.core.outcome import DROP
from millstream.core.topology import FAIL, WINDOW
from millstream.errors import DefinitionError
from millstream.operators.pane_rows import shape_of
from millstream.operators.panes import PaneWindow, WindowSpec
from millstream.operators.windows import Calendar, Fixed, Same, WindowKind
from millstream.reducers.base import Reducer
from millstream.reducers.composite import Several, as_reducer


class Graph(Protocol):
    """The pipeline, as operators see it."""

    def _operate(self, name: str, factory: Callable[[], Any], inputs: Mapping[str, Any], late: str | None, **options: Any) -> Any: ...


class Keyed:
    """A stream with its key: by field names, or by a function of the record."""

    def __init__(self, pipeline: Graph, streams: Mapping[str, Any], fields: tuple[str, ...] | None) -> None:
        self._pipeline = pipeline
        self._streams = dict(streams)  # name to key
        self._fields = fields

    def window(self, kind: WindowKind, *, late: str = DROP) -> Windowed:
        """The records of a key in windows. late: what becomes of records all of whose windows are over: `ms.DROP` (they are counted), or the name of a
        stream that gets them."""
        if not isinstance(kind, WindowKind):
            raise DefinitionError(f"window({kind!r}): use one of ms.windows, such as ms.windows.tumbling('1m')")
        return Windowed(self, kind, late)


class Windowed:
    """A keyed stream in windows."""

    def __init__(self, keyed: Keyed, kind: WindowKind, late: str) -> None:
        self._keyed, self._kind, self._late = keyed, kind, late

    def reduce(
        self, reducer: Reducer | None = None, /, *, name: str, on_error: str = FAIL, renamed_from: str | None = None, **named: Reducer
    ) -> Any:
        """One result per key and window, when no record of it is expected any more.

        Its value is a dict: the fields of `by` (or `key`, where that is a function), `start`, `end`, and what the reducers show, by name; a single one is
        called as its kind is (`ms.count()`: "count"). Its timestamp is `end - 1`, so it falls into the windows that its own window lies in. name: the
        identity of its state in the checkpoint.
        """
        made = as_reducer(reducer, named)
        reducers = dict(made.members) if isinstance(made, Several) else {getattr(made, "name", type(made).__name__): made}
        fields = self._keyed._fields
        for word in ("start", "end", *(fields if fields is not None else ("key",))):
            if word in reducers:
                raise DefinitionError(
                    f"window {name!r}: a reducer cannot be called {word!r}, because every result has that field. Give it another name."
                )
        kind = self._kind
        assert isinstance(kind, Fixed | Calendar | Same)
        spec = WindowSpec(kind, reducers, fields)
        keyed = self._keyed
        about = {"window": kind.describe(), "reduce": made.describe()}
        return keyed._pipeline._operate(
            name,
            partial(PaneWindow, spec),
            keyed._streams,
            self._late,
            on_error=on_error,
            renamed_from=renamed_from,
            in_columns=True,
            kind=WINDOW,
            window=shape_of(kind, reducers),
            about=about,
        )
