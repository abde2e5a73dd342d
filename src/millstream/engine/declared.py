"""What sources say on the driver about how far event time is complete: asked once per epoch, before its tasks run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.core.topology import Topology
from millstream.core.watermark import Declared, FileTimes
from millstream.errors import InputError


def declared(topology: Topology, read_files: Callable[[str], tuple[dict[str, int], set[str]]]) -> dict[str, int]:
    """By injector, what its source declares now. read_files: the files of a file source, and those that have been read."""
    found: dict[str, int] = {}
    for name, injector in topology.injectors.items():
        policy = injector.watermark
        said: Any = None
        if isinstance(policy, Declared) and policy.function is not None:
            try:
                said = policy.function()
            except Exception as error:
                raise InputError(
                    f"injected stream {name!r}: the callable that declares its watermark raised {type(error).__name__}: {error}"
                ) from error
            if said is not None and said.__class__ is not int:
                raise InputError(f"injected stream {name!r}: its watermark was declared as {said!r}: give milliseconds as an int, or None")
        elif isinstance(policy, FileTimes):
            said = policy.from_files(*read_files(name))
        if said is not None:
            found[name] = said
    return found
