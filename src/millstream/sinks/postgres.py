"""Rows into a table of PostgreSQL, exactly once: rows and the epoch's marker in one transaction.

Rules
1. Tasks make the text that COPY reads, with types checked against the table's: what cannot be written is found before the epoch is committed.
2. The marker is a row of `millstream_epochs`, in the table's schema: the last epoch and run of each writer. It is changed last, by the statement that
   commits, so its row is never locked while the server waits for us.
3. A run ends the sessions of the runs before it, which may have been stopped inside a transaction and would hold it up; then it takes the marker, and ends
   those that came in between. It must have their role, or be a member of it. A session that does nothing inside a transaction is ended by the server, too, but
   not one inside a COPY.
4. A part says which columns its rows have, so rows that wait are written after columns were added to the table.
5. Upserts: the rows of an epoch go to a temporary table; of several with one key the last counts. A row without a value removes its key.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.core.time import Duration
from millstream.errors import DefinitionError, Fenced, SinkError
from millstream.extras import needed
from millstream.postgres_client import conninfo, passes, primary_key, quoted, said
from millstream.sinks.base import SinkRow
from millstream.sinks.epoch_sink import EpochRows, EpochSink, SinkWriter
from millstream.sinks.files import json_bytes
from millstream.sinks.row_columns import GONE, TableColumn, check_paths, key_path, to_columns, to_upserts

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

MARKERS = "millstream_epochs"
_IDLE = "60s"  # inside a transaction
_CHUNK = 1 << 20
_REFUSES = "millstream: a newer run has written here"


class _TableShape(msgspec.Struct):
    """What the table says of itself. key: the columns of its primary key."""

    columns: list[TableColumn]
    key: list[str]


class PostgresSink(EpochSink):
    """Rows into a table, exactly once. The table must be there.

    mode: "append" adds every row; "upsert" keeps the last row of each primary key, for views (`pipeline.publish`) and latest values: a value of None removes
    the row, and of a change {"prev", "next"} the next one counts. columns: by column, where in a row its value is, as in {"shop": "key", "total":
    "value.total"}; by default every column that has no default of its own: key, timestamp, value and id are those of the row, others are fields of the
    value, and in upserts the primary key is the row's key. roll: for how long epochs wait, to be written together.

    >>> postgres("dbname=shop", "totals").describe()
    "table 'totals' of PostgreSQL"
    """

    def __init__(
        self, dsn: str, table: str, *, mode: str = "append", columns: Mapping[str, str] | None = None, roll: Duration | None = None
    ) -> None:
        super().__init__(roll=roll)
        if mode not in ("append", "upsert"):
            raise DefinitionError(f'sinks.postgres(mode={mode!r}): use "append" or "upsert"')
        check_paths(columns or {}, "sinks.postgres")
        self.dsn, self.table, self.mode, self.columns = dsn, table, mode, dict(columns or {})
        self._shape: _TableShape | None = None
        self._sessions: dict[SinkWriter, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_sessions": {}}

    def describe(self) -> str:
        return f"table {self.table!r} of PostgreSQL"

    @property
    def transient(self) -> tuple[type[Exception], ...]:  # type: ignore[override]
        with needed("ms.sinks.postgres"):
            import psycopg
        return (psycopg.OperationalError, psycopg.InterfaceError)

    def passes(self, error: Exception) -> bool:
        return passes(error)

    @property
    def form(self) -> str:  # type: ignore[override]
        return f"postgres {self.mode} {', '.join(quoted(column.name) for column in self._known().columns)}"

    def takes(self, form: str) -> bool:
        """Rule 4."""
        return form.startswith(f"postgres {self.mode} ") and set(_columns(form)) <= set(_columns(self.form))

    def _known(self) -> _TableShape:
        if self._shape is None:
            self.check()
        assert self._shape is not None
        return self._shape

    # --- the table

    def check(self) -> None:
        """Driver, at the start of a run: looks at the table, and makes that of the markers."""
        with needed("ms.sinks.postgres"):
            import psycopg
        try:
            for attempt in self.tries():
                with attempt, psycopg.connect(conninfo(self.dsn, application_name="millstream check"), autocommit=True) as session:
                    self._shape = self._look(session)
                    self._make_markers(session)
        except psycopg.Error as error:
            raise SinkError(f"{self.describe()}: {said(error)}") from error

    def _look(self, session: psycopg.Connection[Any]) -> _TableShape:
        oid = session.execute("select to_regclass(%s)::oid", [self.table]).fetchone()[0]  # type: ignore[index]
        if oid is None:
            raise SinkError(f"{self.describe()} is not there, or may not be seen. Make it: create table {self.table} (...)")
        known = session.execute(
            "select a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.atthasdef or a.attidentity <> '' or a.attgenerated <> '' "
            "from pg_attribute a where a.attrelid = %s and a.attnum > 0 and not a.attisdropped order by a.attnum",
            [oid],
        ).fetchall()
        key = primary_key(session, oid)
        if self.mode == "upsert" and not key:
            raise SinkError(f"{self.describe()} has no primary key, which upserts need: alter table {self.table} add primary key (...)")
        names = [name for name, _, _, _ in known]
        if unknown := [name for name in self.columns if name not in names]:
            raise SinkError(f"{self.describe()} has no column {unknown[0]!r}; it has {', '.join(names)}")
        key = key if self.mode == "upsert" else []
        wanted = self.columns or {name: key_path(name, key) for name, _, _, is_given in known if not is_given or name in key}
        if missing := [name for name in key if name not in wanted]:
            raise SinkError(f"{self.describe()}: column {missing[0]!r} of the primary key is not among columns=")
        found = [_column(name, wanted[name], kind, required) for name, kind, required, _ in known if name in wanted]
        return _TableShape(found, key)

    def _markers(self) -> str:
        *schema, _ = self.table.rsplit(".", 1)
        return ".".join([*schema, MARKERS])

    def _make_markers(self, session: psycopg.Connection[Any]) -> None:
        made = f"create table if not exists {self._markers()} (writer text primary key, epoch bigint, run bigint not null, written timestamptz)"
        if session.execute("select to_regclass(%s)", [self._markers()]).fetchone() == (None,):
            session.execute(made)

    # --- tasks

    def encode(self, rows: Sequence[SinkRow]) -> bytes:
        from millstream.sinks.copy_text import copy_text

        shape = self._known()
        return copy_text(to_columns(rows, shape.columns) if self.mode == "append" else to_upserts(rows, shape.columns, shape.key))

    # --- the driver

    def begin(self, writer: SinkWriter) -> int | None:
        import psycopg

        name = f"millstream {hashlib.blake2b(writer.name.encode(), digest_size=10).hexdigest()}"
        session = psycopg.connect(conninfo(self.dsn, application_name=f"{name} {writer.run}"), autocommit=True)
        self._sessions[writer] = session
        session.execute(f"set idle_in_transaction_session_timeout = '{_IDLE}'")
        self._end_older(session, name, writer.run)
        marker = session.execute(
            f"insert into {self._markers()} as m (writer, run) values (%s, %s) on conflict (writer) do update set run = excluded.run "
            f"where m.run <= excluded.run returning epoch",
            [writer.name, writer.run],
        ).fetchone()
        if marker is None:
            raise Fenced(_REFUSES)
        self._end_older(session, name, writer.run)
        if self.mode == "upsert":
            names = ", ".join(f"{quoted(c.name)}" for c in self._known().columns)
            session.execute("drop table if exists pg_temp.millstream_rows")
            session.execute(
                f"create temp table millstream_rows on commit delete rows as select {names}, true as {GONE} from {self.table} with no data"
            )
            session.execute("alter table pg_temp.millstream_rows add column millstream_at bigserial")
        return marker[0]  # type: ignore[no-any-return]

    def _end_older(self, session: psycopg.Connection[Any], name: str, run: int) -> None:
        session.execute(_END_OLDER, {"name": name, "run": run})

    def write(self, writer: SinkWriter, epoch: int, rows: EpochRows) -> None:
        import psycopg
        from psycopg import sql

        session = self._sessions[writer]
        try:
            session.execute("begin")
            for at, (form, some) in enumerate(rows.by_form()):
                if at and self.mode == "upsert":
                    session.execute("delete from pg_temp.millstream_rows")
                self._copy(session, _columns(form), some)
            done = sql.SQL(_MARK).format(markers=sql.SQL(self._markers()), writer=writer.name, epoch=epoch, run=writer.run)
            session.execute(done)
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            raise SinkError(f"the table refuses a row: {said(error)}. Alter the table so that it fits") from error
        except psycopg.Error as error:
            if error.sqlstate == "MS001":
                raise Fenced(_REFUSES) from error
            raise

    def _copy(self, session: psycopg.Connection[Any], columns: Sequence[str], rows: EpochRows) -> None:
        names = ", ".join(columns)
        into = f"{self.table} ({names})" if self.mode == "append" else f"pg_temp.millstream_rows ({names}, {GONE})"
        with session.cursor() as cursor, cursor.copy(f"copy {into} from stdin (format csv)") as copy:
            for piece in rows.pieces():
                for start in range(0, len(piece), _CHUNK):
                    copy.write(piece[start : start + _CHUNK])
        if self.mode == "upsert":
            self._merge(session, columns)

    def _merge(self, session: psycopg.Connection[Any], columns: Sequence[str]) -> None:
        shape, names = self._known(), ", ".join(columns)
        key = ", ".join(map(quoted, shape.key))
        last = f"select distinct on ({key}) * from pg_temp.millstream_rows order by {key}, millstream_at desc"
        same = " and ".join(f"t.{quoted(name)} = l.{quoted(name)}" for name in shape.key)
        others = [name for name in columns if name not in map(quoted, shape.key)]
        change = f"update set {', '.join(f'{name} = excluded.{name}' for name in others)}" if others else "nothing"
        session.execute(f"delete from {self.table} t using ({last}) l where {same} and l.{GONE}")
        session.execute(
            f"insert into {self.table} ({names}) select {names} from ({last}) l where not {GONE} on conflict ({key}) do {change}"
        )

    def close(self) -> None:
        super().close()
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.close()


def _column(name: str, path: str, kind: str, required: bool) -> TableColumn:
    arrow, convert = arrow_type(kind)
    return TableColumn(name, path, arrow, required, convert)


_END_OLDER = (
    "select pg_terminate_backend(pid) from pg_stat_activity where pg_has_role(usesysid, 'usage') and pid <> pg_backend_pid() "
    "and case when application_name like %(name)s || ' %%' then split_part(application_name, ' ', 3)::bigint <= %(run)s else false end"
)
_MARK = (
    "do $millstream$ begin update {markers} set epoch = {epoch}, written = now() "
    "where writer = {writer} and run = {run} and (epoch is null or epoch < {epoch}); "
    "if not found then raise exception 'replaced' using errcode = 'MS001'; end if; end $millstream$; commit"
)


def _columns(form: str) -> list[str]:
    """The columns of rows, as SQL has them. Version 0.2.0 wrote names without quotes.

    >>> _columns('postgres append "key", "a, b"'), _columns("postgres append key, n")
    (['"key"', '"a, b"'], ['"key"', '"n"'])
    """
    return re.findall(r'"(?:[^"]|"")*"', form) or [quoted(name) for name in form.split(" ", 2)[-1].split(", ")]


def arrow_type(kind: str) -> tuple[pa.DataType, Callable[[Any], Any] | None]:
    """Arrow's type for one of PostgreSQL's, and what becomes of a value first. Of types that are not known here only the server checks the text."""
    import pyarrow as pa

    plain, _, arguments = kind.replace(" with time zone", "").replace(" without time zone", "").rstrip(")").partition("(")
    numbers = [int(number) for number in arguments.split(",")] if arguments.replace(",", "").isdigit() else []
    if kind.endswith("[]"):
        return pa.string(), array_text
    if plain in ("json", "jsonb"):
        return pa.string(), _json
    if plain == "numeric" and numbers and numbers[0] <= 38:
        return pa.decimal128(numbers[0], numbers[1] if len(numbers) > 1 else 0), None
    if plain in ("character varying", "character") and numbers:
        return pa.string(), partial(_of_length, numbers[0])
    known = {
        "smallint": pa.int16(),
        "integer": pa.int32(),
        "bigint": pa.int64(),
        "real": pa.float32(),
        "double precision": pa.float64(),
        "boolean": pa.bool_(),
        "text": pa.string(),
        "character varying": pa.string(),
        "bytea": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC" if "with time zone" in kind else None),
    }
    return (known[plain], None) if plain in known else (pa.string(), _any_text)


def _json(value: Any) -> str:
    return json_bytes(value).decode()


def _of_length(most: int, value: Any) -> Any:
    if isinstance(value, str) and len(value) > most:
        raise ValueError(f"it has {len(value)} characters, and the column {most}")
    return value


def _any_text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value) if isinstance(value, (dict, list)) else str(value)


def array_text(value: Any) -> str:
    """A list as the text of an array.

    >>> array_text(["tea", 'a "b"', None, [1, 2]])
    '{"tea","a \\\\"b\\\\"",NULL,{1,2}}'
    """
    if not isinstance(value, (list, tuple)):
        raise ValueError("the column has arrays")
    return "{" + ",".join(map(_element, value)) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, (list, tuple)):
        return array_text(value)
    if isinstance(value, (bool, int, float)):
        return str(value).lower()
    return '"' + _any_text(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


postgres = PostgresSink
