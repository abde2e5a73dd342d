"""Planned sources: those whose epochs Millstream plans itself. What a reader must do, who calls it, where and how often.

Rules
1. Between two offsets there is always the same. What an epoch reads is decided by `plan` on the driver and stands in its manifest, as the offset at its
   end; where the next one begins is what the last manifest says. Nothing is written before the epoch is committed, and an epoch that was not committed is
   planned anew, perhaps with more.
2. A split can be read anywhere: in a task on any host, or on the driver. Splits and the reader itself are pickled to the tasks, without what they
   keep open on the driver.
3. Offsets are text, JSON by custom. They are compared for equality and never looked into by the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from millstream.errors import CheckpointError, InputError

if TYPE_CHECKING:
    import pyarrow as pa


T = TypeVar("T", bound="Offset")


class SplitPlan(msgspec.Struct, frozen=True):
    """What one epoch reads of one source, up to the offset `end`. splits: what is to be read, each by one task; none if nothing is new. size: about how many
    bytes that is. names: the files that are read with it (name to time of modification), which a manifest keeps for ever; gone: names that need not be
    kept any longer. takes, left: how many of the reader's `counts` are read, and how many are there and must wait."""

    end: str
    splits: Sequence[Any] = ()
    size: int = 0
    names: Mapping[str, int] = {}
    gone: Sequence[str] = ()
    takes: int = 0
    left: int = 0


class Offset(msgspec.Struct, frozen=True):
    """Base of offsets that are JSON. Its docstring says what an offset is one of."""

    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def read(cls: type[T], text: str) -> T:
        """Raises CheckpointError if it is something else."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError:
            raise CheckpointError(f"{text!r} is not an offset of {cls.__doc__}") from None


class PlannedReader:
    #: The columns of every batch that `read` gives, with Arrow's types for Spark's (as `to_arrow_schema(..., timezone="UTC")` says them).
    schema: pa.Schema
    #: How many bytes one epoch may have at most, where nobody has said how much; None: whatever there is. Resident tasks hold an epoch in memory.
    most: int | None = None
    #: What plans say they take and leave: "records", "files", "bytes"; nothing where that is not known.
    counts: str = ""

    def begin(self, names: Mapping[str, int], bounded: bool) -> None:
        """Driver, at the start of a run, before the first `plan`; and again if a run that was being replaced has committed one more epoch.
        names: what all plans that were committed named and did not take back. bounded: only what is there now is to be read."""

    def first(self) -> str:
        """Driver, once, for a new checkpoint: the offset to begin at."""
        raise NotImplementedError

    def plan(self, start: str) -> SplitPlan:
        """Driver, before every epoch: what it reads, from an offset on; everything there is, or as much as one epoch may have. A plan that
        ends at `start` with no splits says that nothing is new. May be called again with the same start if the last plan was not committed."""
        raise NotImplementedError

    def has_rows(self, split: Any) -> bool:
        """Driver: False of a split that has its place in the plan and nothing to read. Resident tasks get it all the same, others do not."""
        return True

    def read(self, split: Any) -> Iterator[pa.RecordBatch]:
        """Task or driver: the rows of a split. InputError (or what the JVM's reader would raise as one) names the file and what is wrong."""
        raise NotImplementedError

    def origin(self, split: Any) -> str:
        """Task or driver: the file that a split comes from, as Spark's input_file_name() has it; "" for sources without files."""
        return ""

    def refused(self, text: str) -> InputError | None:
        """Driver, after Spark could not read what was planned: the same in this reader's words. text: what Spark says, with the file. None: it can be read."""
        return None

    def committed(self, end: str) -> None:
        """Driver, after every commit, and again at the start of a run: everything up to an offset is committed, and published where a sink does not roll."""

    def wake(self, call: Callable[[], None]) -> bool:
        """Driver, once: `call` is to be called, from any thread, whenever there may be something new. False: the source cannot tell, and is asked from time
        to time."""
        return False

    def parts(self) -> Mapping[str, int]:
        """Driver, once per epoch, if a watermark follows files or partitions: all that are there now. Files are absolute real paths, with their times of
        modification (ms)."""
        return {}

    def parts_read(self) -> set[str]:
        """Driver, likewise: those (as `parts` names them) that are read to their end with the last plan."""
        return set()

    def close(self) -> None:
        """Driver, once, at the end of a run. May be called twice."""
