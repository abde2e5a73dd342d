"""What the engine asks of a source. Each method says who calls it, and how often, always on the driver: a source never travels to the tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.errors import DefinitionError

if TYPE_CHECKING:
    from millstream.sources.splits import PlannedReader


#: In what is said of a row that cannot be read: between its file and its text; twice, between its text and why.
BETWEEN = "\x1f"


class Source:
    """Base of all sources. Only `load` and `describe` must be written.

    >>> class Socket(Source):
    ...     def load(self, spark, unreadable=None):
    ...         return spark.readStream.format("socket").option("host", "localhost").option("port", 9999).load()
    ...     def describe(self):
    ...         return "lines of a socket"
    """

    #: The columns, where they are known before Spark is started: DDL text, or a StructType.
    schema: Any = None
    #: The columns that say which of two rows is the newer one, and whether a row is deleted, of a source that gives changes: for `pipeline.table`.
    version: str | None = None
    deleted: str | None = None
    #: Whether the source must be told what is committed: then Spark's offset log must be in reach.
    is_acknowledged: bool = False
    #: Whether its rows come from files: they are named where a row cannot be read, `watermarks.files` can follow them, and `read_files` reads some of them.
    reads_files: bool = False

    def check(self, *, offsets: bool) -> None:
        """Driver, once, at the start of a run, before anything is written: the time to say that it cannot work. offsets: whether Spark's offset log can be
        read, so that `acknowledge` can be called."""

    def require(self, *, key: bool, time: bool) -> None:
        """Driver, once, at the start of a run: what the pipeline cannot do without. A source that hears from its records' authors can refuse the rest."""

    def load(self, spark: Any, unreadable: str | None = None) -> Any:
        """Driver, once per run: the streaming DataFrame. unreadable: a further column, for the text of rows that do not fit the schema, if the source can
        tell them; None: such a row is an error."""
        raise NotImplementedError

    def unplanned(self) -> str | None:
        """Driver, once, before anything is written: why only Spark can read this source, for people; None if Millstream plans its epochs itself
        (`reader`)."""
        return f"{self.describe()} can only be read by Spark"

    def reader(self, arrow_schema: Callable[[Any], Any], unreadable: str | None = None) -> PlannedReader:
        """Driver, once per run, of a source that is planned. arrow_schema: makes an Arrow schema of DDL text or a StructType. unreadable: as in `load`."""
        raise NotImplementedError

    def read_files(self, spark: Any, files: Sequence[str], unreadable: str | None = None) -> Any:
        """Driver, once per epoch of a micro-batch run, of a source that reads files: some of them as a DataFrame. unreadable: as in `load`."""
        raise NotImplementedError

    def session_settings(self) -> Mapping[str, Sequence[str]]:
        """Driver, once, at the start of a resident run: settings of a Spark session that change what Spark reads, and that `reader` does not follow: the
        name, and the values (in lower case) that are the same to it, the default first."""
        return {}

    @property
    def has_session_times(self) -> bool:
        """Likewise: whether Spark reads its times in the time zone of the session. (`reader` takes them for UTC.)"""
        return False

    def documents(self) -> Sequence[str] | None:
        """Driver, when a pipeline is written, of a source that gives changes: the columns that are no more than what is written there."""
        return None

    def partitioned(self) -> tuple[Source, str]:
        """Driver, when a pipeline is written, for `watermarks.partitions`: this source with a column that names the partition of a row, and that column."""
        raise DefinitionError(
            f"watermarks.partitions: {self.describe()} has no partitions. Use watermarks.bounded, or sub_sources for what a column names"
        )

    def hints(self) -> Sequence[str]:
        """Driver, when a row cannot be read: what may be the reason, for people."""
        return ()

    def acknowledge(self, offset: str) -> None:
        """Driver, after every commit: everything up to this offset (as Spark wrote it) is committed and published. May be repeated. Never before."""

    def close(self) -> None:
        """Driver, once, at the end of a run, however it ends. May be called twice."""

    def stats(self) -> msgspec.Struct | None:
        """Driver, whenever somebody looks: how the source is doing. Cheap, and safe for threads."""
        return None

    def size(self) -> int | None:
        """Driver, before Spark is started: the bytes that are there to read, where that can be told cheaply."""
        return None

    def describe(self) -> str:
        return type(self).__name__

    def waits_for(self) -> str:
        """For people: what it waits for while nothing comes."""
        return self.describe()


class FrameSource(Source):
    def __init__(self, frame: Any) -> None:
        self.frame = frame
        self.schema = getattr(frame, "schema", None)

    def load(self, spark: Any, unreadable: str | None = None) -> Any:
        return self.frame

    def describe(self) -> str:
        return "a streaming DataFrame"

    def waits_for(self) -> str:
        return "its source"


class SessionSource(Source):
    """A source made by a function of the Spark session, for pipelines that are written before there is one."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def load(self, spark: Any, unreadable: str | None = None) -> Any:
        return self.function(spark)

    def describe(self) -> str:
        return f"what {getattr(self.function, '__name__', 'a function')} makes of the session"


def as_source(given: Any) -> Source | None:
    """What somebody gave as a source; None if it is none."""
    if isinstance(given, Source):
        return given
    if hasattr(given, "isStreaming"):
        return FrameSource(given)
    return SessionSource(given) if callable(given) and not isinstance(given, type) else None
