"""Builds: computations whose state is derived from the rows of others, and can be made again from them beside what they show.

A view is such a computation. If it is new on rows that are there, or its definition has changed, a *scan* passes by all rows of its senders in chunks,
and each row says what it is. When all rows have been passed, the build *cuts over* in one epoch. Pure.

Rules
1. A build has a number, its generation. What is shown is the active one; what is spoken to is the newest. They differ while it is being filled.
2. A computation that is new, on senders that are new, has nothing to be filled from: it is active at once.
3. A build is filled when all its senders are active themselves; until then nobody speaks to it. If a sender is begun anew while the scan is on its way,
   the scan stops where it is: rows that it has been at go on speaking, so that the sender's cutover is heard.
4. The cutover is one epoch of its own, behind the one in which the last row was passed: every row of the computation is visited in it.
5. A scan has a name that no other one ever has: cursors stay behind in the senders' shards, and the name of a view may come again.
6. Changed code under an unchanged version is refused: nobody can tell whether the state still fits it.
7. A scan passes by the rows of a shard in the order of row keys, a chunk per epoch. Its entry (`S <name>` in the keyspace) says how far it has come: up to
   a row, or that it has been at all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from millstream.core.keyspace import ROW, SCAN, Store, after
from millstream.errors import CheckpointError

FIRST_CHUNK = 10_000  # rows per shard and epoch
LEAST_CHUNK, MOST_CHUNK = 1_000, 200_000
PAUSED = -1  # the chunk of a scan that stays where it is
_ENDED, _AT = b"\x02", b"\x01"  # what the entry of a scan begins with
QUICK, SLOW = 250.0, 1_000.0  # milliseconds of a step between which a chunk stays as it is


class Derivation(msgspec.Struct, frozen=True):
    senders: tuple[str, ...]  # computations that speak to it
    version: str = ""  # the user's
    fingerprint: str = ""  # of the code
    keep: bool = False  # other code under the same version is known to give the same
    is_join: bool = False  # it cannot be filled anew under its name


class BuildState(msgspec.Struct, frozen=True):
    """How far a derived computation is."""

    version: str = ""
    fingerprint: str = ""
    generation: int = 1
    active: int = 1
    is_scanned: bool = False  # the scan has passed all rows
    scanned: int = 0  # rows that it has passed
    chunk: int = FIRST_CHUNK
    began: int = 0  # the wall clock when the fill began
    scan: str = ""  # what its scan is called
    senders: tuple[str, ...] = ()  # whom it was derived from when it began; renamed with them

    @property
    def is_filling(self) -> bool:
        """Whether what is spoken to is not yet what is shown."""
        return self.generation != self.active


class Build(msgspec.Struct, frozen=True):
    """What an epoch says of a derived computation to those who speak to it, and to itself."""

    generation: int = 1
    active: int = 1
    waiting: bool = False  # nobody speaks to it yet
    scan: str = ""  # what the scan is called that fills it


ACTIVE = Build()

JOIN_ADVICE = (
    "Give it another name=, and the views behind it another version=, so that they are filled anew. "
    "Its old state goes with run(..., drop=[{name!r}])."
)


class BuildOrders(msgspec.Struct):
    """By computation, what it has to know of."""

    builds: dict[str, dict[str, Build]] = {}
    scans: dict[str, dict[str, int]] = {}  # those that pass by its rows: at most so many in this epoch, 0: all, PAUSED: none


def scan_name(consumer: str, generation: int, epoch: int) -> str:
    """What the scan is called that fills a build. epoch: the last one before it. Rule 5."""
    return f"{consumer}/{generation}/{epoch}"


def cutover_name(consumer: str, generation: int) -> str:
    """What the visit of all rows is called that cuts over to a build."""
    return f"{consumer}/{generation}/cutover"


def begun(
    derived: Mapping[str, Derivation], known: Mapping[str, BuildState], present: Collection[str], now: int = 0, epoch: int = -1
) -> dict[str, BuildState]:
    """The builds at the start of a run. known: those of the checkpoint; present: who has rows there. now, epoch: of its last epoch."""
    found: dict[str, BuildState] = {}
    for name, one in derived.items():
        state = known.get(name)
        if state is None:
            is_new = all(sender not in present for sender in one.senders)  # rule 2
            state = BuildState(active=1 if is_new else 0, chunk=FIRST_CHUNK, began=now)
        elif state.version != one.version:
            state = rebuilt(state, name, now, epoch)
        else:
            _check(name, state, one)
        scan = state.scan or scan_name(name, state.generation, epoch)
        found[name] = msgspec.structs.replace(state, version=one.version, fingerprint=one.fingerprint, senders=one.senders, scan=scan)
    return found


def rebuilt(state: BuildState, name: str, now: int, epoch: int) -> BuildState:
    """A build that is filled anew, beside what it shows. now, epoch: of the last epoch before it."""
    generation = state.generation + 1
    scan = scan_name(name, generation, epoch)
    return msgspec.structs.replace(state, generation=generation, is_scanned=False, scanned=0, chunk=FIRST_CHUNK, began=now, scan=scan)


def _check(name: str, old: BuildState, one: Derivation) -> None:
    """Rule 6. A fingerprint says in front of a colon what it depends on; where that differs, it proves nothing."""
    ours, theirs = one.fingerprint.partition(":"), old.fingerprint.partition(":")
    is_moved = bool(old.senders) and old.senders != one.senders
    if (not is_moved and (ours == theirs or ours[0] != theirs[0])) or one.keep:
        return
    if one.is_join:
        raise CheckpointError(
            f"join {name!r}: what it joins, or by what, has changed since the checkpoint was written. {JOIN_ADVICE.format(name=name)}"
        )
    raise CheckpointError(
        f"view {name!r}: its code has changed since the checkpoint was written, and its version= has not. If the new code gives other results, "
        f"say reduce(..., version=) with another version than {old.version!r}: the view is then filled anew, beside what it shows now. If it gives the "
        f"same, say reduce(..., keep=True)."
    )


def orders(derived: Mapping[str, Derivation], states: Mapping[str, BuildState]) -> BuildOrders:
    """What an epoch tells the computations."""
    found = BuildOrders()
    for name, state in states.items():
        if not state.is_filling and state.generation == 1:
            continue  # what everybody assumes
        senders = derived[name].senders
        held = state.is_filling and any(sender in states and states[sender].is_filling for sender in senders)
        is_begun = state.scanned > 0 or state.is_scanned
        build = Build(state.generation, state.active, held and not is_begun, state.scan)
        for computation in (name, *senders):
            found.builds.setdefault(computation, {})[name] = build
        if not state.is_filling or build.waiting:
            continue
        if not state.is_scanned:
            for sender in senders:
                found.scans.setdefault(sender, {})[state.scan] = PAUSED if held else state.chunk
        elif not held:
            found.scans.setdefault(name, {})[cutover_name(name, state.generation)] = 0
    return found


def scanned_by(counts: Iterable[Any]) -> dict[str, list[tuple[int, bool]]]:
    found: dict[str, list[tuple[int, bool]]] = {}
    for one in counts:
        for name, passed in one.scanned.items():
            found.setdefault(name, []).append(passed)
    return found


def builds_after(
    states: Mapping[str, BuildState], told: BuildOrders, scanned: Mapping[str, Sequence[tuple[int, bool]]], millis: float
) -> dict[str, BuildState]:
    """The builds after an epoch. scanned: by scan, for every shard of every sender, the rows passed and whether it has ended. millis: of the longest step."""
    scans = {name: computation for computation, of in told.scans.items() for name in of}
    found: dict[str, BuildState] = {}
    for name, state in states.items():
        if cutover_name(name, state.generation) in scans:
            state = msgspec.structs.replace(state, active=state.generation, is_scanned=False, chunk=FIRST_CHUNK)
        elif state.scan in scans:
            passed = scanned[state.scan]
            state = msgspec.structs.replace(
                state,
                scanned=state.scanned + sum(rows for rows, _ in passed),
                is_scanned=all(ended for _, ended in passed),
                chunk=_chunk(state.chunk, millis),
            )
        found[name] = state
    return found


def _chunk(chunk: int, millis: float) -> int:
    if millis < QUICK:
        return min(MOST_CHUNK, 2 * chunk)
    return max(LEAST_CHUNK, chunk // 2) if millis > SLOW else chunk


#: Where a scan begins in this epoch (None: it had ended), and the last row that it comes to (None: it ends).
Chunk = tuple[bytes | None, bytes | None]


class Settled(NamedTuple):
    """A scan in one epoch: its chunk, the rows in it, whether it has ended then, and what its entry says then (None: what it says already)."""

    chunk: Chunk
    rows: list[bytes]
    ended: bool
    says: bytes | None


def scan_entry(name: str) -> bytes:
    return SCAN + name.encode()


def settled(store: Store, name: str, limit: int) -> Settled:
    """How far a scan comes in this epoch. limit: rows, 0 for all that are left, PAUSED for none."""
    raw = store.get(scan_entry(name))
    if raw == _ENDED:
        return Settled((None, None), [], True, None)
    begins = b"" if raw is None else raw[1:] + b"\0"  # the first row that it has not been at; a row key may be empty
    if limit == PAUSED:
        return Settled((begins, b""), [], False, None)
    rows = [key[len(ROW) :] for key, _ in islice(store.scan(ROW + begins, after(ROW)), limit or None)]
    ends = not limit or len(rows) < limit
    return Settled((begins, None if ends else rows[-1]), rows, ends, _ENDED if ends else _AT + rows[-1])
