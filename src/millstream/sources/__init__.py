"""Where records come from: descriptions of streaming sources, turned into DataFrames by the Spark engine.

A source has `load(spark)`, called on the driver at the start of every run. Any streaming DataFrame may stand in its place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from millstream.errors import DefinitionError
from millstream.sources.connector import Connector, connector

__all__ = ["Connector", "Files", "Rate", "connector", "files", "rate"]

_FORMATS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv"}


class Files(msgspec.Struct, frozen=True):
    """A directory that files are moved into."""

    path: str
    schema: Any
    format: str | None
    max_files_per_epoch: int | None
    options: dict[str, str]

    def load(self, spark: Any) -> Any:
        """The streaming DataFrame (driver, once per run)."""
        format = self.format or self._guess()
        reader = spark.readStream.format(format).schema(self.schema)
        if self.max_files_per_epoch:
            reader = reader.option("maxFilesPerTrigger", self.max_files_per_epoch)
        if format in ("json", "csv"):
            reader = reader.option("mode", "FAILFAST")  # a value that does not fit is an error, never a silent null
        for name, value in self.options.items():
            reader = reader.option(name, value)
        return reader.load(self.path)

    def describe(self) -> str:
        """For people."""
        return f"files in {self.path}"

    def _guess(self) -> str:
        folder = Path(self.path)
        if "://" not in self.path and folder.is_dir():
            for entry in sorted(os.listdir(folder)):
                found = _FORMATS.get(Path(entry).suffix)
                if found and not entry.startswith((".", "_")):
                    return found
        raise DefinitionError(f"sources.files({self.path!r}): no file there tells the format. Say format='parquet', 'json' or 'csv'.")


class Rate(msgspec.Struct, frozen=True):
    """Spark's rate source: numbered rows at a steady pace."""

    rows_per_second: int

    def load(self, spark: Any) -> Any:
        """The streaming DataFrame (driver, once per run): columns `timestamp` and `value`."""
        return spark.readStream.format("rate").option("rowsPerSecond", self.rows_per_second).load()

    def describe(self) -> str:
        """For people."""
        return f"{self.rows_per_second} rows a second"


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
