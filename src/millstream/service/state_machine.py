"""A turn: requests in, changes and answers out. Synchronous and pure: nothing else of the partition runs meanwhile.

Rules
1. A turn reads what is committed, covered by what earlier turns have changed and the log does not have yet (the overlay), covered by what this turn has
   changed. What one request of a turn wrote, the next one sees.
2. Every write has a position of its own, and its keys have it as their version. A write that is refused and belongs to a session has one too: its
   refusal is in the log, so that a retry gets it again.
3. A request changes all that it says, or nothing.
4. Whatever a function or a transform raises is told to the caller, by its name, and has changed nothing.
5. What enters and what leaves passes the table's gate (`transforms.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from millstream.core.keyspace import after
from millstream.errors import Conflict, FencedRun, RefusedRequest, ServiceError, TooLarge
from millstream.service import staged_txns
from millstream.service.dedup_sessions import FORGOTTEN, DedupSessions
from millstream.service.messages import ENTRY, LIMIT, MEMORY, SESSION, Answer, Change, Decide, Decision, Descriptor, LogRecord, Op, Request
from millstream.service.range_map import point_of
from millstream.service.stores.store_contract import KeyStore
from millstream.service.transforms import Gate

CLOCK = MEMORY + b"clock"
_RESULT = 64 << 10  # bytes of a call's result, which is kept with the session
_ABSENT = object()
NO_POSITION = 0  # of an answer to a request that changed nothing


def next_time(last: int, wall: int) -> int:
    """The time of the next write: the wall clock's, or the last time + 1 if that is later. The last time travels in the log, so time goes on from there after a
    restart and on another node, whatever the wall clock says there.

    >>> next_time(100, wall=90), next_time(101, wall=200)
    (101, 200)
    """
    return max(wall, last + 1)


class TurnView:
    """What transforms see: the keys of one partition, as they are before this request."""

    def __init__(self, machine: PartitionStateMachine, lsn: int) -> None:
        self._machine = machine
        self._changed: dict[bytes, bytes | None] = {}
        #: The partition's clock: milliseconds that never go back.
        self.time = machine.time
        #: The position that this request will have.
        self.lsn = lsn

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if it is not there."""
        raw = self._raw(key)
        return None if raw is None else raw[8:]

    def version(self, key: bytes) -> int:
        """The position of a key's last write; 0 if it is not there."""
        raw = self._raw(key)
        return 0 if raw is None else int.from_bytes(raw[:8], "big")

    def scan(self, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """The entries with start <= key < stop, in order, as this turn sees them."""
        found = self._machine.range(ENTRY + start, after(ENTRY) if stop is None else ENTRY + stop)
        seen: dict[bytes, bytes | None] = {key[1:]: raw[8:] for key, raw in found}
        seen.update((key, value) for key, value in self._changed.items() if start <= key and (stop is None or key < stop))
        return iter(sorted((key, value) for key, value in seen.items() if value is not None))

    def _raw(self, key: bytes) -> bytes | None:
        if key in self._changed:
            value = self._changed[key]
            return None if value is None else self.lsn.to_bytes(8, "big") + value
        return self._machine.raw(ENTRY + key)


class Turn(TurnView):
    """What functions see and may do: also what they have changed themselves."""

    def put(self, key: bytes, value: bytes) -> None:
        self._machine.check_key(key)
        self._changed[key] = value

    def remove(self, key: bytes) -> None:
        self._machine.check_key(key)
        self._changed[key] = None


Function = Callable[[Turn, bytes, bytes], bytes]


class TurnResult(msgspec.Struct):
    """What a turn gave. expanded: rows that were staged before, and are visible with this record."""

    record: LogRecord | None
    answers: list[Answer | ServiceError]
    expanded: list[Change] = []


class PartitionStateMachine:
    """horizon: milliseconds that a session which is not used is remembered."""

    def __init__(self, descriptor: Descriptor, store: KeyStore, functions: Mapping[str, Function], gate: Gate, horizon: int) -> None:
        self._descriptor, self.store, self._functions, self._gate = descriptor, store, functions, gate
        forgotten, clock = (int.from_bytes(store.get(entry) or b"", "big") for entry in (FORGOTTEN, CLOCK))
        self.sessions = DedupSessions(store.scan(SESSION, after(SESSION)), forgotten, horizon)
        self.time = clock  # of the last write
        self.lsn = store.applied  # the last position that was given
        #: Of a store that does not take every value.
        self._check_changes: Callable[[Sequence[Change]], None] | None = getattr(store, "check", None)
        #: Of records under way: the last position of each, and what it changed.
        self._overlay: deque[tuple[int, dict[bytes, bytes | None]]] = deque()
        self._pending: dict[bytes, bytes | None] = {}
        self._promoted: list[tuple[str, int]] = []
        self._expanded: dict[bytes, bytes | None] = {}

    # --- what is seen (rule 1)

    def raw(self, entry: bytes) -> bytes | None:
        found = self._pending.get(entry, _ABSENT)
        if found is not _ABSENT:
            return found  # type: ignore[return-value]
        if self._expanded and entry in self._expanded:
            return self._expanded[entry]
        for _, layer in reversed(self._overlay):
            if entry in layer:
                return layer[entry]
        return self.store.get(entry)

    def range(self, start: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        seen: dict[bytes, bytes | None] = dict(self.store.scan(start, stop))
        for layer in (*(layer for _, layer in self._overlay), self._expanded, self._pending):
            for entry, value in layer.items():
                if start <= entry < stop:
                    seen[entry] = value
        return sorted((entry, value) for entry, value in seen.items() if value is not None)

    def covers(self, key: bytes) -> bool:
        return self._descriptor.covers(point_of(self._descriptor.point, key))

    def check_key(self, key: bytes) -> None:
        if not self.covers(key):
            raise RefusedRequest(f"key {key[:60]!r} belongs to another partition: a function may write keys of its own partition only")

    # --- the turn

    def turn(self, requests: Sequence[Request], wall: int) -> TurnResult:
        """Carries out writes, in order. What earlier turns have given must be applied in the order of their records."""
        first = self.lsn + 1
        answers: list[Answer | ServiceError] = [self._write(request, wall) for request in requests]
        if self.lsn < first:
            return TurnResult(None, answers)
        now = self.time
        pending = self._pending
        for entry, value in self.sessions.changes(now):
            pending[entry] = value
        pending[CLOCK] = now.to_bytes(8, "big")
        record = LogRecord(self._descriptor.id, self._descriptor.term, first, self.lsn, now, list(pending.items()), self._promoted)
        expanded = self._expanded
        self._overlay.append((self.lsn, {**expanded, **pending} if expanded else pending))
        self._pending, self._promoted, self._expanded = {}, [], {}
        return TurnResult(record, answers, list(expanded.items()))

    def applied(self, record: LogRecord) -> None:
        """The store has a record: what it covered is not needed any more."""
        overlay, last = self._overlay, record.last
        while overlay and overlay[0][0] <= last:
            overlay.popleft()

    def _write(self, request: Request, wall: int) -> Answer | ServiceError:
        session = request.session
        if session:
            try:
                known = self.sessions.check(session, request.seq)
            except ServiceError as error:
                return error
            if known is not None:
                return known
        time = self.time = next_time(self.time, wall)
        lsn = self.lsn + 1
        answer: Answer | ServiceError
        try:
            answer = self._execute(request, lsn)
        except ServiceError as error:
            answer = error
            if not session:
                return error
        if not session and answer.lsn == NO_POSITION:  # type: ignore[union-attr]
            answer.lsn = self.lsn  # type: ignore[union-attr]
            return answer
        self.lsn = lsn
        if session:
            self.sessions.note(session, request.seq, request.done, time, answer, lsn)
        return answer

    def _execute(self, request: Request, lsn: int) -> Answer:
        """Rule 3: nothing is changed before nothing can go wrong any more."""
        op = request.op
        changes: list[Change]
        if op is Op.UPSERT or op is Op.REMOVE:
            if request.expect:
                self._check_versions(request)
            changes = self._entries(lsn, self._admit(request, lsn))
            answer = Answer(lsn)
        elif op is Op.STAGE:
            answer, changes = self._stage(request, lsn)
        elif op is Op.DECIDE and request.decide is not None:
            answer, changes = self._decide(lsn, request.decide)
        else:
            answer, changes = self._call(request, lsn)
        self._pending.update(changes)
        return answer

    def read(self, request: Request) -> Answer:
        """Keys as they are committed. Not in a turn: the caller decides when."""
        get, keys = self.store.get, request.keys
        values, versions, size = [], [], 0
        for key in keys:
            raw = get(ENTRY + key)
            if raw is None:
                values.append(b"")
                versions.append(0)
            else:
                size += len(raw) + len(key)
                if size > 2 * LIMIT and len(values):
                    raise TooLarge(
                        f"the values of these {len(keys):,} keys come to more than {2 * LIMIT:,} bytes: ask for fewer keys at once"
                    )
                values.append(self._gate.leave(key, raw[8:]))
                versions.append(int.from_bytes(raw[:8], "big"))
        return Answer(self.store.applied, values, versions)

    def _admit(self, request: Request, lsn: int) -> list[tuple[bytes, bytes | None]]:
        """The rows of a write as the gate lets them in. Without values they are removals."""
        values: Sequence[bytes | None] = request.values or [None] * len(request.keys)
        if self._gate.lets_all_in:
            return list(zip(request.keys, values, strict=True))
        view, enter = TurnView(self, lsn), self._gate.enter
        return [(key, enter(key, value, view)) for key, value in zip(request.keys, values, strict=True)]

    def _entries(self, lsn: int, rows: Iterable[tuple[bytes, bytes | None]]) -> list[Change]:
        version = lsn.to_bytes(8, "big")
        changes: list[Change] = [(ENTRY + key, None if value is None else version + value) for key, value in rows]
        if self._check_changes is not None:
            self._check_changes(changes)
        return changes

    def _check_versions(self, request: Request) -> None:
        if len(request.expect) != len(request.keys):
            raise RefusedRequest(f"{len(request.expect)} expected versions for {len(request.keys)} keys: give one for each key, or none")
        view = TurnView(self, self.lsn)
        found = [view.version(key) for key in request.keys]
        for key, has, wanted in zip(request.keys, found, request.expect, strict=True):
            if has != wanted:
                raise Conflict(f"key {key[:60]!r} has version {has}, not {wanted}: nothing was written", found)

    def _call(self, request: Request, lsn: int) -> tuple[Answer, list[Change]]:
        function = self._functions.get(request.function)
        if function is None:
            known = ", ".join(sorted(self._functions)) or "none"
            raise RefusedRequest(f"this table has no function {request.function!r}; it has: {known}")
        turn, view = Turn(self, lsn), TurnView(self, lsn)
        key = request.keys[0]
        who = f"function {request.function!r} of key {key[:60]!r}"
        try:
            result = function(turn, key, request.argument)
        except ServiceError:
            raise
        except Exception as error:
            raise RefusedRequest(f"{who} raised {type(error).__name__}: {error}") from error
        if not isinstance(result, bytes):
            raise RefusedRequest(f"{who} returned a {type(result).__name__}: the result must be bytes")
        result = self._gate.leave(key, result)
        if len(result) > _RESULT:
            raise TooLarge(f"{who} returned {len(result):,} bytes; {_RESULT:,} are allowed")
        rows, size = [], 0
        for name, value in turn._changed.items():
            if value is not None and not isinstance(value, bytes):
                raise RefusedRequest(f"{who} put a {type(value).__name__} under key {name[:60]!r}: values are bytes")
            rows.append((name, self._gate.enter(name, value, view)))
            size += len(name) + len(rows[-1][1] or b"")
        if size > LIMIT:
            raise TooLarge(f"{who} wrote more than {LIMIT:,} bytes in one turn")
        return Answer(lsn, result=result), self._entries(lsn, rows)

    # --- staged rows

    def _label_state(self, txn: staged_txns.Txn, fence: int) -> staged_txns.LabelState:
        raw = self.raw(staged_txns.label_key(txn.label))
        entry = staged_txns.LabelState() if raw is None else staged_txns.decode_label(raw)
        if fence < entry.fence:
            newer = f"a newer run (fence {entry.fence}) writes as {txn.label!r} now"
            raise FencedRun(f"transaction {txn.text!r}: {newer}; this one (fence {fence}) must stop")
        return entry

    @staticmethod
    def _note(txn: staged_txns.Txn, fence: int, entry: staged_txns.LabelState) -> Change:
        entry.fence = max(entry.fence, fence)
        return staged_txns.label_key(txn.label), staged_txns.encode_label(entry)

    def _stage(self, request: Request, lsn: int) -> tuple[Answer, list[Change]]:
        txn = staged_txns.parse_txn(request.txn)
        if request.expect:
            raise RefusedRequest(f"transaction {txn.text!r}: staged rows cannot expect versions: others may write before it is decided")
        entry = self._label_state(txn, txn.fence)
        if txn.number <= entry.number:
            raise FencedRun(f"transaction {txn.text!r}: number {entry.number} of {txn.label!r} is committed already")
        prefix, version = staged_txns.staged_prefix(request.txn), lsn.to_bytes(8, "big")
        rows = self._admit(request, lsn)
        self._entries(lsn, rows)
        changes: list[Change] = [
            (prefix + version + place.to_bytes(4, "big"), staged_txns.encode_staged(staged_txns.StagedRow(key, value)))
            for place, (key, value) in enumerate(rows)
        ]
        return Answer(lsn), [*changes, self._note(txn, txn.fence, entry)]

    def _decide(self, lsn: int, asked: Decide) -> tuple[Answer, list[Change]]:
        txns = [staged_txns.parse_txn(name) for name in asked.txns]
        if asked.decision is Decision.SWEEP:
            if len(txns) != 1:
                raise RefusedRequest(f"a sweep takes one transaction, which says below what to sweep, and not {len(txns)}")
            return self._sweep(lsn, txns[0], asked.fence, asked.keep)
        if len({txn.label for txn in txns}) < len(txns):
            raise RefusedRequest("transactions that are decided together must have different labels")
        changes: list[Change] = []
        visible: list[tuple[str, list[tuple[bytes, bytes]]]] = []
        answer = Answer(NO_POSITION)
        for txn in txns:
            entry = self._label_state(txn, asked.fence)
            prefix = staged_txns.staged_prefix(txn.text)
            rows = self.range(prefix, after(prefix))
            if asked.decision is Decision.COMMIT:
                if txn.number == entry.number and txn.text != entry.txn:
                    raise RefusedRequest(f"transaction {txn.text!r}: {entry.txn!r} was committed in its place")
                if txn.number <= entry.number:  # committed before: it stays as it is
                    answer.rows.append(0)
                    continue
                if not rows:
                    raise RefusedRequest(f"transaction {txn.text!r} is not staged here")
                entry.number, entry.txn = txn.number, txn.text
                visible.append((txn.text, rows))
            elif asked.decision is Decision.DROP:
                changes += ((staged, None) for staged, _ in rows)
            answer.rows.append(len(rows))
            if asked.decision is not Decision.CHECK or asked.fence > entry.fence:
                changes.append(self._note(txn, asked.fence, entry))
        if changes:
            answer.lsn = lsn
        for name, rows in visible:
            self._promote(name, rows, lsn)
        return answer, changes

    def _sweep(self, lsn: int, below: staged_txns.Txn, fence: int, keep: Sequence[str]) -> tuple[Answer, list[Change]]:
        start, kept = staged_txns.staged_prefix(below.label)[:-1], set(keep)
        changes: list[Change] = []
        checked: set[str] = set()
        for staged, _ in self.range(start, after(start)):
            txn = staged_txns.parse_txn(staged[1 : staged.rindex(b"\0", 0, -12)].decode())
            if txn.label not in checked:
                self._label_state(txn, fence)
                checked.add(txn.label)
            if txn.text not in kept and txn.number < below.number:
                changes.append((staged, None))
        return Answer(lsn if changes else NO_POSITION, rows=[len(changes)]), changes

    def _promote(self, txn: str, rows: Sequence[tuple[bytes, bytes]], lsn: int) -> None:
        """The rows become visible. The log gets the transaction's name only, since a follower has the rows from earlier records."""
        changes = promoted(rows, lsn)
        if any(staged in self._pending for staged, _ in rows):
            self._pending.update(changes)
            return
        self._promoted.append((txn, lsn))
        self._expanded.update(changes)
        for entry, _ in changes:
            self._pending.pop(entry, None)  # an older write of this turn; a younger one comes into the record, which is applied after these


def promoted(rows: Sequence[tuple[bytes, bytes]], lsn: int) -> list[Change]:
    """What staged rows become when they are committed at a position."""
    version = lsn.to_bytes(8, "big")
    changes: list[Change] = []
    for staged, raw in rows:
        row = staged_txns.decode_staged(raw)
        changes.append((ENTRY + row.key, None if row.value is None else version + row.value))
        changes.append((staged, None))
    return changes


def promoted_rows(store: KeyStore, record: LogRecord) -> list[Change]:
    """The rows of a record's transactions, for a replay of the log."""
    found: list[Change] = []
    for txn, lsn in record.promoted:
        prefix = staged_txns.staged_prefix(txn)
        found += promoted(list(store.scan(prefix, after(prefix))), lsn)
    return found
