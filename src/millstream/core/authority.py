"""The authority: every computation's low watermark, and what holds it back.

    low watermark(A) = min(oldest pending work of A, low watermark of everything that feeds A)            MillWheel §4.5

Rules
1. It never goes back: each value is at least the one before.
2. *Output*: what a computation's streams promise. It is the low watermark, held back by timestamped state, by timers that hold it,
   and by timers that are due and did not get their turn yet, or may not get it (where a shard has more than an epoch may fire). A timer at t may
   produce at t - 1, so that is what it holds. A production below the output of the epoch before is an error.
3. Over a weak edge productions arrive in the epoch that makes them, so the consumer follows the producer's output of the same epoch.
4. Over a stored edge (strong, or adaptive while it stores) they arrive one epoch later, so the consumer follows the producer's output
   of the epoch before. Everything then pending is at least as new as the consumer's low watermark: pending work is accounted for.
5. In a cycle that rule would have a computation wait for itself. What can still circle is known instead: it was caused by what is
   pending, by a timer, by a hold, or by something from outside that has not arrived. All members of a cycle follow the oldest of these, and their
   productions may not be older than it. (So state in a cycle cannot hold, nor a timer an earlier timestamp than its own: it would wait for itself.)
6. When event time ends, a hold counts as long as its computation can still do something. One that nothing is left to release is void.
7. A wall-clock timer may fire after its computation's event time has ended. What it produces is as new as anything that anybody still waits for, and where
   event time has ended nothing is late: no source may bring anything any more. So a production is never late, also then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from millstream.core.outcome import Times
from millstream.core.time import BEGINNING, END, describe
from millstream.core.topology import STRONG, Topology
from millstream.core.watermark import Progress, effective

Edge = tuple[str, str]  # stream, consumer


class Standing(msgspec.Struct):
    low: int = BEGINNING
    output: int = BEGINNING
    held: int | None = None  # oldest hold of a state or timer
    next_low: int | None = None  # earliest low-watermark timer left
    pending: int | None = None  # oldest production stored for it
    crowded: bool = False  # a shard has more timers than one epoch may fire


def propagate(
    topology: Topology,
    injectors: Mapping[str, Progress],
    before: Mapping[str, Standing],
    stored: Collection[Edge] = (),
    drain: bool = False,
) -> dict[str, Standing]:
    """Low watermark and output of every computation in the next epoch. `stored` are the adaptive edges that store in it."""
    injected = effective(injectors, drain)
    if drain:
        before = {name: _released(was) for name, was in before.items()}
    cycles = _cycles(topology, injectors, before)
    result: dict[str, Standing] = {}
    for spec in topology.computations:
        was = before.get(spec.name, Standing())
        circling = topology.cycle_of.get(spec.name)
        if circling is not None:
            low = cycles[circling]
        else:
            low = min(
                injected[i.stream]
                if i.stream in injected
                else before.get(topology.producer(i.stream), Standing()).output
                if is_stored(topology, (i.stream, spec.name), stored)
                else result[topology.producer(i.stream)].output
                for i in spec.inputs
            )
        low = max(low, was.low)
        overdue = was.next_low if was.next_low is not None and was.next_low <= (low if was.crowded else was.low) else None
        output = min(time for time in (low, was.held, overdue if overdue is None else overdue - 1) if time is not None)
        result[spec.name] = msgspec.structs.replace(was, low=low, output=max(output, was.output))
    return result


def _released(was: Standing) -> Standing:
    """Rule 6: all its input has ended, and no timer is left."""
    over = was.low == END and was.next_low is None and was.pending is None
    return msgspec.structs.replace(was, held=None) if over and was.held is not None else was


def is_stored(topology: Topology, edge: Edge, stored: Collection[Edge]) -> bool:
    """Whether an edge delivers in the next epoch."""
    return topology.edges[edge] == STRONG or edge in stored


def _cycles(topology: Topology, injectors: Mapping[str, Progress], before: Mapping[str, Standing]) -> list[int]:
    found = []
    for members in topology.cycles:
        times: list[int | None] = []
        for name in members:
            was = before.get(name, Standing())
            times += [was.pending, was.next_low, was.held]
            for i in topology.by_name[name].inputs:
                if i.stream in injectors:
                    times.append(injectors[i.stream].used)
                elif topology.producer(i.stream) not in members:
                    times.append(before.get(topology.producer(i.stream), Standing()).output)
        found.append(min((time for time in times if time is not None), default=BEGINNING))
    return found


def times(topology: Topology, standings: Mapping[str, Standing], before: Mapping[str, Standing], now: int, epoch: int) -> dict[str, Times]:
    """What the steps of an epoch are told."""
    found = {}
    newest = _newest(standings, before)
    for name, standing in standings.items():
        was = before.get(name, Standing())
        late_before = was.low if was.low < END else BEGINNING
        least = standing.low if name in topology.cycle_of else was.output
        found[name] = Times(now, late_before, standing.low, epoch, least if least < END else newest, standing.output)
    return found


def _newest(*standings: Mapping[str, Standing]) -> int:
    """Rule 7: the newest low watermark of those whose event time goes on; BEGINNING where it has ended for all."""
    return max((one.low for some in standings for one in some.values() if one.low < END), default=BEGINNING)


class Holder(msgspec.Struct, frozen=True):
    """What holds a low watermark back, for programs and (text) for people. what: "injector", "pending" (a stored production), "state" (a hold), "timer", or
    "nothing"; name: the injector or computation; key: whose state or timer it is; time: where it stands; path: leads from the computation to it."""

    what: str = "nothing"
    name: str = ""
    time: int = BEGINNING
    path: list[str] = []
    text: str = ""
    key: str = ""

    def __str__(self) -> str:
        return self.text + (f" (by way of {' ← '.join(self.path)})" if len(self.path) > 1 else "")


def holder(
    computation: str,
    feeds: Mapping[str, Sequence[str]],
    producers: Mapping[str, str],
    injectors: Mapping[str, Progress],
    standings: Mapping[str, Standing],
    keys: Mapping[str, str],
) -> Holder:
    """Follows the minimum upstream. feeds: the streams that each computation reads; producers: the computation that each internal stream comes
    from; keys: for each computation, whose state or timer holds its output."""
    path: list[str] = []
    at = computation
    injected = effective(injectors)
    while True:
        path.append(at)
        standing = standings.get(at, Standing())
        candidates: list[tuple[int, bool, str, str]] = []
        if standing.pending is not None:
            candidates.append((standing.pending, False, "pending", at))
        for stream in feeds.get(at, ()):
            if stream in injected:
                candidates.append((injected[stream], False, "injector", stream))
                continue
            producer = producers.get(stream, "")
            one = standings.get(producer, Standing())
            if one.held is not None and one.held <= one.low:
                candidates.append((one.held, False, "state", producer))
            elif one.next_low is not None and one.next_low <= one.low:
                candidates.append((one.next_low - 1, False, "timer", producer))
            if producer not in path:
                candidates.append((one.output, True, "computation", producer))
        if not candidates:
            return Holder("nothing", at, standing.low, path, "nothing")
        time, _, what, name = min(candidates)
        if what == "computation":
            at = name
            continue
        if what == "injector":
            text = f"injector {name!r} at {describe(time)}: {injectors[name].holder or 'no record yet'}"
        elif what == "pending":
            text = f"a production of {describe(time)} that {name!r} has not consumed yet"
        elif what == "state":
            text = f"a hold at {describe(time)} by {keys.get(name, 'a key')} of computation {name!r}"
        else:
            text = (
                f"a timer at {describe(time + 1)} of {keys.get(name, 'a key')} of computation {name!r} that is due and has not had its turn"
            )
        return Holder(what, name, time, path, text, keys.get(name, "") if what in ("state", "timer") else "")
