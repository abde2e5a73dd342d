"""Rows into a table of Delta Lake, exactly once, through delta-rs: no JVM is needed. The rules are those of `lake.py`.

The marker is that of Delta's own protocol: an application's transaction version, which readers and VACUUM leave alone. There are two: of the writer's
epochs, and of its runs, which a new run raises first. Two commits for one application exclude each other.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millstream.core.time import Duration
from millstream.errors import DefinitionError, Fenced, SinkError
from millstream.extras import needed
from millstream.sinks.epoch_sink import EpochRows, SinkWriter
from millstream.sinks.lake import LakeSink, last_of_each
from millstream.sinks.row_columns import GONE, TableColumn, check_paths, default_path, key_path
from millstream.state.storage import open_storage

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable


class DeltaSink(LakeSink):
    """Rows into a table of Delta Lake, exactly once. The table must be there, and not be partitioned.

    path: a folder, or a URL such as s3://bucket/table. columns: by column, where in a row its value is, as in sinks.postgres. mode: "append", or "upsert"
    with key=, the columns that are the row's key: the last row of each key stays, and one without a value removes it. roll: for how long epochs wait, to be
    one commit; by default "5s" in resident runs, else 0.

    >>> delta("/lake/counts").describe()
    'Delta table /lake/counts'
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: str = "append",
        key: str | Sequence[str] = (),
        columns: Mapping[str, str] | None = None,
        storage_options: dict[str, Any] | None = None,
        roll: Duration | None = None,
    ) -> None:
        super().__init__(roll=roll)
        check_paths(columns or {}, "sinks.delta")
        if mode not in ("append", "upsert") or (mode == "upsert") != bool(key):
            raise DefinitionError(f'sinks.delta(mode={mode!r}, key={key!r}): use "append", or "upsert" with the columns of the key')
        text = os.fspath(path)
        self.path = text if "://" in text else os.path.abspath(text)
        self.key = [key] if isinstance(key, str) else list(key)
        self.paths, self.options = dict(columns or {}), storage_options
        self._columns: list[TableColumn] = []

    def describe(self) -> str:
        return f"Delta table {self.path}"

    @property
    def transient(self) -> tuple[type[Exception], ...]:  # type: ignore[override]
        from deltalake.exceptions import CommitFailedError

        return (CommitFailedError,)

    def _table(self) -> DeltaTable:
        with needed("ms.sinks.delta"):
            from deltalake import DeltaTable
        return DeltaTable(self.path, storage_options=self.options)

    def check(self) -> None:
        import pyarrow as pa

        try:
            table = self._table()
        except Exception as error:
            if type(error).__name__ == "MissingExtra":
                raise
            how = f"Make it: deltalake.DeltaTable.create({self.path!r}, schema=...)"
            raise SinkError(f"{self.describe()} cannot be opened: {' '.join(str(error).split()).rstrip('.')}. {how}") from error
        if partitions := table.metadata().partition_columns:
            raise SinkError(f"{self.describe()} is partitioned by {', '.join(partitions)}, which this sink cannot write")
        schema = pa.schema(table.schema().to_arrow())
        if unknown := [name for name in (*self.paths, *self.key) if name not in schema.names]:
            raise SinkError(f"{self.describe()} has no column {unknown[0]!r}; it has {', '.join(schema.names)}")
        paths = self.paths or {name: key_path(name, self.key) if self.key else default_path(name) for name in schema.names}
        self._columns = [
            TableColumn(field.name, paths[field.name], field.type, not field.nullable) for field in schema if field.name in paths
        ]

    def columns(self) -> Sequence[TableColumn]:
        return self._columns

    def put(self, name: str, data: bytes) -> None:
        open_storage(self.path, self.options).put(name, data)

    def begin(self, writer: SinkWriter) -> int | None:
        table = self._table()
        self._check_run(table, writer)
        if table.transaction_version(_runs(writer)) != writer.run:
            table.create_write_transaction([], "append", table.schema(), commit_properties=_marked({_runs(writer): writer.run}))
        found: int | None = self._table().transaction_version(_epochs(writer))
        return found

    def _check_run(self, table: DeltaTable, writer: SinkWriter) -> None:
        run = table.transaction_version(_runs(writer))
        if run is not None and run > writer.run:
            raise Fenced(f"run {run} writes there, and this is run {writer.run}")

    def write(self, writer: SinkWriter, epoch: int, rows: EpochRows) -> None:
        table = self._table()
        self._check_run(table, writer)
        marked = _marked({_epochs(writer): epoch, _runs(writer): writer.run})
        if self.key:
            self._merge(table, last_of_each(list(rows.pieces()), self.key), marked)
            return
        from deltalake.transaction import AddAction

        now = int(time.time() * 1000)
        added = [
            AddAction(file.name, file.size, {}, now, True, json.dumps({"numRecords": file.rows}))
            for file in self.files(writer, epoch, rows)
        ]
        table.create_write_transaction(added, "append", table.schema(), commit_properties=marked)

    def _merge(self, table: DeltaTable, rows: Any, marked: CommitProperties) -> None:
        same = " and ".join(f"t.`{name}` = s.`{name}`" for name in self.key)
        every = {f"`{column.name}`": f"s.`{column.name}`" for column in self._columns}
        merger = table.merge(rows, same, source_alias="s", target_alias="t", commit_properties=marked)
        merger = merger.when_matched_delete(f"s.{GONE}").when_matched_update(every, f"not s.{GONE}")
        merger.when_not_matched_insert(every, f"not s.{GONE}").execute()


def _epochs(writer: SinkWriter) -> str:
    return f"millstream.{writer.name}"


def _runs(writer: SinkWriter) -> str:
    return f"millstream.{writer.name}.run"


def _marked(versions: Mapping[str, int]) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    return CommitProperties(app_transactions=[Transaction(app, version) for app, version in versions.items()])


delta = DeltaSink
