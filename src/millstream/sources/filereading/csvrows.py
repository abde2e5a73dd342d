"""CSV, with the rows that Spark's reader makes of it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from millstream.sources.filereading.refusal import refusal
from millstream.sources.filereading.settings import Settings


class CsvRows:
    """Reads CSV into batches of one schema. unreadable: the column for the text of bad lines."""

    def __init__(self, schema: pa.Schema, unreadable: str | None, settings: Settings) -> None:
        self.schema = schema

    def read(self, path: str, start: int, end: int | None) -> Iterator[pa.RecordBatch]:
        """The rows of a piece."""
        raise refusal(path, "not yet")
        yield
