"""Tables, views and joins of a checkpoint, read without the code that made them: what they show, and what each document gives. Users have it as
`ms.views.read`, `frame` and `origins`.

Rules
1. Rows carry what they show, and the manifest says what is a table, a view or a join. So nothing of the pipeline is needed here, and no reducer is run.
2. What is read is one cut: all rows are as of one committed epoch, the newest unless another is asked for.
3. A view that is being filled shows what its last complete generation showed; one that is filled for the first time shows nothing.
4. Rows come in the order of their keys' bytes. A join keeps its rows by the right side's key, and shows them by the left document's: they come in no
   particular order, and one key is looked for in all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from millstream.core.backfill import BuildState
from millstream.core.keys import BadKey, key_bytes, key_of
from millstream.core.keyspace import Row, after, sub_prefix
from millstream.core.statekind import StateKind
from millstream.errors import CheckpointError, DefinitionError
from millstream.readable.listing import plain
from millstream.state.codec import msgpack
from millstream.state.manifest import ComputationState, Manifest
from millstream.state.manifest_log import ManifestLog
from millstream.state.memory_storage import MemoryStore
from millstream.state.queries import Reader, bound
from millstream.state.reader import AsOf, CommittedState, steady
from millstream.state.storage import open_storage
from millstream.views.agg_tree import Tree
from millstream.views.aggregate import Aggregate, GroupRow
from millstream.views.change import ViewCodec
from millstream.views.dsl import JOIN, TABLE, VIEW
from millstream.views.join import INNER, Join, JoinRow
from millstream.views.table import DocumentTable

_T = TypeVar("_T")

_decode = msgpack.decoder(object)
_encode = msgpack.encoder()
_KINDS = {kind: StateKind(cls, ViewCodec(msgpack)) for kind, cls in ((TABLE, DocumentTable), (VIEW, Aggregate), (JOIN, Join))}


class ShownRow(NamedTuple):
    """A row of a table, view or join. version: of a document of a table."""

    key: Any
    value: Any
    version: Any = None


def relations(manifest: Manifest) -> dict[str, ComputationState]:
    """The tables, views and joins of a checkpoint."""
    return {name: state for name, state in manifest.computations.items() if state.kind in _KINDS}


def rows_shown(state: ComputationState) -> int:
    """How many documents a table has, or groups a view; of a join, how many keys of its right side."""
    counted = {TABLE: "documents", VIEW: "groups"}.get(state.kind)
    return sum(shard.keys for shard in state.shards) if counted is None else state.tallies.get(counted, 0)


def relation(cut: Reader, name: str) -> ComputationState:
    """One of them; or an error that says which there are."""
    found = cut.manifest.computations.get(name)
    if found is not None and found.kind in _KINDS:
        return found
    known = ", ".join(f"{other!r} (a {state.kind})" for other, state in relations(cut.manifest).items()) or "none"
    what = "a window operator" if found is not None and found.window is not None else "a computation of the pipeline's own"
    own = f"{what}: `millstream state` shows it." if found is not None else "not there."
    raise CheckpointError(f"no table, view or join is called {name!r}: it is {own} There are: {known}.")


def shown(cut: Reader, name: str, *, key: Any = None, prefix: Any = None) -> Iterator[ShownRow]:
    """The rows of a table, view or join: all, that of a key, or those whose keys begin with a text (or, for keys that are tuples, with a tuple)."""
    state = relation(cut, name)
    if key is not None and prefix is not None:
        raise DefinitionError(f"{name!r}: give key= or prefix=, not both")
    build = cut.manifest.builds.get(name)
    if build is not None and not build.active:
        return  # rule 3
    if state.kind == JOIN:
        yield from _joined(cut, name, state.relation.how if state.relation is not None else INNER, key, prefix)
        return
    for row_key, row in _rows(cut, name, key, prefix):
        yield from shown_by(row_key, row, state.kind, build)


def shown_by(row_key: bytes, row: Row, kind: str, build: BuildState | None) -> Iterator[ShownRow]:
    """What one row of a table or a view shows."""
    if build is not None and not build.active:
        return  # rule 3
    state = _KINDS[kind].decode(row.state)
    if kind == TABLE:
        if state.body is not None:
            yield ShownRow(key_of(row_key.decode()), _decode(state.body), state.version)
        return
    active = state.generation if build is None else build.active
    for value in state.shown if state.generation == active else state.old if state.generation > active else []:
        yield ShownRow(key_of(row_key.decode()), value)


def _joined(cut: Reader, name: str, how: str, key: Any, prefix: Any) -> Iterator[ShownRow]:
    begins = None if prefix is None else _begins(name, prefix).decode()
    for row_key, row in cut.rows(name):
        state: JoinRow = _with_maps(cut, name, JOIN, row_key, row)
        if not state.right and how == INNER:
            continue
        beside = state.right[0] if state.right else None
        lefts: Iterable[tuple[str, Any]] = state.lefts.items() if state.beside else state.inline.items()
        for origin, data in lefts:
            left = key_of(origin)
            if (key is not None and (type(left), left) != (type(key), key)) or (begins is not None and not origin.startswith(begins)):
                continue
            for value in _decode(data) if state.beside else data:
                yield ShownRow(left, {"left": value, "right": beside})


def plain_row(row: ShownRow, versions: bool) -> dict[str, Any]:
    """A row as JSON can say it. versions: those of documents too, as a table has them."""
    found = {"key": plain(row.key), "value": plain(row.value)}
    return {**found, "version": plain(row.version)} if versions else found


def _rows(cut: Reader, name: str, key: Any, prefix: Any) -> Iterable[tuple[bytes, Row]]:
    if key is not None:
        row_key = _named(name, key)
        row = cut.get(name, key)
        return [] if row is None else [(row_key, row)]
    return cut.rows(name) if prefix is None else cut.prefix(name, _begins(name, prefix))


def _named(name: str, key: Any) -> bytes:
    try:
        return key_bytes(key)
    except BadKey as error:
        raise DefinitionError(f"{name!r}, key {key!r}: {error}") from error


def _begins(name: str, prefix: Any) -> bytes:
    """What the texts of keys begin with. That of a tuple begins with that of a shorter one."""
    if isinstance(prefix, (str, tuple)):
        return _named(name, prefix)
    raise DefinitionError(f"{name!r}: prefix={prefix!r}: give a text, or for keys that are tuples a tuple")


def _with_maps(cut: Reader, name: str, kind: str, row_key: bytes, row: Row) -> Any:
    """A state whose maps can be read."""
    of = _KINDS[kind]
    (field,) = of.map_fields
    start, state = sub_prefix(row_key, field), of.decode(row.state)
    is_large = state.beside if kind == JOIN else state.leaves
    entries = cut.scan(name, start, after(start), shard=cut.shard_of(name, row_key)) if is_large else ()
    return bound(of, row_key, row, MemoryStore(entries))


def given(cut: Reader, view: str, key: Any) -> dict[Any, list[Any]]:
    """What each document gives to a group of a view, by the document's key, in the order of their texts."""
    state = relation(cut, view)
    if state.kind != VIEW:
        raise DefinitionError(f"{view!r} is a {state.kind}: only views have groups to which documents give something")
    if state.relation is not None and not state.relation.origins:
        raise DefinitionError(f"view {view!r} was defined with origins=False: it does not know which document gives what")
    row_key = _named(view, key)
    row = cut.get(view, key)
    if row is None:
        return {}
    group: GroupRow = _with_maps(cut, view, VIEW, row_key, row)
    found = dict(Tree(group.nodes, group.leaves, None, _encode, _decode).items()) if group.leaves else group.inline
    return {key_of(origin): found[origin] for origin in sorted(found)}


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
    A column has the type that its values have; dicts are structs. Values that have no type in common become JSON text (`readable/columns.py`).

    >>> read("nowhere", "names")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    millstream.errors.CheckpointError: ...nowhere is not a checkpoint of Millstream: it has no identity.json.
    """
    log = ManifestLog(open_storage(checkpoint, storage_options))
    return at(log, epoch, lambda cut: tabled(islice(shown(cut, name, key=key, prefix=prefix), limit), relation(cut, name).kind == TABLE))


def tabled(rows: Iterable[ShownRow], versions: bool = False) -> Any:
    import pyarrow as pa

    from millstream.readable.columns import column

    found = list(rows)
    return pa.table({name: column([getattr(row, name) for row in found]) for name in ShownRow._fields if versions or name != "version"})


def frame(spark: Any, checkpoint: str | os.PathLike[str], name: str, **options: Any) -> Any:
    """What `read` gives, as a Spark DataFrame. options: as in `read`. The driver reads the rows and holds them: for views that fit into its memory."""
    return spark.createDataFrame(read(checkpoint, name, **options))


def origins(
    checkpoint: str | os.PathLike[str], view: str, key: Any, *, epoch: int | None = None, storage_options: dict[str, Any] | None = None
) -> dict[Any, list[Any]]:
    """Which documents make up a group of a view, and what each gives: lists of parts by the document's key."""
    return at(ManifestLog(open_storage(checkpoint, storage_options)), epoch, lambda cut: given(cut, view, key))


def by_key(rows: Iterable[ShownRow]) -> dict[Any, Any]:
    """Rows as a dict; a key that has several keeps the last."""
    return {row.key: row.value for row in rows}
