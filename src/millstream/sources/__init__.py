"""Where records come from: descriptions of streaming sources, turned into DataFrames by the Spark engine.

A source has `load(spark)`, called on the driver at the start of every run. Any streaming DataFrame may stand in its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from millstream.errors import DefinitionError
from millstream.sources.pushed import Connector, connector
from millstream.sources.schema import columns

__all__ = ["Connector", "Files", "FromSession", "Rate", "connector", "files", "rate"]

_FEW = 1000  # files that are looked at for their size
_FORMATS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv"}


class Files(msgspec.Struct, frozen=True):
    """A directory that files are moved into."""

    path: str
    schema: Any
    format: str | None
    max_files_per_epoch: int | None
    options: dict[str, str]

    def load(self, spark: Any, unreadable: str | None = None) -> Any:
        """The streaming DataFrame (driver, once per run). unreadable: a further column, for the text of rows that do not fit the schema."""
        format = self.format or self._guess()
        self._check_header(format)
        schema = self.schema
        if unreadable is not None and format in ("json", "csv") and "mode" not in self.options:
            schema = f"{schema}, {unreadable} string" if isinstance(schema, str) else _with_column(schema, unreadable)
        reader = spark.readStream.format(format).schema(schema)
        if self.max_files_per_epoch:
            reader = reader.option("maxFilesPerTrigger", self.max_files_per_epoch)
        if schema is not self.schema:
            reader = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", unreadable)
        elif format in ("json", "csv"):
            reader = reader.option("mode", "FAILFAST")  # a value that does not fit is an error, never a silent null
        for name, value in self.options.items():
            reader = reader.option(name, value)
        return reader.load(self.path)

    def describe(self) -> str:
        """For people."""
        return f"files in {self.path}"

    def _files(self) -> list[Path]:
        folder = Path(self.path)
        if "://" in self.path or not folder.is_dir():
            return []
        return [folder / name for name in sorted(os.listdir(folder)) if not name.startswith((".", "_"))]

    def size(self) -> int | None:
        """The bytes that are there to read (driver); None where that cannot be told cheaply."""
        found = self._files()
        if "://" in self.path or len(found) > _FEW:
            return None
        return sum(file.stat().st_size for file in found if file.is_file())

    def _check_header(self, format: str) -> None:
        """A line of column names that would be read as a row."""
        if format != "csv" or str(self.options.get("header", "false")).lower() == "true":
            return
        known = columns(self.schema)
        for file in self._files()[:1] if known else []:
            try:
                with open(file, encoding="utf-8") as lines:
                    first = [name.strip().strip('"').lower() for name in lines.readline().split(str(self.options.get("sep", ",")))]
            except (OSError, UnicodeDecodeError):
                return
            if first == [name.lower() for name in known or ()]:
                raise DefinitionError(
                    f"sources.files({self.path!r}): {file} begins with a line of column names. Say options={{'header': 'true'}}."
                )

    def _guess(self) -> str:
        if "://" not in self.path and not os.path.isdir(self.path):
            raise DefinitionError(
                f"sources.files({self.path!r}): there is no directory {os.path.abspath(self.path)}. Make it, or correct the path."
            )
        for file in self._files():
            found = _FORMATS.get(file.suffix)
            if found:
                return found
        raise DefinitionError(f"sources.files({self.path!r}): no file there tells the format. Say format='parquet', 'json' or 'csv'.")


def _with_column(schema: Any, name: str) -> Any:
    """A Spark StructType with one more column of text."""
    return type(schema)([*schema.fields]).add(name, "string")


class Rate(msgspec.Struct, frozen=True):
    """Spark's rate source: numbered rows at a steady pace."""

    rows_per_second: int
    schema: ClassVar[str] = "timestamp timestamp, value long"

    def load(self, spark: Any) -> Any:
        """The streaming DataFrame (driver, once per run): columns `timestamp` and `value`."""
        return spark.readStream.format("rate").option("rowsPerSecond", self.rows_per_second).load()

    def describe(self) -> str:
        """For people."""
        return f"{self.rows_per_second} rows a second"


class FromSession(msgspec.Struct, frozen=True):
    """A source made by a function of the Spark session, for pipelines that are written before there is one."""

    function: Callable[[Any], Any]

    def load(self, spark: Any) -> Any:
        """The streaming DataFrame (driver, once per run)."""
        return self.function(spark)

    def describe(self) -> str:
        """For people."""
        return f"what {getattr(self.function, '__name__', 'a function')} makes of the session"


def files(
    path: str | os.PathLike[str],
    *,
    schema: Any,
    format: str | None = None,
    max_files_per_epoch: int | None = None,
    options: Mapping[str, str] | None = None,
) -> Files:
    """Files of a directory, each read once, in the order they appear. Move finished files in; do not write in place.

    >>> files("queries/", schema="term string, at long", format="json", max_files_per_epoch=10).describe()
    'files in queries/'
    """
    if format is not None and format not in ("parquet", "json", "csv"):
        raise DefinitionError(f"sources.files(format={format!r}): use 'parquet', 'json' or 'csv'")
    if max_files_per_epoch is not None and max_files_per_epoch < 1:
        raise DefinitionError("sources.files(max_files_per_epoch=...): at least 1")
    if not schema:
        raise DefinitionError("sources.files needs a schema, such as schema='term string, at long'")
    return Files(os.fspath(path), schema, format, max_files_per_epoch, dict(options or {}))


def rate(rows_per_second: int = 100) -> Rate:
    """Numbered rows (`timestamp`, `value`) at a steady pace, for trying things."""
    if rows_per_second < 1:
        raise DefinitionError("sources.rate(rows_per_second=...): at least 1")
    return Rate(rows_per_second)
