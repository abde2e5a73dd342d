"""The contracts of logs (L1 to L7) and stores (S1 to S4) as checks that run against any of them, also against your own.

Each check does random things, by a seed, to the log or store and to a dumb model of it (a list, a dict), and compares. What cannot be seen from outside is not
checked: what a power cut leaves, and damage to bytes. Raises AssertionError with the rule, the seed and what was seen.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from millstream.errors import DamageError, Fenced, UnknownOutcome
from millstream.service.logs.log_contract import Log, SharedLog
from millstream.service.messages import Change, LogRecord
from millstream.service.stores.store_contract import KeyStore, Pinned, SharedStore

OpenLog = Callable[[], SharedLog]
OpenShared = Callable[[], SharedStore]
_FIRST = 1_000  # the partition of the first seed; each seed has its own


async def check_log(open_log: OpenLog, *, seeds: Iterable[int] = range(10), steps: int = 40, shared: bool = False) -> None:
    """Checks a log against L1 to L7, as far as can be seen from outside. All of it happens in the running event loop.

    open_log: opens it, always the same one, as a node does when it starts. shared: two may be open at once, as for logs that another node can take over.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from millstream.service.logs.disk import disk
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asyncio.run(check_log(lambda: disk(1 << 16).open(Path(folder)), seeds=range(2)))
    """
    for seed in seeds:
        check = _LogCheck(open_log, seed, shared)
        try:
            await check.run(steps)
        finally:
            await check.close()


class _Check:
    """What both checks have: a seed, a partition of its own, and a way to fail."""

    def __init__(self, seed: int) -> None:
        self._seed, self._random, self._partition = seed, random.Random(seed), _FIRST + seed

    def _fail(self, rule: str, what: str) -> None:
        raise AssertionError(f"{rule} does not hold (seed {self._seed}): {what}")

    def _same(self, rule: str, what: str, found: object, expected: object) -> None:
        if found != expected:
            self._fail(rule, f"{what} is {found!r:.2000} instead of {expected!r:.2000}")


class _LogCheck(_Check):
    """One partition's log beside a list of what it has confirmed."""

    def __init__(self, open_log: OpenLog, seed: int, shared: bool) -> None:
        super().__init__(seed)
        self._open, self._is_shared = open_log, shared
        self._opened: list[SharedLog] = []
        self._kept: list[LogRecord] = []
        self._trimmed = 0
        self._term = 0
        self._log = self._another()

    def _another(self) -> Log:
        shared = self._open()
        self._opened.append(shared)
        return shared.of(self._partition)

    @property
    def _last(self) -> int:
        return self._kept[-1].last if self._kept else 0

    async def run(self, steps: int) -> None:
        await self._reseal()
        moves: list[Callable[[], Awaitable[None]]] = [self._append, self._append, self._append, self._append, self._read, self._read]
        moves += [self._late, self._reseal, self._confirm, self._trim, self._reopen, self._seal_beside_appends]
        if self._is_shared:
            moves += [self._take_over] * 2
        for _ in range(steps):
            await self._random.choice(moves)()
        await self._reopen()
        await self._compare(self._log, self._trimmed)

    async def close(self) -> None:
        while self._opened:
            await self._opened.pop().close()

    def _records(self, count: int) -> list[LogRecord]:
        found, last, chance = [], self._last, self._random
        for _ in range(count):
            size = chance.choice([1, 1, 2, 5])
            changes: list[Change] = [
                (b"K%d" % chance.randrange(50), chance.choice([None, chance.randbytes(chance.choice([0, 3, 2_000]))])) for _ in range(size)
            ]
            found.append(LogRecord(self._partition, self._term, last + 1, last + size, self._random.randrange(1 << 40), changes))
            last += size
        return found

    async def _append(self) -> None:
        records = self._records(self._random.randint(1, 6))
        for outcome in await _outcomes(self._log.append(record) for record in records):
            self._same("L1", f"the outcome of an append of the highest term, {self._term},", outcome, None)
        self._kept += records

    async def _read(self) -> None:
        await self._compare(self._log, self._random.randint(0, self._last))

    async def _compare(self, log: Log, after: int) -> None:
        try:
            found = [record async for record in log.read(after)]
        except DamageError as error:
            if after >= self._trimmed:
                self._fail("L2", f"positions behind {after} cannot be read, though only {self._trimmed} were trimmed: {error}")
            return
        expected = [record for record in self._kept if record.last > after]
        if found != expected:
            positions = ([(r.first, r.last) for r in found], [(r.first, r.last) for r in expected])
            self._fail("L2, L4", f"behind {after} there is {positions[0]} instead of {positions[1]}, or their contents differ")

    async def _reseal(self) -> None:
        self._term += self._random.randint(1, 3)
        self._check_end(await self._log.seal(self._term))

    def _check_end(self, end: int) -> None:
        self._same("L5", f"the last position, as seal({self._term}) says it,", end, self._last)

    async def _late(self) -> None:
        """Lower terms are refused, in all they ask."""
        term = self._random.randint(0, self._term - 1)
        await self._expect_fenced(self._log, term)
        await self._expect_refusal("L5", f"seal({term})", self._log.seal(term))

    async def _expect_fenced(self, log: Log, term: int) -> None:
        (record,) = self._records(1)
        record.term = term
        await self._expect_refusal("L6", f"confirm({term})", log.confirm(term))
        await self._expect_refusal("L1", f"an append of term {term}", log.append(record))

    async def _expect_refusal(self, rule: str, what: str, asked: Awaitable[Any]) -> None:
        (outcome,) = await _outcomes([asked])
        if not isinstance(outcome, Fenced):
            self._fail(rule, f"{what} behind seal({self._term}) ended with {outcome!r} instead of Fenced")

    async def _confirm(self) -> None:
        (outcome,) = await _outcomes([self._log.confirm(self._term)])
        self._same("L6", f"the outcome of confirm({self._term}), of the highest term,", outcome, None)

    async def _trim(self) -> None:
        upto = self._random.randint(0, self._last)
        await self._log.trim(upto)
        self._trimmed = max(self._trimmed, upto)

    async def _reopen(self) -> None:
        await self.close()
        self._log = self._another()
        await self._reseal()
        await self._compare(self._log, self._trimmed)

    async def _seal_beside_appends(self) -> None:
        """One process seals while appends of the term before are under way."""
        await self._settle(self._log, self._log)

    async def _take_over(self) -> None:
        """Another process seals while this one appends; then it is asked whether it noticed."""
        old, before = self._log, self._term
        self._log = self._another()
        await self._settle(old, self._log)
        await self._expect_fenced(old, before)
        await self._opened.pop(0).close()

    async def _settle(self, old: Log, new: Log) -> None:
        """Appends of an old term are under way while a new one is sealed: each is there for all or for none, and none comes behind the end."""
        records = self._records(self._random.choice([0, 1, 5, 40]))
        outcomes: list[Any] = []

        async def go_on() -> None:
            while len(outcomes) < len(records) and not any(outcomes):
                many = self._random.randint(1, 4)
                outcomes.extend(await _outcomes(old.append(record) for record in records[len(outcomes) : len(outcomes) + many]))

        under_way = asyncio.ensure_future(go_on())
        if self._random.randrange(4):
            for _ in range(self._random.randrange(4)):
                await asyncio.sleep(0)
        else:
            await under_way
        self._term += 1
        end = await new.seal(self._term)
        await under_way
        there = [record for record in records if record.last <= end]
        for record, outcome in zip(records, outcomes, strict=False):
            if outcome is None and record not in there:
                self._fail(
                    "L1", f"an append of term {record.term} was confirmed behind seal({self._term}), which says that {end} is the end"
                )
            if isinstance(outcome, Fenced) and record in there:
                self._fail("L1", f"position {record.first} was refused, and is there")
            if outcome is not None and not isinstance(outcome, (Fenced, UnknownOutcome)):
                self._fail("L3", f"an append ended with {outcome!r}")
        self._kept.extend(there)
        self._check_end(end)
        await self._compare(new, self._trimmed)


