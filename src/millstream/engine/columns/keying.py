"""Source columns to keyed rows, in Arrow and numpy: bit by bit what `spark/rows.py` has the JVM do, so that a pipeline may change its way of running."""

from __future__ import annotations

from typing import Any

from millstream.core.topology import Injector
from millstream.engine.columns.arrow import ValueColumn
from millstream.engine.program import Program


class Keying:
    """Keys the rows of one injector. Made on the driver and in every task, once.

    schema: the source's Arrow schema, without the column for unreadable rows; unreadable: the name of that column, if the source has it.
    Raises DefinitionError, with the texts of `spark/rows.py`, for what cannot work; and for what only Spark can do, with the way out.
    """

    def __init__(self, program: Program, injector: Injector, schema: Any, shards: int, unreadable: str | None = None) -> None:
        raise NotImplementedError

    #: How the injector's value travels in the rows (`spark/rows.value_layout`).
    layout: list[ValueColumn]

    def keyed(self, table: Any, now: int, origin: str = "") -> Any:
        """A table of source columns as a table of keyed rows, one per record and consumer: the columns that `spark/rows.py` describes, without the values of
        other injectors. now: for an injector without a timestamp. origin: the file that the rows come from, as input_file_name() has it."""
        raise NotImplementedError
