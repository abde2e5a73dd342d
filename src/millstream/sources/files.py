"""Files of a directory as a source. Millstream plans and reads them itself, where what comes out is what Spark would read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.errors import DefinitionError
from millstream.sources.base import Source
from millstream.sources.filereading.errors import OnlySpark
from millstream.sources.filereading.settings import check_types, settings
from millstream.sources.schema import columns

if TYPE_CHECKING:
    from millstream.sources.splits import PlannedReader

_FEW = 1000  # files that are looked at for their size
_SETTINGS = {
    "spark.sql.caseSensitive": ("false",),
    "spark.sql.legacy.timeParserPolicy": ("corrected", "exception"),
    "spark.sql.files.ignoreCorruptFiles": ("false",),
}
_FORMATS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv"}


class FileSource(Source):
    """Files of a directory, each read once, in the order they appear. Move finished files in; do not write in place.

    >>> files("queries/", schema="term string, at long", format="json", max_files_per_epoch=10).describe()
    'files in queries/'
    """

    reads_files = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: Any,
        format: str | None = None,
        max_files_per_epoch: int | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        if format is not None and format not in ("parquet", "json", "csv"):
            raise DefinitionError(f"sources.files(format={format!r}): use 'parquet', 'json' or 'csv'")
        if max_files_per_epoch is not None and max_files_per_epoch < 1:
            raise DefinitionError("sources.files(max_files_per_epoch=...): at least 1")
        if not schema:
            raise DefinitionError("sources.files needs a schema, such as schema='term string, at long'")
        self.path, self.schema, self.format, self.max_files_per_epoch = os.fspath(path), schema, format, max_files_per_epoch
        self.options = dict(options or {})

    def load(self, spark: Any, unreadable: str | None = None) -> Any:
        format = self.format or self._guess()
        self._check_header(format)
        reader = self._configured(spark.readStream, format, unreadable)
        if self.max_files_per_epoch:
            reader = reader.option("maxFilesPerTrigger", self.max_files_per_epoch)
        return reader.load(self.path)

    def read_files(self, spark: Any, files: Sequence[str], unreadable: str | None = None) -> Any:
        return self._configured(spark.read, self.format or self._guess(), unreadable).option("__globPaths__", "false").load(list(files))

    def _configured(self, reader: Any, format: str, unreadable: str | None) -> Any:
        schema = self.schema
        options = {"mode": "FAILFAST"} if format in ("json", "csv") else {}  # a value that does not fit is an error, never a silent null
        if unreadable is not None and options and "mode" not in self.options:
            extra = f"{unreadable} string"
            schema = f"{schema}, {extra}" if isinstance(schema, str) else type(schema)([*schema.fields]).add(unreadable, "string")
            options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": unreadable}
        return reader.format(format).schema(schema).options(**options).options(**self.options)

    def unplanned(self) -> str | None:
        """None where Millstream reads the files itself; else what about the path, the options or the schema only Spark understands.

        >>> files("queries/", schema="term string", format="json", options={"multiLine": "true"}).unplanned()
        "files in queries/: only Spark knows the option multiLine='true'"
        """
        found = self._unplanned_path()
        if found is None:
            try:
                settings(self.format or self._guess(), self.options)
                check_types(self.format or self._guess(), self.schema)
            except OnlySpark as error:
                found = str(error)
        return None if found is None else f"{self.describe()}: only Spark knows {found}"

    def _unplanned_path(self) -> str | None:
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", self.path):
            return "places that are not folders of this machine"
        if re.search(r"[{}\[\]*?\\]", self.path):
            return "patterns of paths"
        if os.path.isfile(self.path):
            return "what to do with a single file in the place of a directory"
        if os.path.isdir(os.path.join(self.path, "_spark_metadata")):
            return "folders that Spark wrote (_spark_metadata)"
        for folder, inner, _ in os.walk(self.path):
            if any("=" in name and not name.startswith((".", "_")) for name in inner):
                return f"folders that name a column's value, such as {folder} has"
        return None

    def reader(self, arrow_schema: Callable[[Any], Any], unreadable: str | None = None) -> PlannedReader:
        from millstream.sources.filereading.reader import FileReader, nullable

        format = self.format or self._guess()
        self._check_header(format)
        read = settings(format, self.options, self.max_files_per_epoch)
        self._check_directory()
        schema = nullable(arrow_schema(self.schema))
        forgives = unreadable is not None and format in ("json", "csv") and "mode" not in self.options
        if forgives:
            import pyarrow as pa

            schema = schema.append(pa.field(unreadable, pa.string()))
        return FileReader(self.path, schema, read, unreadable if forgives else None)

    def session_settings(self) -> Mapping[str, Sequence[str]]:
        return _SETTINGS

    @property
    def has_session_times(self) -> bool:
        return self.format != "parquet" and "timeZone" not in self.options

    def hints(self) -> Sequence[str]:
        if self.format != "csv" or "header" in self.options:
            return ()
        return [f"If the files in {self.path} begin with a line of column names, say options={{'header': 'true'}}."]

    def describe(self) -> str:
        return f"files in {self.path}"

    def _files(self) -> list[Path]:
        folder = Path(self.path)
        if "://" in self.path or not folder.is_dir():
            return []
        return [folder / name for name in sorted(os.listdir(folder)) if not name.startswith((".", "_"))]

    def size(self) -> int | None:
        found = self._files()
        if "://" in self.path or len(found) > _FEW:
            return None
        return sum(file.stat().st_size for file in found if file.is_file())

    def _check_header(self, format: str) -> None:
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
                what = f"{file} begins with a line of column names. Say options={{'header': 'true'}}."
                raise DefinitionError(f"sources.files({self.path!r}): {what}")

    def _check_directory(self) -> None:
        if "://" not in self.path and not os.path.isdir(self.path):
            there = os.path.abspath(self.path)
            raise DefinitionError(f"sources.files({self.path!r}): there is no directory {there}. Make it, or correct the path.")

    def _guess(self) -> str:
        self._check_directory()
        for file in self._files():
            if file.suffix in _FORMATS:
                return _FORMATS[file.suffix]
        raise DefinitionError(f"sources.files({self.path!r}): no file there tells the format. Say format='parquet', 'json' or 'csv'.")


files = FileSource
