"""Spark's rate source, for trying things."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millstream.errors import DefinitionError
from millstream.sources.base import Source


@dataclass(frozen=True)
class Rate(Source):
    """Numbered rows at a steady pace: columns `timestamp` and `value`."""

    rows_per_second: int
    schema = "timestamp timestamp, value long"

    def load(self, spark: Any, unreadable: str | None = None) -> Any:
        return spark.readStream.format("rate").option("rowsPerSecond", self.rows_per_second).load()

    def describe(self) -> str:
        return f"{self.rows_per_second} rows a second"


def rate(rows_per_second: int = 100) -> Rate:
    """Numbered rows (`timestamp`, `value`) at a steady pace, for trying things."""
    if rows_per_second < 1:
        raise DefinitionError("sources.rate(rows_per_second=...): at least 1")
    return Rate(rows_per_second)
