"""What a run says of input that looks wrong although nothing fails: late records that nobody handles, and seconds in the place of milliseconds.

Rules
1. Each is said once per run: of late records once for each input of a computation, of seconds once for each injector.
2. Who has said what becomes of late records (`process_late_record`, `late=`) is told nothing.
3. A hint names the line to write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from millstream.core.computation import Computation
from millstream.core.outcome import HOOK, Counts
from millstream.core.time import describe
from millstream.core.topology import Topology
from millstream.core.watermark import Bounded, Seen

_SECONDS = range(315_532_800, 4_102_444_800)  # 1980 to 2100, in seconds; in milliseconds, some days of January 1970 and February


class Hints:
    """The hints of one run of a program."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._said: set[tuple[str, str]] = set()

    def of_late(self, computation: str, counts: Counts) -> Iterator[str]:
        """What to say of the late records that a step of a computation has met."""
        for stream in counts.late_by:
            if (computation, stream) not in self._said:
                self._said.add((computation, stream))
                spec = self._topology.by_name[computation]
                if spec.kind or spec.hidden or spec.late_streams[stream] != HOOK:
                    continue
                if type(spec.factory()).process_late_record is Computation.process_late_record:  # the one that does nothing
                    yield self._late(computation, stream, counts)

    def of_times(self, seen: Mapping[str, Seen]) -> Iterator[str]:
        """What to say of the timestamps of an epoch, by injector."""
        for name, one in seen.items():
            column = self._topology.injectors[name].timestamp
            if one.newest is not None and one.newest in _SECONDS and column is not None and ("", name) not in self._said:
                self._said.add(("", name))
                way = (
                    f", or (where Spark reads, not in a resident run) say timestamp={f'{column} * 1000'!r}"
                    if isinstance(column, str)
                    else ""
                )
                yield (
                    f"injected stream {name!r}: its newest timestamp is {one.newest}, which is {describe(one.newest)}. Are these seconds? Timestamps are "
                    f"milliseconds since 1970: write those into the column{way}."
                )

    def _late(self, computation: str, stream: str, counts: Counts) -> str:
        one = next((late for late in counts.last_late if late.stream == stream), None)
        which = (
            "" if one is None else f" (key {one.key}, {describe(one.timestamp)}; the low watermark was at {describe(one.low_watermark)})"
        )
        why = "".join(
            f" {name!r} has no watermark=, so whatever is older than its newest record may be late: say how long records may take, such as "
            f"inject({name!r}, ..., watermark=ms.watermarks.bounded('10s'))."
            for name in self._injectors(stream)
            if isinstance(policy := self._topology.injectors[name].watermark, Bounded) and not policy.is_given
        )
        return (
            f"computation {computation!r} has dropped a late record of stream {stream!r}{which}, and nothing there handles late records.{why} "
            f"To keep late records, write process_late_record or give late= a stream; late=ms.DROP drops them without this warning. They are counted as late."
        )

    def _injectors(self, stream: str) -> list[str]:
        """The injected streams that a stream comes from."""
        found: list[str] = []
        look, seen = [stream], set[str]()
        while look:
            at = look.pop()
            if at in seen:
                continue
            seen.add(at)
            if at in self._topology.injectors:
                found.append(at)
            else:
                look += [i.stream for i in self._topology.by_name[self._topology.producer(at)].inputs]
        return sorted(found)
