"""python -m millstream.demo.driver OUTPUT: one driver of the demo. It runs the pipeline on Spark to its end, or until it is killed.

All that it needs is in the output directory: the queries, the truth beside them, and the checkpoint from which it goes on.
"""

from __future__ import annotations

import sys
from pathlib import Path

import millstream as ms
from millstream.demo import picture
from millstream.demo.processes import end_with_parent
from millstream.demo.traffic import QUERIES, Truth, read_truth
from millstream.demo.zeitgeist import build
from millstream.errors import MillstreamError

CHECKPOINT = "checkpoint"
FILES_PER_EPOCH = 3


def pipeline(output: Path, truth: Truth) -> ms.Pipeline:
    """The pipeline of an output directory."""
    return build(output / QUERIES, output, tracked=picture.tracked(truth), until=truth.traffic.end, max_files_per_epoch=FILES_PER_EPOCH)


def main(output: Path) -> None:
    """Runs it, and ends with this process's parent."""
    end_with_parent()
    try:
        pipeline(output, read_truth(output)).run(checkpoint=output / CHECKPOINT, available_now=True).await_termination()
    except MillstreamError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
