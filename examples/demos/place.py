"""A demo's directory: it is the demo's, or empty. What an earlier one has made is cleared, by name; any other that has one of these names is refused."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console


def take(output: Path, made: Sequence[str], mark: str, console: Console) -> bool:
    """Makes room for a new demo; False, and why on the console, if the directory is somebody else's."""
    strange = [name for name in made if (output / name).exists()] if not (output / mark).exists() else []
    if strange:
        console.print(
            f"{output} has {', '.join(strange)}, which this demo has not made. Give another directory with --output.", style="red"
        )
        return False
    output.mkdir(parents=True, exist_ok=True)
    (output / mark).touch()
    for name in made:
        path = output / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return True
