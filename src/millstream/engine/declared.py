"""What sources say on the driver about how far event time is complete: asked once per epoch, before its tasks run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millstream.core.topology import Topology
from millstream.errors import InputError, MillstreamError


def declared(topology: Topology, read_files: Callable[[str], tuple[Mapping[str, int], set[str]]]) -> dict[str, int]:
    """By injector, what its source declares now. read_files: the files of a file source, and those that have been read."""
    found: dict[str, int] = {}
    for name, injector in topology.injectors.items():
        files = read_files(name) if injector.watermark.wants_files else ({}, set[str]())
        try:
            said = injector.watermark.said(*files)
        except MillstreamError:
            raise
        except Exception as error:
            raise InputError(
                f"injected stream {name!r}: the callable that declares its watermark raised {type(error).__name__}: {error}"
            ) from error
        if said is not None and said.__class__ is not int:
            raise InputError(f"injected stream {name!r}: its watermark was declared as {said!r}: give milliseconds as an int, or None")
        if said is not None:
            found[name] = said
    return found
