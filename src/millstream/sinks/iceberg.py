"""Rows into a table of Apache Iceberg, exactly once, through pyiceberg: no JVM is needed. The rules are those of `lake.py`.

Rules
1. The marker is two properties of the table, of the writer's epochs and of its runs, set by the transaction that adds the files. (The summary of a snapshot
   would go with the snapshot, when it expires.)
2. pyiceberg must not repeat a commit by itself when another one came in between: it would add the files a second time. So its retries are switched off, on our
   copy of the table's metadata, and the sink looks at the marker and tries again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millstream.core.time import Duration
from millstream.errors import DefinitionError, Fenced, SinkError
from millstream.extras import needed
from millstream.sinks.epoch_sink import EpochRows, SinkWriter
from millstream.sinks.lake import LakeSink
from millstream.sinks.row_columns import TableColumn, check_paths, default_path

if TYPE_CHECKING:
    from pyiceberg.table import Table

_RETRIES = "commit.retry.num-retries"


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
        self._place: tuple[dict[str, Any], str] | None = None  # for tasks: where files go, and how

    def describe(self) -> str:
        return f"Iceberg table {self.table!r}"

    @property
    def transient(self) -> tuple[type[Exception], ...]:  # type: ignore[override]
        from pyiceberg.exceptions import CommitFailedException

        return (CommitFailedException,)

    def _table(self) -> Table:
        with needed("ms.sinks.iceberg"):
            from pyiceberg.catalog import load_catalog
        properties = {"name": self.catalog} if isinstance(self.catalog, str) else self.catalog
        catalog = load_catalog(**{"name": "default", **properties})
        table = catalog.load_table(self.table)
        table.metadata.properties[_RETRIES] = "0"  # rule 2
        return table

    def check(self) -> None:
        try:
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
        self._place = dict(table.io.properties), f"{table.location().rstrip('/')}/data"

    def columns(self) -> Sequence[TableColumn]:
        return self._columns

    def put(self, name: str, data: bytes) -> None:
        from pyiceberg.io import load_file_io

        assert self._place is not None
        properties, folder = self._place
        with load_file_io(properties, folder).new_output(f"{folder}/{name}").create(overwrite=True) as out:
            out.write(data)

    def begin(self, writer: SinkWriter) -> int | None:
        table = self._table()
        epochs, runs = _names(writer)
        self._check_run(table, writer)
        if table.properties.get(runs) != str(writer.run):
            with table.transaction() as transaction:
                transaction.set_properties({runs: str(writer.run)})
            table = self._table()
        found = table.properties.get(epochs)
        return None if found is None else int(found)

    def _check_run(self, table: Table, writer: SinkWriter) -> None:
        run = int(table.properties.get(_names(writer)[1], 0))
        if run > writer.run:
            raise Fenced(f"run {run} writes there, and this is run {writer.run}")

    def write(self, writer: SinkWriter, epoch: int, rows: EpochRows) -> None:
        table = self._table()
        self._check_run(table, writer)
        assert self._place is not None
        files = [f"{self._place[1]}/{file.name}" for file in self.files(writer, epoch, rows)]
        with table.transaction() as transaction:
            transaction.add_files(files, check_duplicate_files=False)
            transaction.set_properties({_names(writer)[0]: str(epoch), _names(writer)[1]: str(writer.run)})


def _names(writer: SinkWriter) -> tuple[str, str]:
    """The table's properties with the writer's epoch, and its run."""
    return f"millstream.{writer.name}.epoch", f"millstream.{writer.name}.run"


def _plain(kind: Any) -> Any:
    import pyarrow as pa

    return pa.string() if pa.types.is_large_string(kind) else pa.binary() if pa.types.is_large_binary(kind) else kind


iceberg = IcebergSink
