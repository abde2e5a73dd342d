"""What kind of mistake makes runs of the same records differ (`simulation/epoch_cuts.py`), and a report of it that can be read.

Rules
1. One thing is changed at a time. If the same run twice differs, the program is not deterministic, and what hooks changed that outlives a run is named. If
   runs differ by how instances are shared, something is not in the state, and its attributes are named. Then come the number of shards, and last how input
   falls into epochs: because records are out of order, or late in one run and not in the other.
2. Records are taken out as long as the difference stays, so that the report shows the fewest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from millstream.simulation.diff import short
from millstream.simulation.epoch_cuts import OWN, Cut, Ran, Rows, Trials, cuts, singly, time_of
from millstream.simulation.instance_sharing import EPOCH, ONE, outside

EPOCHS = "the result depends on how input falls into epochs"
SHARDS = "the result depends on the number of shards"
WRONG = "a view is not what a recomputation of its rows gives"
DICE = "not deterministic: no fault was needed to see it"
SELF = "not in the state: "

_TRIES = 200  # runs to find the fewest records,
_WORK = 20_000  # and records in all of them
_SHOWN = 4  # records in a report
_ID = re.compile(r"\b[0-9a-f]{32}\b")

_BE_DETERMINISTIC = (
    "Use self.now for the clock, and seed what is random by self.key and record.id. What cannot be made deterministic goes over strong edges, and is "
    "tested with ms.testing.SparkFaults."
)
_REPEATS_ITSELF = (
    "A map or a reducer does not repeat itself, or a reducer depends on the order of its values: see ms.testing.assert_reducer. If it does neither, the "
    "mistake is Millstream's."
)
_KEEP = "An instance serves many keys, and is gone after its epoch. Keep in self.state what is to last."
_OUT_OF_ORDER = (
    "The records arrive out of order in event time, or at the same time. Within an epoch a key's records are handled in order of event time, across "
    "epochs as they arrive. Produce from timers, when the low watermark says that nothing older comes."
)
_BELIEF = (
    "A hook takes it that a timer has fired because a later record is there, or follows self.low_watermark. Within an epoch time stands still: keep what "
    "belongs to a window under the window, and let its timer take it out (docs/computations.md, Timers)."
)
_BY_DESIGN = (
    "If the result may depend on epochs by design, say what must be equal: compare=, ignore=; "
    'or epochs="same" in assert_exactly_once (docs/testing.md).'
)


class Finding(msgspec.Struct):
    """A mistake: its kind, the first difference, the two ways that show it, the fewest records, and advice."""

    kind: str
    difference: str
    ways: str
    rows: Rows
    advice: str

    def __str__(self) -> str:
        shown = [f"  {stream}: {short(row, 150)}" for stream, row in self.rows[:_SHOWN]]
        more = [f"  … and {len(self.rows) - _SHOWN} more"] if len(self.rows) > _SHOWN else []
        records = [f"The records that show it{', in order of arrival' if len(self.rows) > 1 else ''}:", *shown, *more] if shown else []
        return "\n".join([self.kind, self.difference, f"  {self.ways}", *records, self.advice])


def find(trials: Trials, shards: int, seeds: Iterable[int]) -> Finding | None:
    """Runs the records in many ways; None if they all end in the same way. An error that a hook raises in every run is raised."""
    first = singly(len(trials.rows), shards)
    expected = trials.run(first)
    found = _twice(trials, first, expected)
    if found is not None:
        return found
    if expected.wrong is not None:
        return Finding(kind=WRONG, difference=expected.wrong, ways=f"with {first.portions()}", rows=[], advice=_REPEATS_ITSELF)
    for cut in cuts(len(trials.rows), shards, seeds if expected.error is None else ()):
        got = trials.run(cut)
        if trials.difference(got, expected) is not None:
            return _kind(trials, first, expected, cut, got)
    if expected.error is not None:
        raise expected.error
    return None


def _kind(trials: Trials, first: Cut, expected: Ran, cut: Cut, got: Ran) -> Finding:
    """What it is that makes a run differ from the first one."""
    return (
        _twice(trials, cut, got)
        or _twice(trials, first, expected)
        or _instances(trials, first, cut)
        or _shards(trials, first, cut)
        or _epochs(trials, first, cut, trials.difference(got, expected) or "")
    )


# --- not deterministic


def _twice(trials: Trials, cut: Cut, before: Ran) -> Finding | None:
    difference = trials.difference(trials.run(cut), before)
    if difference is None:
        return None
    kind, advice = DICE, _BE_DETERMINISTIC
    changed = _changed(trials, cut)
    if changed:
        kind = f"{SELF}{_names(changed)}; {DICE}"
        advice = "Hooks change it, and it outlives the run. A hook runs again when a task is retried, in any process: keep in self.state what is to last."
    return Finding(kind=kind, difference=difference, ways="in the second of two equal runs", rows=[], advice=advice)


def _changed(trials: Trials, cut: Cut) -> list[str]:
    """What a run changes that outlives it."""
    before = outside(trials.program)
    trials.run(cut)
    return [name for name, value in outside(trials.program).items() if value != before.get(name)]


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# --- not in the state


def _instances(trials: Trials, first: Cut, cut: Cut) -> Finding | None:
    for base in (first, msgspec.structs.replace(cut, shards=first.shards), cut):
        apart, shared = (msgspec.structs.replace(base, sharing=sharing) for sharing in (EPOCH, ONE))
        if trials.difference(trials.run(apart), trials.run(shared)) is not None:
            return _named(_fewest(trials, apart, shared))
    return None


def _named(pair: _Pair) -> Finding:
    trials, way = pair.trials, msgspec.structs.replace(pair.one, sharing=ONE)
    kept = trials.run(way)
    attributes = kept.compiled.attributes()
    every = list(dict.fromkeys(name for names in attributes.values() for name in names))
    blamed = [name for name in every if trials.difference(trials.run(way, [name]), kept) is not None] or every
    where = [computation for computation, names in attributes.items() if set(names) & set(blamed)]
    kind = SELF + (_names([f"self.{name}" for name in blamed]) or "something that tells one instance from another, such as id(self)")
    if where:
        kind += f", of computation {' and '.join(map(repr, where))}"
    return Finding(
        kind=kind,
        difference=pair.difference,
        ways=f"with {pair.one.sharing}, instead of {pair.other.sharing}",
        rows=trials.rows,
        advice=_KEEP,
    )


# --- shards, and cuts


def _shards(trials: Trials, first: Cut, cut: Cut) -> Finding | None:
    for base in (cut, first):
        plain = msgspec.structs.replace(base, sharing=EPOCH, shards=first.shards)
        for shards in {cut.shards, 1, first.shards + 1} - {first.shards}:
            way = msgspec.structs.replace(plain, shards=shards)
            if trials.difference(trials.run(way), trials.run(plain)) is None:
                continue
            pair = _fewest(trials, way, plain)
            ways = f"with {shards} shard{'s' * (shards != 1)}, instead of {first.shards}"
            advice = [
                "Which keys share a shard, and which shard comes first, is nobody's choice. Bring records of different keys together over a stream with a "
                "key of its own.",
                *_also(trials, way),
            ]
            return Finding(kind=SHARDS, difference=pair.difference, ways=ways, rows=pair.trials.rows, advice="\n".join(advice))
    return None


def _also(trials: Trials, cut: Cut) -> list[str]:
    changed = _changed(trials, cut)
    return [f"Hooks change {_names(changed)}, which outlives a run and is not in the state."] if changed else []


def _epochs(trials: Trials, first: Cut, cut: Cut, difference: str) -> Finding:
    plain = msgspec.structs.replace(cut, shards=first.shards, sharing=EPOCH)
    for way in (Cut((0, len(trials.rows)), first.shards), msgspec.structs.replace(plain, behind=0), plain, cut):
        if trials.difference(trials.run(way), trials.run(first)) is not None:
            pair = _fewest(trials, way, first)
            ways = f"with {pair.one.portions()}, instead of {pair.other.portions()}"
            advice = [*_reasons(pair), *_also(trials, way), _BY_DESIGN]
            return Finding(kind=EPOCHS, difference=pair.difference, ways=ways, rows=pair.trials.rows, advice="\n".join(advice))
    return Finding(
        kind=DICE,
        difference=difference,
        ways=f"with {cut.portions()}, instead of {first.portions()}, and not again",
        rows=[],
        advice=_BE_DETERMINISTIC,
    )


def _reasons(pair: _Pair) -> list[str]:
    trials = pair.trials
    late = [sum(trials.run(way).engine.late.values()) for way in (pair.one, pair.other)]
    if _ID.search(pair.difference):
        return ["The id of what a timer produced names its epoch, so it depends on epochs by design."]
    if trials.watermarks == OWN and late[0] != late[1]:
        return [
            f"{late[0]} records are late in one, {late[1]} in the other: which are late depends on how far time had got before their epoch."
        ]
    repeated = _same_id(trials)
    if repeated is not None:
        return [
            f"Two records of stream {repeated[0]!r} have the id {repeated[1]!r} and differ. One of them is dropped as a repeat, and "
            f"which one depends on epochs."
        ]
    found = [_OUT_OF_ORDER if _in_order_is_fine(trials, pair.one) else _BELIEF]
    if len({stream for stream, _ in trials.rows}) > 1 or any(len(spec.inputs) > 1 for spec in trials.program.topology.computations):
        found.append("Records of different streams have no order between them across epochs.")
    return found


def _same_id(trials: Trials) -> tuple[str, Any] | None:
    """A stream and an id that two different records have."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for stream, row in trials.rows:
        injector = trials.program.topology.injectors[stream]
        if (
            injector.dedup is not None
            and isinstance(injector.id, str)
            and found.setdefault((stream, str(row.get(injector.id))), row) != row
        ):
            return stream, row.get(injector.id)
    return None