async def _outcomes(asked: Iterable[Awaitable[Any]]) -> list[Any]:
    """What becomes of calls: None, or an error. A number (of a seal) counts as None would."""
    found = await asyncio.gather(*asked, return_exceptions=True)
    return [outcome if isinstance(outcome, BaseException) else None for outcome in found]


def _some_bytes(chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice([0, 1, 8, 8, 300]))


def check_store(
    open_store: OpenShared, *, seeds: Iterable[int] = range(10), steps: int = 60, values: Callable[[random.Random], bytes] = _some_bytes
) -> None:
    """Checks a store against S1 to S4, as far as can be seen from outside.

    open_store: opens it, always the same one, as a node does when it starts. values: makes a value, for stores that do not take any.

    >>> from pathlib import Path
    >>> from millstream.service.stores.memory import memory
    >>> check_store(lambda: memory().open(Path("unused")), seeds=range(2))
    """
    for seed in seeds:
        check = _StoreCheck(open_store, seed, values)
        try:
            for _ in range(steps):
                check.step()
        finally:
            check.close()


class _Break(Exception):
    """What an iterator raises that ends too early."""


class _StoreCheck(_Check):
    """One partition's store beside a dict, and every dict that it ever was."""

    def __init__(self, open_store: OpenShared, seed: int, values: Callable[[random.Random], bytes]) -> None:
        super().__init__(seed)
        self._open, self._values = open_store, values
        self._model: dict[bytes, bytes] = {}
        self._applied = 0
        self._history: dict[int, dict[bytes, bytes]] = {0: {}}
        self._pins: list[tuple[Pinned, dict[bytes, bytes], int]] = []
        self._shared = open_store()
        self._store: KeyStore = self._shared.of(self._partition)
        neighbour = self._shared.of(self._partition + 500_000)
        self._neighbour = {b"Kneighbour": values(self._random)}
        neighbour.replace(self._neighbour.items(), 1)
        long = b"Klong" + b"x" * 600
        self._keys = [b"K", b"K\0", b"K\xff", b"L", b"M1", b"S\0\0", b"T1", b"\xff\xff", long, long + b"a", long + b"\0", b"K" + b"y" * 470]
        self._keys += [b"K%d" % number for number in range(20)]

    def step(self) -> None:
        moves = [self._apply] * 5 + [self._get] * 2 + [self._scan] * 2 + [self._pin, self._look_at_pins, self._look_at_pins, self._unpin]
        moves += [self._replace, self._break_off, self._reopen, self._look_around]
        self._random.choice(moves)()
        self._same("S1", "what it says is applied", self._store.applied, self._applied)

    def close(self) -> None:
        for pinned, _, _ in self._pins:
            pinned.close()
        self._pins = []
        self._shared.close()

    def _moved(self) -> int:
        self._applied += self._random.randint(1, 3)
        self._history[self._applied] = dict(self._model)
        return self._applied

    def _apply(self) -> None:
        changes: list[Change] = [
            (self._random.choice(self._keys), None if self._random.random() < 0.3 else self._values(self._random))
            for _ in range(self._random.choice([0, 1, 3, 40]))
        ]
        for key, value in changes:
            if value is None:
                self._model.pop(key, None)
            else:
                self._model[key] = value
        upto = self._moved()
        self._store.apply(changes, upto)

    def _get(self) -> None:
        for key in [*self._random.sample(self._keys, 5), b"Kabsent"]:
            self._same("S2", f"{key[:40]!r}", self._store.get(key), self._model.get(key))

    def _bounds(self) -> tuple[bytes, bytes]:
        ends = [*self._keys, b"", b"\xff" * 3, b"K1" * 300]
        return self._random.choice(ends), self._random.choice(ends)

    def _scan(self) -> None:
        self._compare("S2", self._store, self._model, *self._bounds())

    def _compare(self, rule: str, store: KeyStore | Pinned, model: dict[bytes, bytes], start: bytes, stop: bytes) -> None:
        found = list(store.scan(start, stop))
        expected = [(key, model[key]) for key in sorted(model) if start <= key < stop]
        self._same(rule, f"what lies from {start[:40]!r} to {stop[:40]!r}", found, expected)

    def _pin(self) -> None:
        self._pins.append((self._store.pin(), dict(self._model), self._applied))

    def _look_at_pins(self) -> None:
        for pinned, model, applied in self._pins:
            self._same("S3", "the position of a pin", pinned.applied, applied)
            self._compare("S3", pinned, model, *self._bounds())
            key = self._random.choice(self._keys)
            self._same("S3", f"{key[:40]!r} as of {applied}", pinned.get(key), model.get(key))
        if self._pins:  # beside changes
            pinned, model, applied = self._random.choice(self._pins)
            got: list[tuple[bytes, bytes]] = []
            scanned: list[tuple[bytes, bytes]] = []
            for moving, into in ((pinned.entries(), got), (pinned.scan(b"", b"\xff" * 9), scanned)):
                for number, entry in enumerate(moving):
                    into.append(entry)
                    if number % 7 == 3:
                        self._apply()
            if sorted(got) != sorted(model.items()) or scanned != sorted(model.items()):
                self._fail("S3", f"what is pinned at {applied} differs when it is gone through beside changes")

    def _unpin(self) -> None:
        if self._pins:
            self._pins.pop(self._random.randrange(len(self._pins)))[0].close()

    def _replace(self) -> None:
        self._model = {key: self._values(self._random) for key in self._random.sample(self._keys, self._random.randrange(10))}
        upto = self._moved()
        self._store.replace(iter(list(self._model.items())), upto)

    def _break_off(self) -> None:
        def entries() -> Iterable[tuple[bytes, bytes]]:
            yield b"Kbroken", self._values(self._random)
            raise _Break

        try:
            self._store.replace(entries(), self._applied + 1)
        except _Break:
            pass
        self._compare("S1", self._store, self._model, b"", b"\xff" * 9)

    def _reopen(self) -> None:
        durable = self._store.durable
        self.close()
        self._shared = self._open()
        self._store = self._shared.of(self._partition)
        found = self._store.applied
        if found not in self._history or (durable and found != self._applied):
            self._fail("S4", f"after it was opened again {found} is applied, and {self._applied} was")
        self._applied, self._model = found, dict(self._history[found])
        self._compare("S4", self._store, self._model, b"", b"\xff" * 9)

    def _look_around(self) -> None:
        other = self._shared.of(self._partition + 500_000)
        if dict(other.scan(b"", b"\xff" * 9)) != (self._neighbour if other.applied else {}):
            self._fail("S2", "a partition sees what belongs to another")
