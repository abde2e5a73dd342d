"""The pipeline of the views demo in a process of its own: `python -m demos.people.driver DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

from demos.people.world import CHECKPOINT, pipeline
from demos.processes import end_with_parent


def main(output: Path) -> None:
    """Runs it to the end of its input."""
    end_with_parent()
    handle = pipeline(output).run(checkpoint=output / CHECKPOINT, available_now=True, drain=False)
    handle.await_termination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