def _in_order_is_fine(trials: Trials, cut: Cut) -> bool:
    injectors = trials.program.topology.injectors

    def place(item: tuple[str, dict[str, Any]]) -> tuple[int, str]:
        injector = injectors[item[0]]
        return time_of(injector, item[1]) or 0, str(item[1].get(injector.id, "")) if isinstance(injector.id, str) else ""

    ordered = sorted(trials.rows, key=place)
    if ordered == list(trials.rows):
        return False
    again = trials.of(ordered)
    return again.difference(again.run(cut), again.run(singly(len(ordered), cut.shards))) is None


# --- the fewest records


class _Pair(msgspec.Struct):
    """Two ways of running some records that end differently."""

    trials: Trials
    one: Cut
    other: Cut
    difference: str


def _fewest(trials: Trials, one: Cut, other: Cut) -> _Pair:
    """Takes out portions of the records, then single ones, the last ones first, as long as the two ways end differently."""
    rows = trials.rows
    kept = list(range(len(rows)))
    best = whole = _Pair(trials, one, other, trials.difference(trials.run(one), trials.run(other)) or "")
    tries, work, size = 0, 0, len(kept) // 2
    while size:
        at = len(kept)
        while at > 0 and tries < _TRIES and work < _WORK:
            without = kept[: max(0, at - size)] + kept[at:]
            fewer, gone = trials.of([rows[row] for row in without]), set(range(len(rows))) - set(without)
            ways = [_fitted(way, len(rows), len(without), gone) for way in (one, other)]
            difference = fewer.difference(fewer.run(ways[0]), fewer.run(ways[1]))
            tries, work, at = tries + 1, work + len(without), at - size
            if difference is not None:
                kept, best = without, _Pair(fewer, ways[0], ways[1], difference)
        size //= 2
    expected, got = (
        best.trials.run(best.other),
        best.trials.run(best.one),
    )  # the other way round: what one run leaves behind must not make the difference
    return best if best.trials.difference(got, expected) == best.difference else whole


def _fitted(way: Cut, before: int, now: int, gone: set[int]) -> Cut:
    if way.bounds == singly(before, 1).bounds:
        return msgspec.structs.replace(way, bounds=singly(now, 1).bounds)
    return way.without(gone)
