"""Tables, views and joins of a checkpoint as users read them: as Arrow, as a DataFrame, as of any epoch. What they show is told by `readable/relations.py`.

Rules
1. What is read is one cut: all rows are as of one committed epoch, the newest unless another is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, TypeVar

from millstream.readable.relations import ShownRow, given, relation, relations, shown
from millstream.state.manifest_log import ManifestLog
from millstream.state.queries import Reader
from millstream.state.reader import AsOf, CommittedState, steady
from millstream.state.storage import open_storage
from millstream.views.dsl import TABLE

__all__ = ["ShownRow", "at", "by_key", "frame", "given", "origins", "read", "relation", "relations", "shown", "tabled"]

_T = TypeVar("_T")


def at(log: ManifestLog, epoch: int | None, read: Callable[[Reader], _T]) -> _T:
    """What `read` makes of one epoch, the newest unless another is asked for."""
    if epoch is None:
        return steady(log, read)
    with CommittedState(log).at(epoch) as cut:
        assert isinstance(cut, AsOf)
        return read(cut)


# --- what users call, as `ms.views.read`, `ms.views.frame` and `ms.views.origins`


def read(
    checkpoint: str | os.PathLike[str],
    name: str,
    *,
    key: Any = None,
    prefix: str | tuple[Any, ...] | None = None,
    epoch: int | None = None,
    limit: int | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Any:
    """What a table, view or join of a checkpoint shows, as a pyarrow Table with the columns `key`, `value` and, for tables, `version`.

    It needs no code of the pipeline, and reads one committed epoch, while the pipeline runs or not. key: one row. prefix: rows whose keys begin with a
    text, or for keys that are tuples with a tuple. epoch: an older one that is still kept. limit: at most so many rows.
    A column has the type that its values have; dicts are structs. Values that have no type in common become JSON text (`status/columns.py`).

    >>> read("nowhere", "names")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    millstream.errors.CheckpointError: ...nowhere is not a checkpoint of Millstream: it has no identity.json.
    """
    log = ManifestLog(open_storage(checkpoint, storage_options))
    return at(log, epoch, lambda cut: tabled(islice(shown(cut, name, key=key, prefix=prefix), limit), relation(cut, name).kind == TABLE))


def tabled(rows: Iterable[ShownRow], versions: bool = False) -> Any:
    """Rows as an Arrow table."""
    import pyarrow as pa

    from millstream.status.columns import column

    columns: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    for row in rows:
        for of, value in zip(columns, row, strict=True):
            of.append(value)
    names = ["key", "value", "version"][: 3 if versions else 2]
    return pa.table(dict(zip(names, map(column, columns), strict=False)))


def frame(spark: Any, checkpoint: str | os.PathLike[str], name: str, **options: Any) -> Any:
    """The same as a Spark DataFrame. options: as in `read`. The rows are read by the driver and held there: for views that fit into its memory.

    >>> frame(None, "nowhere", "names")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    millstream.errors.CheckpointError: ...nowhere is not a checkpoint of Millstream: it has no identity.json.
    """
    found = read(checkpoint, name, **options)
    return spark.createDataFrame(found)


def origins(
    checkpoint: str | os.PathLike[str], view: str, key: Any, *, epoch: int | None = None, storage_options: dict[str, Any] | None = None
) -> dict[Any, list[Any]]:
    """Which documents make up a group of a view, and what each gives: lists of parts by the document's key.

    >>> origins("nowhere", "names", "Sue")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    millstream.errors.CheckpointError: ...nowhere is not a checkpoint of Millstream: it has no identity.json.
    """
    return at(ManifestLog(open_storage(checkpoint, storage_options)), epoch, lambda cut: given(cut, view, key))


def by_key(rows: Iterable[ShownRow]) -> dict[Any, Any]:
    """Rows as a dict; a key that has several keeps the last."""
    return {row.key: row.value for row in rows}
