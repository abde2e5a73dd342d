"""What sinks into tables of a lakehouse have in common: rows become Parquet files at their final place, which no reader sees before the table's log names them.

Rules
1. A task writes many rows to a file in the table's folder; a few wait in the checkpoint, and the driver makes one file of all that wait. So an epoch is
   one commit with few files, and with `roll` many small epochs are.
2. The commit names the files and changes the marker: the epoch, and the run. The marker is read of the very version of the table that the commit is made
   on, so that look and commit are one. A commit that another one came in between of is not repeated as it is: the marker is read again.
3. Files of attempts that were never committed are left to the table's own clearing (VACUUM, remove_orphan_files): their names do not tell them apart.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.sinks.base import Part, SinkRow, TaskContext
from millstream.sinks.epoch_sink import EpochRows, EpochSink, SinkWriter
from millstream.sinks.files import join_parquet, parquet_bytes
from millstream.sinks.row_columns import TableColumn, to_columns, to_upserts


class DataFile(msgspec.Struct):
    """A file in the table's folder."""

    name: str
    size: int
    rows: int


class LakeSink(EpochSink):
    """Base of the two. key: of upserts, whose rows all pass through the driver."""

    resident_roll = 5_000
    form = "parquet"
    key: Sequence[str] = ()

    def columns(self) -> Sequence[TableColumn]:
        """The table's columns, as `check` has found them."""
        raise NotImplementedError

    def passes(self, error: Exception) -> bool:
        return super().passes(error) and not isinstance(error, (FileNotFoundError, PermissionError))

    def put(self, name: str, data: bytes) -> None:
        """Writes a file into the table's folder."""
        raise NotImplementedError

    def encode(self, rows: Sequence[SinkRow]) -> bytes:
        return parquet_bytes(to_upserts(rows, self.columns(), self.key) if self.key else to_columns(rows, self.columns()))

    def stage_encoded(self, context: TaskContext, data: bytes, rows: int) -> Part:
        if self.key:
            return context.keep(data, rows)
        name = f"millstream-{context.label}-{context.epoch:012d}-{context.attempt}.parquet"
        self.put(name, data)
        return Part(rows=rows, staged=name, own={"size": len(data)})

    def files(self, writer: SinkWriter, epoch: int, rows: EpochRows) -> list[DataFile]:
        """The files of an epoch: those of the tasks, and one of what waited."""
        found = [DataFile(str(part.staged), part.own["size"], part.rows) for part in rows.parts if not part.in_checkpoint]
        for at, data in enumerate(join_parquet(list(rows.pieces()))):
            name = f"millstream-{writer.name}-{writer.run}-{epoch:012d}-{at}.parquet"
            self.put(name, data)
            found.append(DataFile(name, len(data), rows_of(data)))
        return found


def rows_of(data: bytes) -> int:
    """How many rows a Parquet file has."""
    import pyarrow.parquet

    return pyarrow.parquet.read_metadata(io.BytesIO(data)).num_rows  # type: ignore[no-any-return]


def last_of_each(pieces: list[bytes], key: Sequence[str]) -> Any:
    """The rows of upserts as one Arrow table: of several with one key the last."""
    import pyarrow as pa
    import pyarrow.parquet

    table = pa.concat_tables([pyarrow.parquet.read_table(io.BytesIO(piece)) for piece in pieces])
    at = table.append_column("millstream_at", pa.array(range(len(table))))
    last = at.group_by(list(key)).aggregate([("millstream_at", "max")]).column("millstream_at_max")
    return table.take(last.sort())
