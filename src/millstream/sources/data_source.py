"""A Python data source of PySpark's as a source: whatever has a stream reader, plain or simple."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from millstream.errors import DefinitionError
from millstream.sources.base import Source

if TYPE_CHECKING:
    from millstream.sources.splits import PlannedReader


class PythonSource(Source):
    """A subclass of `pyspark.sql.datasource.DataSource` with a `streamReader` or a `simpleStreamReader`.

    Millstream plans its epochs: it asks the reader for offsets on the driver, has partitions read by tasks, and calls `commit` when an epoch is committed and
    published. Between two offsets there must always be the same rows. options: what the data source finds in `self.options`. schema: as for Spark, in the
    place of what `DataSource.schema` says.

    >>> class Numbers:  # a subclass of pyspark.sql.datasource.DataSource
    ...     def streamReader(self, schema):
    ...         ...
    >>> data_source(Numbers, options={"path": "somewhere"}).describe()
    'data source Numbers'
    """

    def __init__(self, cls: type, *, options: Mapping[str, Any] | None = None, schema: Any = None) -> None:
        if not isinstance(cls, type) or not (hasattr(cls, "streamReader") or hasattr(cls, "simpleStreamReader")):
            raise DefinitionError(
                f"sources.data_source({cls!r}): give a subclass of pyspark.sql.datasource.DataSource that has a streamReader"
            )
        self.cls, self.schema = cls, schema
        self.options = {name: str(value) for name, value in (options or {}).items()}

    def unplanned(self) -> str | None:
        return None

    def load(self, spark: Any, unreadable: str | None = None) -> Any:
        spark.dataSource.register(self.cls)
        reader = spark.readStream.format(self.cls.name()).options(**self.options)  # type: ignore[attr-defined]
        return (reader if self.schema is None else reader.schema(self.schema)).load()

    def reader(self, arrow_schema: Any, unreadable: str | None = None) -> PlannedReader:
        from millstream.engine.spark import data_sources  # stands above: the exception that tests/test_layout.py names

        return data_sources.DataSourceReader(self.cls, self.options, self.schema)

    def describe(self) -> str:
        return f"data source {self.cls.__name__}"


data_source = PythonSource
