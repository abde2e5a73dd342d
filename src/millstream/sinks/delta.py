"""Rows into a table of Delta Lake, exactly once, through delta-rs: no JVM is needed. The rules are those of `lake.py`.

The marker is that of Delta's own protocol: an application's transaction version, which readers and VACUUM leave alone. There are two: of the writer's
epochs, and of its runs, which a new run raises first. Two commits for one application exclude each other.

We write files by ourselves. So a table that asks more of its writers than plain Parquet (column mapping, constraints, generated columns, features that
delta-rs does not know) is refused at the start: `_demands`.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millstream.core.time import Duration
from millstream.errors import DefinitionError, Fenced, SinkError, StorageError
from millstream.extras import needed
from millstream.sinks.epoch_sink import EpochRows, SinkWriter
from millstream.sinks.lake import LakeSink, last_of_each
from millstream.sinks.row_columns import GONE, TableColumn, check_paths, default_path, key_path
from millstream.state.storage import open_storage

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable


#: Features of tables that ask nothing of who only adds plain files, unless a property or a column says so.
_FEATURES = {
    "appendOnly",
    "invariants",
    "checkConstraints",
    "changeDataFeed",
    "generatedColumns",
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "v2Checkpoint",
}
_OF_COLUMNS = re.compile(r'"(delta\.(?:generationExpression|invariants|identity)[.\w]*|CURRENT_DEFAULT)"')


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
        self._kept: DeltaTable | None = None  # driver: to open one costs more, the more files it has

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_kept": None}

    def describe(self) -> str:
        return f"Delta table {self.path}"

    @property
    def transient(self) -> tuple[type[Exception], ...]:  # type: ignore[override]
        from deltalake.exceptions import CommitFailedError

        return (CommitFailedError, OSError, StorageError)

    def _table(self) -> DeltaTable:
        with needed("ms.sinks.delta"):
            from deltalake import DeltaTable
            from deltalake.exceptions import DeltaError
        if self._kept is not None:
            try:
                self._kept.update_incremental()
                return self._kept
            except DeltaError:  # what is between the two versions is gone
                pass
        self._kept = DeltaTable(self.path, storage_options=self.options)
        return self._kept

    def check(self) -> None:
        import pyarrow as pa

        try:
            for attempt in self.tries():
                with attempt:
                    table = self._table()
        except Exception as error:
            if type(error).__name__ == "MissingExtra":
                raise
            how = f"Make it: deltalake.DeltaTable.create({self.path!r}, schema=...)"
            raise SinkError(f"{self.describe()} cannot be opened: {' '.join(str(error).split()).rstrip('.')}. {how}") from error
        if partitions := table.metadata().partition_columns:
            raise SinkError(f"{self.describe()} is partitioned by {', '.join(partitions)}, which this sink cannot write")
        if demands := self._demands(table):
            raise SinkError(
                f"{self.describe()} asks of its writers what this sink does not do: {', '.join(demands)}. Give the pipeline a plain table, and fill this one "
                f"from it"
            )
        schema = pa.schema(table.schema().to_arrow())
        if unknown := [name for name in (*self.paths, *self.key) if name not in schema.names]:
            raise SinkError(f"{self.describe()} has no column {unknown[0]!r}; it has {', '.join(schema.names)}")
        paths = self.paths or {name: key_path(name, self.key) if self.key else default_path(name) for name in schema.names}
        self._columns = [
            TableColumn(field.name, paths[field.name], field.type, not field.nullable) for field in schema if field.name in paths
        ]

    def _demands(self, table: DeltaTable) -> list[str]:
        """What would be left undone if we wrote there."""
        settings = table.metadata().configuration
        found = [f"{name}={value}" for name, value in settings.items() if name.startswith("delta.constraints.")]
        if (mode := settings.get("delta.columnMapping.mode", "none")) != "none":
            found.append(f"delta.columnMapping.mode={mode}")
        if self.key and settings.get("delta.appendOnly") == "true":
            found.append("delta.appendOnly=true, with upserts")
        found += sorted(set(_OF_COLUMNS.findall(table.schema().to_json())))
        return found + [f"feature {name}" for name in table.protocol().writer_features or () if name not in _FEATURES]

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

    def close(self) -> None:
        super().close()
        self._kept = None

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
