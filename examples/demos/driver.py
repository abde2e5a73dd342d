"""python -m demos.driver OUTPUT: one driver of the demo. It runs the pipeline on resident tasks of Spark to its end, or until it is killed.

All that it needs is in the output directory: the queries, the truth beside them, and the checkpoint from which it goes on. A driver that comes to the end
leaves there how long its epochs took.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

import millstream as ms
from demos import picture
from demos.processes import end_with_parent
from demos.traffic import QUERIES, Truth, read_truth
from demos.zeitgeist import build
from millstream.errors import MillstreamError

CHECKPOINT = "checkpoint"
LATENCY = ".latency.json"
FILES_PER_EPOCH = 1


class Latency(msgspec.Struct):
    """How long epochs with records took, from the look at the files to the published rows: in milliseconds, the median and the longest."""

    epochs: int = 0
    records: int = 0
    median: float = 0.0
    longest: float = 0.0

    @staticmethod
    def of(epochs: list[dict[str, Any]]) -> Latency:
        """Of the last epochs of a run. The first is left out: in it, tasks start."""
        busy = [one for one in epochs if one["records"]][1:]
        if not busy:
            return Latency()
        millis = [one["millis"] for one in busy]
        return Latency(len(busy), sum(one["records"] for one in busy), median(millis), max(millis))

    def note(self, output: Path) -> None:
        """Leaves it in the output directory."""
        (output / LATENCY).write_bytes(msgspec.json.encode(self))

    @staticmethod
    def noted(output: Path) -> Latency:
        """What the last driver left there."""
        try:
            return msgspec.json.decode((output / LATENCY).read_bytes(), type=Latency)
        except (OSError, msgspec.MsgspecError):
            return Latency()


def pipeline(output: Path, truth: Truth) -> ms.Pipeline:
    """The pipeline of an output directory."""
    return build(output / QUERIES, output, tracked=picture.tracked(truth), until=truth.traffic.end, max_files_per_epoch=FILES_PER_EPOCH)


def main(output: Path) -> None:
    """Runs it, and ends with this process's parent."""
    end_with_parent()
    try:
        handle = pipeline(output, read_truth(output)).run(checkpoint=output / CHECKPOINT, available_now=True, resident=True)
        handle.await_termination()
        Latency.of(handle.epochs()).note(output)
    except MillstreamError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
