"""Low watermarks: how far event time is complete, injector by injector and computation by computation.

Rules (MillWheel §4.3)
1. low watermark(A) = min(oldest pending work of A, low watermark of everything that feeds A). Over weak edges nothing is pending
   when an epoch ends, so the minimum over the inputs is all there is to it.
2. It never goes back, whatever an injector says.
3. What the records of epoch N imply is used in epoch N+1: the tasks of N do not know each other's records, and an extra pass to
   find out would cost a stage. Since an idle pipeline still has epochs, no window waits for a further record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from millstream.core.time import BEGINNING, duration
from millstream.errors import DefinitionError

if TYPE_CHECKING:
    from millstream.core.topology import Topology


class Bounded(msgspec.Struct, frozen=True):
    """Records come at most `delay` milliseconds of event time behind the newest one seen."""

    delay: int

    def watermark(self, newest: int | None) -> int:
        """The injector's watermark once `newest` is the newest timestamp seen."""
        return BEGINNING if newest is None else max(newest - self.delay, BEGINNING)


def bounded(delay: str | int) -> Bounded:
    """The watermark follows the newest timestamp at a fixed distance.

    >>> bounded("2s").watermark(10_000)
    8000
    """
    millis = duration(delay)
    if millis < 0:
        raise DefinitionError(f"bounded({delay!r}): the delay cannot be negative")
    return Bounded(millis)


def propagate(
    topology: Topology, injectors: Mapping[str, int], before: Mapping[str, int]
) -> dict[str, int]:
    """Every computation's low watermark, given the injectors' and what it was before."""
    streams: dict[str, int] = dict(injectors)
    result: dict[str, int] = {}
    for computation in topology.computations:
        fed = min(streams[i.stream] for i in computation.inputs)
        result[computation.name] = max(fed, before.get(computation.name, BEGINNING))
        for stream in computation.produces:
            streams[stream] = result[computation.name]
    return result
