"""The planner and reader of one directory.

Rules
1. An offset is {"files": n}: how many files were ever read. Their names stand with the manifests, as absolute paths: another directory has other files,
   whatever they are called. That is how Spark tells them apart.
2. A split is a file, or a range of a large one: bytes of a text, row groups of a Parquet file.
3. What is wrong with a file is an InputError that names it.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.errors import InputError
from millstream.sources.filereading import line_splits
from millstream.sources.filereading.errors import OnlySpark, address, input_error
from millstream.sources.filereading.listing import Folder, UnreadFiles
from millstream.sources.filereading.settings import Settings
from millstream.sources.splits import Offset, PlannedReader, SplitPlan

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.sources.filereading.parquet_rows import ParquetRows
    from millstream.sources.filereading.text_rows import TextRows

_SPLIT = 16 << 20


class FileSplit(msgspec.Struct, frozen=True):
    path: str
    start: int = 0  # bytes, or row groups of a Parquet file
    end: int | None = None  # None: all that follows


class FilesOffset(Offset, frozen=True):
    """a directory of files"""

    files: int


class FileReader(PlannedReader):
    counts = "files"

    def __init__(self, path: str, schema: pa.Schema, settings: Settings, unreadable: str | None) -> None:
        self.schema, self._settings, self._unreadable = schema, settings, unreadable
        self._path = os.path.abspath(path)
        self._listing = UnreadFiles(Folder(self._path, settings.accepts), settings.max_age, settings.limit)  # the driver's
        self._format: TextRows | ParquetRows | None = None  # made where it is first needed

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_listing"} | {"_format": None}

    def begin(self, names: Mapping[str, int], bounded: bool) -> None:
        inside = {os.path.basename(path): at for path, at in names.items() if os.path.dirname(path) == self._path}
        self._listing.begin(inside, bounded)

    def first(self) -> str:
        return FilesOffset(0).text()

    def plan(self, start: str) -> SplitPlan:
        planned = self._listing.plan(FilesOffset.read(start).files, self.most if self._settings.limit is None else None)
        paths = [os.path.join(self._path, name) for name in planned.names]
        sizes = [line_splits.length(path) for path in paths]
        return SplitPlan(
            FilesOffset(planned.end).text(),
            [split for path, size in zip(paths, sizes, strict=True) for split in self._splits(path, size)],
            sum(sizes),
            dict(zip(paths, planned.names.values(), strict=True)),
            [os.path.join(self._path, name) for name in planned.gone],
            len(paths),
            planned.left,
        )

    def _splits(self, path: str, size: int) -> list[FileSplit]:
        if self._settings.format == "parquet":
            from millstream.sources.filereading.parquet_rows import groups

            return [FileSplit(path, *part) for part in (groups(path, _SPLIT) if size > _SPLIT * 3 // 2 else [(0, None)])]
        return [FileSplit(path, *part) for part in line_splits.splits(path, size, _SPLIT)]

    def read(self, split: FileSplit) -> Iterator[pa.RecordBatch]:
        if self._format is None:
            self._format = _format(self.schema, self._settings, self._unreadable)
        try:
            yield from self._format.read(split.path, split.start, split.end)
        except FileNotFoundError:
            what = "there is no such file any longer. Files must stay until the epoch that reads them is committed"
            raise input_error(split.path, what) from None
        except (OSError, EOFError, zlib.error) as error:
            raise input_error(split.path, f"{type(error).__name__}: {error}") from error

    def refused(self, text: str) -> InputError | None:
        for name in self._listing.read():
            path = os.path.join(self._path, name)
            if address(path) in text:
                try:
                    for split in self._splits(path, line_splits.length(path)):
                        for _ in self.read(split):
                            pass
                except InputError as error:
                    if not isinstance(error.__cause__, OnlySpark):  # that, Spark could read
                        return error
        return None

    def origin(self, split: FileSplit) -> str:
        return address(split.path)

    def committed(self, end: str) -> None:
        self._listing.settle(FilesOffset.read(end).files)

    def parts(self) -> Mapping[str, int]:
        real = os.path.realpath(self._path)
        return {os.path.join(real, name): modified for name, modified in self._listing.there().items()}

    def parts_read(self) -> set[str]:
        real = os.path.realpath(self._path)
        return {os.path.join(real, name) for name in self._listing.read()}


def _format(schema: pa.Schema, settings: Settings, unreadable: str | None) -> TextRows | ParquetRows:
    if settings.format == "parquet":
        from millstream.sources.filereading.parquet_rows import ParquetRows

        return ParquetRows(schema)
    if settings.format == "json":
        from millstream.sources.filereading.json_rows import JsonRows

        return JsonRows(schema, unreadable, settings)
    from millstream.sources.filereading.csv_rows import CsvRows

    return CsvRows(schema, unreadable, settings)


def nullable(schema: pa.Schema) -> pa.Schema:
    """A schema in which every value may be null, as Spark's file source has it; a map's keys may not."""
    import pyarrow as pa

    return pa.schema([_nullable(field) for field in schema])


def _nullable(field: pa.Field) -> pa.Field:
    import pyarrow as pa

    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_nullable(kind.field(at)) for at in range(kind.num_fields)])
    elif pa.types.is_map(kind):
        kind = pa.map_(pa.field(kind.key_field.name, kind.key_type, nullable=False), _nullable(kind.item_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field))
    return pa.field(field.name, kind, metadata=field.metadata)
