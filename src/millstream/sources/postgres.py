"""A table of PostgreSQL as a source: first its rows, then what changes in it, by logical replication.

Rules
1. The slot is made at the consistent point of the first snapshot. Its name stands in a manifest before it exists: an attempt that was killed is tidied up by
   the next, and nobody else's slot is ever dropped.
2. The rows are read in portions, in the order of the primary key. A run that goes on after a crash takes a new snapshot for the rest: its rows carry the
   position of that snapshot, and so beat the changes that they have in them already.
3. Rows carry a position (`postgres_lsn`): the greatest of a key is the newest. An epoch ends between two transactions.
4. While nothing changes, an epoch without rows moves the position now and then: so the server need not keep what others write.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.errors import DefinitionError, InputError
from millstream.extras import needed
from millstream.network import retried
from millstream.postgres_client import TEXTS, conninfo, passes, primary_key, quoted, said
from millstream.sources.base import Source
from millstream.sources.schema import columns
from millstream.sources.splits import Offset, PlannedReader, SplitPlan

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

    from millstream.sources.postgres_stream import ChangeStream

_MOST = 100_000  # rows of an epoch
_MOVES = 30.0  # seconds after which a position moves although nothing has changed
_LAG = 16 << 20  # or bytes
LSN, DELETED, TIME = "postgres_lsn", "postgres_deleted", "postgres_time"
_IDENTITY = (
    "select c.oid::regclass::text, c.relreplident, array(select a.attname::text from pg_index i join pg_attribute a on a.attrelid = i.indrelid "
    "and a.attnum = any(i.indkey) where i.indrelid = c.oid and i.indisreplident) from pg_class c "
    "where c.relkind <> 'p' and (c.oid = %s or c.oid in (select relid from pg_partition_tree(%s)))"
)
_OWN = f"{LSN} long, {DELETED} boolean, {TIME} timestamp"


class _Copying(msgspec.Struct, frozen=True):
    """The rows of a table, as far as they are read: behind a key."""

    after: list[str] | None = None


class PostgresOffset(Offset, frozen=True):
    """a table of PostgreSQL"""

    slot: str = ""
    lsn: int = 0
    copying: _Copying | None = None


class PostgresStats(msgspec.Struct, frozen=True):
    """How a source is doing. backlog: transactions that have come and are not committed here."""

    backlog: int = 0
    lsn: int = 0


class _TableShape(msgspec.Struct, frozen=True):
    oid: int
    schema: str
    name: str
    key: dict[str, str]  # its types, as SQL
    columns: dict[str, str]  # its types, as DDL
    is_partitioned: bool


class PostgresSource(Source):
    """The rows of a table, and then its changes, for `pipeline.table`. The server needs wal_level=logical, and the table a primary key.

    dsn: as libpq takes it; the user needs the attribute REPLICATION. columns: those that are wanted, all unless given. schema: the columns as DDL; the server
    is asked unless given. publication: it is made if it is not there. slot: the name of the replication slot, by default one that is made up. As long as
    a slot is there, the server keeps what its pipeline has not read; drop it with the pipeline: select pg_drop_replication_slot(NAME).

    Of each row there are also postgres_lsn (its version), postgres_deleted and postgres_time (of the commit).

    >>> postgres("dbname=shop", "orders", schema="id long, price double").schema
    'id long, price double, postgres_lsn long, postgres_deleted boolean, postgres_time timestamp'
    """

    version, deleted = LSN, DELETED

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        schema: str | None = None,
        publication: str | None = None,
        slot: str | None = None,
        max_per_epoch: int = _MOST,
    ) -> None:
        if not isinstance(dsn, str) or not isinstance(table, str) or not table:
            raise DefinitionError(f"sources.postgres({dsn!r}, {table!r}): give a connection string and the name of a table")
        if max_per_epoch < 1:
            raise DefinitionError("sources.postgres(max_per_epoch=...): at least 1")
        if slot is not None and not slot.replace("_", "a").isalnum():
            raise DefinitionError(f"sources.postgres(slot={slot!r}): a slot has a name of small letters, digits and _")
        self.dsn, self.table, self.max_per_epoch, self.slot = dsn, table, max_per_epoch, slot
        self.columns = None if columns is None else tuple(columns)
        self.publication = publication or f"millstream_{table}".replace(".", "_").replace('"', "")
        self._given, self._shape = schema, None
        self._reader: PostgresReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    _shape: _TableShape | None

    @property
    def schema(self) -> str:  # type: ignore[override]
        own = self._given or ", ".join(f"{name} {kind}" for name, kind in self.shape().columns.items())
        return f"{own}, {_OWN}"

    def shape(self) -> _TableShape:
        """The table, as the server has it."""
        if self._shape is None:
            with self.connected() as session:
                self._shape = self._look(session)
        return self._shape

    def connected(self) -> psycopg.Connection[Any]:
        with needed("ms.sources.postgres"):
            import psycopg

        try:
            for attempt in retried(passes):
                with attempt:
                    found = psycopg.connect(conninfo(self.dsn, *TEXTS), autocommit=True)
        except psycopg.Error as error:
            raise self.refused(error) from error
        return found

    def refused(self, error: Exception) -> InputError:
        return InputError(f"{self.describe()}: {said(error)}")

    def _look(self, session: psycopg.Connection[Any]) -> _TableShape:
        found = session.execute(
            "select c.oid, n.nspname, c.relname, c.relkind = 'p' from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(%s)",
            [self.table],
        ).fetchone()
        if found is None:
            raise InputError(f"{self.describe()} is not there, or may not be seen")
        oid, schema, name, is_partitioned = found
        key = primary_key(session, oid)
        if not key:
            raise InputError(
                f"{self.describe()} has no primary key, by which its changes name a row: alter table {self.table} add primary key (...)"
            )
        there = session.execute(
            "select attname, format_type(atttypid, atttypmod), attgenerated = '' from pg_attribute where attrelid = %s and attnum > 0 and not attisdropped "
            "order by attnum",
            [oid],
        ).fetchall()
        from millstream.sources.postgres_values import ddl_type

        known = {column: kind for column, kind, is_sent in there if is_sent}
        wanted = tuple(columns(self._given) or ()) or self.columns
        for column in (*(wanted or ()), *key):
            if column not in known:
                generated = [name for name, _, is_sent in there if not is_sent]
                why = ", which is generated: its changes are not sent" if column in generated else f"; it has {', '.join(known)}"
                raise InputError(f"{self.describe()} has no column {column!r}{why}")
        self._check_identity(session, oid, key)
        found = {column: ddl_type(known[column]) for column in known if wanted is None or column in wanted or column in key}
        return _TableShape(oid, schema, name, {column: known[column] for column in key}, found, is_partitioned)

    def _check_identity(self, session: psycopg.Connection[Any], oid: int, key: Sequence[str]) -> None:
        """Deletions have the columns of the replica identity, of the table or of each of its partitions."""
        for name, kind, index in session.execute(_IDENTITY, [oid, oid]).fetchall():
            if kind == "n" or (kind == "i" and not set(key) <= set(index)):
                raise InputError(
                    f"{self.describe()}: the replica identity of {name} is {'an index without' if kind == 'i' else 'nothing, not even'} the primary key, "
                    f"by which its changes name a row: alter table {name} replica identity default"
                )

    def load(self, spark: Any, unreadable: str | None = None) -> Any:
        raise DefinitionError(f"{self.describe()}: Spark is not to read it. Give its pipeline no source that only Spark can read")

    def unplanned(self) -> str | None:
        return None

    def reader(self, arrow_schema: Callable[[Any], Any], unreadable: str | None = None) -> PlannedReader:
        self._reader = PostgresReader(self, arrow_schema(self.schema))
        return self._reader

    def documents(self) -> list[str]:
        return [name for name in columns(self.schema) or () if name not in (LSN, DELETED, TIME)]

    def stats(self) -> PostgresStats | None:
        return None if self._reader is None else self._reader.stats

    def describe(self) -> str:
        return f"table {self.table} of PostgreSQL"


class PostgresReader(PlannedReader):
    counts = "records"

    def __init__(self, source: PostgresSource, schema: pa.Schema) -> None:
        self.schema, self._source = schema, source
        self.stats = PostgresStats()
        self._forget()
        self._bounded = False
        self._call: Callable[[], None] = lambda: None

    def _forget(self) -> None:
        self._stream: ChangeStream | None = None
        self._snapshot: psycopg.Connection[Any] | None = None
        self._session: psycopg.Connection[Any] | None = None
        self._copied: dict[str, tuple[SplitPlan, int]] = {}
        self._moved = time.monotonic()
        self._target: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"schema": self.schema}  # rows travel in their splits

    # --- the driver

    def begin(self, names: Mapping[str, int], bounded: bool) -> None:
        self.close()
        self._bounded = bounded

    def first(self) -> str:
        return PostgresOffset().text()

    def plan(self, start: str) -> SplitPlan:
        import psycopg

        at = PostgresOffset.read(start)
        try:
            for attempt in retried(passes):
                with attempt:
                    try:
                        found = self._planned(start, at)
                    except psycopg.Error:
                        self._disconnect()  # what is left of a transaction is of no use
                        raise
        except psycopg.Error as error:
            raise self._source.refused(error) from error
        return found

    def _planned(self, start: str, at: PostgresOffset) -> SplitPlan:
        if not at.slot:
            self._check_server()
            digest = hashlib.blake2b(self._source.table.encode(), digest_size=3).hexdigest()
            return SplitPlan(PostgresOffset(self._source.slot or f"millstream_{digest}_{secrets.token_hex(4)}").text())
        if not at.lsn or at.copying is not None:
            return self._copy(start, at)
        return self._changes(start, at)

    def _sql(self, text: str, *given: Any) -> list[Any]:
        if self._session is None or self._session.closed:
            self._session = self._source.connected()
        found = self._session.execute(text, given)
        return found.fetchall() if found.description else []

    def _check_server(self) -> None:
        ((level,),) = self._sql("show wal_level")
        if level != "logical":
            raise InputError(
                f"{self._source.describe()}: the server has wal_level={level}. Say: alter system set wal_level = 'logical', and restart it"
            )
        shape, publication = self._source.shape(), self._source.publication
        if not self._sql("select 1 from pg_publication where pubname = %s", publication):
            root = " with (publish_via_partition_root = true)" if shape.is_partitioned else ""
            self._sql(f"create publication {quoted(publication)} for table {quoted(shape.schema)}.{quoted(shape.name)}{root}")
        self._check_publication()
        if self._source.slot and self._sql("select 1 from pg_replication_slots where slot_name = %s", self._source.slot):
            raise InputError(
                f"{self._source.describe()}: there is a replication slot {self._source.slot!r}, perhaps of another pipeline. Name another with slot=, or drop "
                f"it: select pg_drop_replication_slot('{self._source.slot}')"
            )

    def _check_publication(self) -> None:
        """That it tells all changes of all rows, with the columns that are wanted."""
        shape, publication = self._source.shape(), self._source.publication
        who, alter = self._source.describe(), f"alter publication {quoted(publication)}"
        settings = self._sql("select to_jsonb(p) from pg_publication p where pubname = %s", publication)
        missing = [kind for kind in ("insert", "update", "delete", "truncate") if settings and not settings[0][0][f"pub{kind}"]]
        if missing:
            raise InputError(
                f"{who}: publication {publication!r} leaves out {missing[0]}s: {alter} set (publish = 'insert, update, delete, truncate')"
            )
        found = self._sql(
            "select to_jsonb(t) from pg_publication_tables t where pubname = %s and schemaname = %s and tablename = %s",
            publication,
            shape.schema,
            shape.name,
        )
        if not found:
            is_root = shape.is_partitioned and settings and not settings[0][0].get("pubviaroot")
            remedy = "set (publish_via_partition_root = true)" if is_root else f"add table {self._source.table}"
            raise InputError(f"{who} is not in publication {publication!r}: {alter} {remedy}")
        told = found[0][0]
        if told.get("rowfilter"):
            raise InputError(f"{who}: publication {publication!r} leaves out rows ({told['rowfilter']}): name another with publication=")
        if hidden := [name for name in shape.columns if name not in told.get("attnames", shape.columns)]:
            raise InputError(
                f"{who}: publication {publication!r} leaves out column {hidden[0]!r}: {alter} set table {self._source.table}, or leave it out with columns="
            )

    # --- the rows that are there

    def _copy(self, start: str, at: PostgresOffset) -> SplitPlan:
        """The next portion of the table."""
        if start in self._copied:
            return self._copied[start][0]  # planned again: the snapshot is the same, and so are the rows
        if self._snapshot is None or self._snapshot.closed:
            self._lsn = self._open_snapshot(at)
        assert self._snapshot is not None
        after = at.copying.after if at.copying is not None else None
        shape, most = self._source.shape(), self._source.max_per_epoch
        key = ", ".join(f"t.{quoted(name)}" for name in shape.key)  # the output has texts with these names
        names = list(dict.fromkeys([*shape.columns, *shape.key]))
        where = f" where ({key}) > ({', '.join(['%s'] * len(shape.key))})" if after is not None else ""
        columns = ", ".join(f"t.{quoted(name)}::text" for name in names)
        query = f"select {columns} from {quoted(shape.schema)}.{quoted(shape.name)} t{where} order by {key} limit {most}"
        rows = self._snapshot.execute(query, after or []).fetchall()
        last = [rows[-1][names.index(name)] for name in shape.key] if rows else None
        is_all = len(rows) < most
        end = PostgresOffset(at.slot, at.lsn or self._lsn, None if is_all else _Copying(last))
        if is_all:
            self._snapshot.close()
        now = time.time_ns() // 1000
        splits = self._splits([(dict(zip(names, row, strict=True)), self._lsn, now, False) for row in rows])
        found = SplitPlan(end.text(), splits, sum(map(len, splits)))
        self._copied = {start: (found, self._lsn)}
        return found

    def _open_snapshot(self, at: PostgresOffset) -> int:
        """Rules 1 and 2. Returns its position; for a new slot, that is where its changes begin."""
        from millstream.sources.postgres_stream import command, replication

        slot = at.slot if not at.lsn else f"{at.slot[:40]}_rest_{secrets.token_hex(4)}"
        if not at.lsn:
            self._sql("select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s", slot)
        maker = replication(self._source.dsn)
        try:
            kind = "" if not at.lsn else "TEMPORARY "
            made = command(maker, f'CREATE_REPLICATION_SLOT "{slot}" {kind}LOGICAL pgoutput EXPORT_SNAPSHOT')
            lsn, name = _lsn(made.get_value(0, 1).decode()), made.get_value(0, 2).decode()
            self._snapshot = self._source.connected()
            self._snapshot.execute("begin isolation level repeatable read read only")
            self._snapshot.execute(f"set transaction snapshot '{name}'")
            self._snapshot.execute("set idle_in_transaction_session_timeout = 0")
        finally:
            maker.finish()
        return lsn

    # --- what changes

    def _changes(self, start: str, at: PostgresOffset) -> SplitPlan:
        stream = self._opened(at)
        stream.raise_error()
        if self._bounded:
            if self._target is None:
                ((text,),) = self._sql("select pg_current_wal_flush_lsn()::text")
                self._target = _lsn(text)
            if at.lsn >= self._target:
                return SplitPlan(start)
            stream.await_position(self._target)
        found, end = stream.waiting(self._source.max_per_epoch)
        found = [one for one in found if one.lsn > at.lsn]
        self.stats = PostgresStats(len(found), at.lsn)
        if not found:
            is_time = time.monotonic() - self._moved > _MOVES or end - at.lsn > _LAG or self._bounded
            return SplitPlan(PostgresOffset(at.slot, end).text() if is_time and end > at.lsn else start)
        self._complete(found)
        splits = self._splits(
            [
                (dict(zip(self._source.shape().key, key, strict=True)) if row is None else row, one.lsn, one.time, row is None)
                for one in found
                for key, row in one.rows.items()
            ]
        )
        rows = sum(map(len, splits))
        left = max(0, stream.rows - rows)
        return SplitPlan(PostgresOffset(at.slot, max(end, at.lsn)).text(), splits, rows, takes=rows, left=left)

    def _opened(self, at: PostgresOffset) -> ChangeStream:
        if self._stream is None:
            from millstream.sources.pgoutput import ChangeDecoder
            from millstream.sources.postgres_stream import ChangeStream

            found = self._sql("select confirmed_flush_lsn::text, wal_status from pg_replication_slots where slot_name = %s", at.slot)
            if not found or found[0][1] == "lost":
                gone = (
                    "is not there any longer"
                    if not found
                    else "is lost: the server has removed what it was to keep (max_slot_wal_keep_size)"
                )
                raise InputError(
                    f"{self._source.describe()}: its replication slot {at.slot!r} {gone}. What changed since is unknown: begin with a new checkpoint"
                )
            if _lsn(found[0][0]) > at.lsn:
                raise InputError(
                    f"{self._source.describe()}: its replication slot {at.slot!r} has moved to {found[0][0]}, past what this checkpoint has read: somebody "
                    f"else reads from it, or the checkpoint is an old copy. Begin with a new checkpoint"
                )
            self._check_publication()
            shape = self._source.shape()
            decoder = partial(ChangeDecoder, shape.schema, shape.name, tuple(shape.key), tuple(shape.columns))
            self._stream = ChangeStream(self._source.dsn, at.slot, self._source.publication, decoder, at.lsn)
            self._stream.call = self._call
        return self._stream

    def _complete(self, found: Sequence[Any]) -> None:
        """Values that were not sent, because an update left them alone, are read of the table as it is now: they are that, or newer."""
        import psycopg

        from millstream.sources.pgoutput import UNSENT

        missing: dict[tuple[str, ...], list[tuple[Any, Any]]] = {}
        shape = self._source.shape()
        for one in found:
            for key, row in one.rows.items():
                names = tuple([name for name in shape.columns if row is not None and row.get(name) is UNSENT])
                if names:
                    missing.setdefault(names, []).append((key, row))
        keys = [f"k{at}" for at in range(len(shape.key))]
        same = " and ".join(f"t.{quoted(name)} = k.{at}::{kind}" for at, (name, kind) in zip(keys, shape.key.items(), strict=True))
        for names, some in missing.items():
            columns = ", ".join(f"t.{quoted(name)}::text" for name in names)
            given = f"unnest({', '.join(['%s::text[]'] * len(keys))}) with ordinality k({', '.join(keys)}, at)"
            query = f"select k.at, {columns} from {given} join {quoted(shape.schema)}.{quoted(shape.name)} t on {same}"
            try:
                now = {at: values for at, *values in self._sql(query, *map(list, zip(*[key for key, _ in some], strict=True)))}
            except psycopg.errors.UndefinedColumn as error:
                raise InputError(
                    f"{self._source.describe()}: {said(error.diag.message_primary)}: it was dropped, or has another name. Name it as it was, leave it out with "
                    f"columns=, or begin with a new checkpoint"
                ) from error
            for at, (_, row) in enumerate(some, 1):
                row.update(zip(names, now.get(at, [None] * len(names)), strict=True))

    def _splits(self, rows: list[tuple[dict[str, Any], int, int, bool]]) -> list[bytes]:
        from millstream.sources.postgres_values import to_bytes

        return [to_bytes(rows[at : at + 20_000], self.schema, self._source) for at in range(0, len(rows), 20_000)]

    def committed(self, end: str) -> None:
        at = PostgresOffset.read(end)
        if self._stream is not None and at.copying is None:
            self._stream.confirm(at.lsn)
            self._moved = time.monotonic()

    def wake(self, call: Callable[[], None]) -> bool:
        self._call = call
        if self._stream is not None:
            self._stream.call = call
        return True

    def close(self) -> None:
        if self._stream is not None:
            self._stream.end()
        self._disconnect()
        self._forget()

    def _disconnect(self) -> None:
        for session in (self._snapshot, self._session):
            if session is not None:
                session.close()

    # --- anywhere

    def read(self, split: bytes) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        yield from pa.ipc.open_stream(split)


def _lsn(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


postgres = PostgresSource
