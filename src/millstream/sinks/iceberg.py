"""Rows into a table of Apache Iceberg, exactly once, through pyiceberg: no JVM is needed. The rules are those of `lake.py`.

Rules
1. The marker is two properties of the table, of the writer's epochs and of its runs, set by the transaction that adds the files. (The summary of a snapshot
   would go with the snapshot, when it expires.) A commit that adds files is refused if another one has added some since; one of properties alone is not, so a
   run that was stopped may put the run back. So nothing is concluded from what was read before: `write` looks at the epoch of the table that it commits on.
2. pyiceberg must not repeat a commit by itself when another one came in between: it would add the files a second time. So its retries are switched off, on our
   copy of the table's metadata, and the sink looks at the marker and tries again.
3. A catalog may hand out credentials for the files, which expire. The driver takes those of the table that it has just loaded; a task asks the catalog again
   when what it has is older than `_FRESH`.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.core.time import Duration
from millstream.errors import DefinitionError, Fenced, SinkError
from millstream.extras import needed
from millstream.sinks.epoch_sink import EpochRows, SinkWriter
from millstream.sinks.lake import LakeSink
from millstream.sinks.row_columns import TableColumn, check_paths, default_path

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_RETRIES = "commit.retry.num-retries"
_FRESH = 300.0  # seconds


class _Place(NamedTuple):
    """Where files go, and how. since: seconds since 1970."""

    properties: dict[str, Any]
    folder: str
    since: float


class IcebergSink(LakeSink):
    """Rows into a table of Apache Iceberg, exactly once. The table must be there, and not be partitioned. Rows are appended.

    table: "namespace.name". catalog: the name and properties of a catalog, as pyiceberg's load_catalog takes them ({"name": "prod", "uri": "https://..."}),
    or the name of one in its configuration. columns, roll: as in sinks.delta.

    >>> iceberg("shop.counts", catalog={"type": "sql", "uri": "sqlite:///catalog.db"}).describe()
    "Iceberg table 'shop.counts'"
    """

    def __init__(
        self, table: str, *, catalog: str | Mapping[str, str], columns: Mapping[str, str] | None = None, roll: Duration | None = None
    ) -> None:
        super().__init__(roll=roll)
        check_paths(columns or {}, "sinks.iceberg")
        if "." not in table:
            raise DefinitionError(f"sinks.iceberg({table!r}): give the namespace, too, as in 'shop.counts'")
        self.table, self.catalog, self.paths = table, catalog, dict(columns or {})
        self._columns: list[TableColumn] = []
        self._place: _Place | None = None
        self._catalog: Catalog | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_catalog": None}

    def describe(self) -> str:
        return f"Iceberg table {self.table!r}"

    @property
    def transient(self) -> tuple[type[Exception], ...]:  # type: ignore[override]
        from pyiceberg.exceptions import CommitFailedException, RESTError

        databases = sys.modules.get("sqlalchemy.exc")  # of a catalog in SQL
        return (CommitFailedException, RESTError, OSError, *([databases.OperationalError] if databases else []))

    def passes(self, error: Exception) -> bool:
        from pyiceberg.exceptions import BadRequestError, ForbiddenError, OAuthError, UnauthorizedError

        return super().passes(error) and not isinstance(error, (BadRequestError, ForbiddenError, OAuthError, UnauthorizedError))

    def _table(self) -> Table:
        with needed("ms.sinks.iceberg"):
            from pyiceberg.catalog import load_catalog
        if self._catalog is None:
            properties = {"name": self.catalog} if isinstance(self.catalog, str) else self.catalog
            self._catalog = load_catalog(**{"name": "default", **properties})
        table = self._catalog.load_table(self.table)
        table.metadata.properties[_RETRIES] = "0"  # rule 2
        self._place = _Place(dict(table.io.properties), f"{table.location().rstrip('/')}/data", time.time())
        return table

    def check(self) -> None:
        try:
            for attempt in self.tries():
                with attempt:
                    table = self._table()
        except Exception as error:
            if type(error).__name__ == "MissingExtra":
                raise
            raise SinkError(
                f"{self.describe()} cannot be opened: {type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}"
            ) from error
        if table.spec().fields:
            raise SinkError(
                f"{self.describe()} is partitioned by {', '.join(field.name for field in table.spec().fields)}, which this sink cannot write"
            )
        schema = table.schema().as_arrow()
        if unknown := [name for name in self.paths if name not in schema.names]:
            raise SinkError(f"{self.describe()} has no column {unknown[0]!r}; it has {', '.join(schema.names)}")
        paths = self.paths or {name: default_path(name) for name in schema.names}
        self._columns = [
            TableColumn(field.name, paths[field.name], _plain(field.type), not field.nullable) for field in schema if field.name in paths
        ]

    def columns(self) -> Sequence[TableColumn]:
        return self._columns

    def put(self, name: str, data: bytes) -> None:
        from pyiceberg.io import load_file_io

        assert self._place is not None
        if time.time() - self._place.since > _FRESH:  # rule 3
            self._place = self._place._replace(since=time.time())
            with contextlib.suppress(
                Exception
            ):  # a catalog that tasks cannot reach hands out nothing; what is wrong with old credentials, the store says
                self._table()
        properties, folder, _ = self._place
        with load_file_io(properties, folder).new_output(f"{folder}/{name}").create(overwrite=True) as out:
            out.write(data)

    def begin(self, writer: SinkWriter) -> int | None:
        table = self._table()
        self._check_run(table, writer)
        if table.properties.get(_names(writer)[1]) != str(writer.run):
            with table.transaction() as transaction:
                transaction.set_properties({_names(writer)[1]: str(writer.run)})
            table = self._table()
        return self._epoch(table, writer)

    def _epoch(self, table: Table, writer: SinkWriter) -> int | None:
        found = table.properties.get(_names(writer)[0])
        return None if found is None else int(found)

    def _check_run(self, table: Table, writer: SinkWriter) -> None:
        run = int(table.properties.get(_names(writer)[1], 0))
        if run > writer.run:
            raise Fenced(f"run {run} writes there, and this is run {writer.run}")

    def write(self, writer: SinkWriter, epoch: int, rows: EpochRows) -> None:
        table = self._table()
        self._check_run(table, writer)
        last = self._epoch(table, writer)
        if last is not None and last >= epoch:  # rule 1
            return
        assert self._place is not None
        files = [f"{self._place.folder}/{file.name}" for file in self.files(writer, epoch, rows)]
        with table.transaction() as transaction:
            transaction.add_files(files, check_duplicate_files=False)
            transaction.set_properties({_names(writer)[0]: str(epoch), _names(writer)[1]: str(writer.run)})

    def close(self) -> None:
        super().close()
        catalog, self._catalog = self._catalog, None
        getattr(catalog, "close", lambda: None)()  # older versions of pyiceberg have none


def _names(writer: SinkWriter) -> tuple[str, str]:
    """The table's properties with the writer's epoch, and its run."""
    return f"millstream.{writer.name}.epoch", f"millstream.{writer.name}.run"


def _plain(kind: Any) -> Any:
    import pyarrow as pa

    return pa.string() if pa.types.is_large_string(kind) else pa.binary() if pa.types.is_large_binary(kind) else kind


iceberg = IcebergSink
