"""What differs between the versions of Spark: 4.0 to 4.3. All other code is written for the newest.

Rules
1. Where a version lacks something, what stands here gives the same result. What cannot be had there is refused, with the version that has it.
2. Nothing else asks for Spark's version.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import pyspark
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas import types as arrow_types

from millstream.errors import MissingExtra

OLDEST, NEWEST = (4, 0), (4, 3)
VERSION = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])

if VERSION < OLDEST:
    raise MissingExtra(
        f"Millstream runs on Spark {'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}, and this is PySpark {pyspark.__version__}. "
        f"Install a newer one: pip install 'pyspark>=4,<5'"
    )

_STREAMING = "org.apache.spark.sql.execution.streaming"  # where Spark's own streaming classes are

#: Spark's checkpoint files through Hadoop's FileSystem, and the class that runs a streaming query.
if VERSION >= (4, 1):
    FILE_MANAGER = f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
    MICRO_BATCHES = f"{_STREAMING}.runtime.MicroBatchExecution"
else:
    FILE_MANAGER = f"{_STREAMING}.FileSystemBasedCheckpointFileManager"
    MICRO_BATCHES = f"{_STREAMING}.MicroBatchExecution"

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

    HAS_READ_LIMITS = True
except ImportError:  # before 4.2 a reader is not told how much to read
    HAS_READ_LIMITS = False

    class ReadLimit:  # type: ignore[no-redef, misc]
        """How much of a source an epoch may read."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef, misc]
        """All there is."""

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef, misc]
        def __init__(self, max_rows: int) -> None:
            self.max_rows = max_rows

    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef, misc]
        def __init__(self, max_bytes: int) -> None:
            self.max_bytes = max_bytes

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A reader that is told when a bounded run begins."""


__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxBytes", "ReadMaxRows", "SupportsTriggerAvailableNow", "arrow_schema", "to_partitions"]


def arrow_schema(struct: T.StructType) -> Any:
    """Arrow's schema for one of Spark's, with times in UTC (which was the only way before 4.2)."""
    return arrow_types.to_arrow_schema(struct, timezone="UTC") if VERSION >= (4, 2) else arrow_types.to_arrow_schema(struct)


def to_partitions(frame: DataFrame, count: int, column: str) -> DataFrame:
    """Rows to the partition that a column of numbers names."""
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(count, column)
    numbers = F.array(*[F.lit(number) for number in _numbers_for(count)])
    return frame.repartition(count, F.element_at(numbers, F.col(column) + 1))


@functools.lru_cache(16)
def _numbers_for(count: int) -> list[int]:
    """For each of so many partitions a number that Spark's hash sends there."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < count:
        found.setdefault(_murmur3(number) % count, number)
        number += 1
    return [found[part] for part in range(count)]


def _murmur3(number: int) -> int:
    """Spark's hash of an integer: MurmurHash3 of its four bytes with the seed 42, as a signed number."""
    mask = 0xFFFFFFFF

    def rotated(value: int, bits: int) -> int:
        return (value << bits | value >> (32 - bits)) & mask

    mixed = rotated(number * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    found = (rotated(42 ^ mixed, 13) * 5 + 0xE6546B64) & mask ^ 4
    found = (found ^ found >> 16) * 0x85EBCA6B & mask
    found = (found ^ found >> 13) * 0xC2B2AE35 & mask
    found ^= found >> 16
    return found - (1 << 32) if found >> 31 else found
