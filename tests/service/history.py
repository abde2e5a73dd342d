"""A history of what clients asked and were answered, and a check that it is linearizable; and a proxy that cuts connections.

Every write of a partition has a position of its own, and every answer says where it is from. So there is no search, as in a checker that knows only values:
a history is linearizable if these hold.

    H1  One position is one write. A position has one value, whoever says it.
    H2  What is read was written: by a write that was answered with this version, or by one whose outcome nobody knows, and once only.
    H3  A read at position n sees the last write of its key up to n.
    H4  Positions follow real time: what began after an answer is behind that answer (a write), or not before it (a read). Per partition; and per key.
    H5  A conditional write was done on the version that it expected.
    H6  A counter is the sum of what was added to it: all that was answered, and of those with an unknown outcome each once or not at all.
    H7  What was refused is never seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from millstream.errors import Conflict, MillstreamError, RefusedRequest, SessionExpired, UnknownOutcome
from millstream.service.client import AsyncClient, to_bytes
from millstream.service.proto import service_pb2 as pb

OK, UNKNOWN, REFUSED, OPEN = "ok", "unknown", "refused", "open"


@dataclass
class Operation:
    """One operation of one client. begin, end: when, by a count that all clients share. An end of None: never, for all we know."""

    client: int
    kind: str  # get | put | add
    key: bytes
    begin: int
    value: bytes | int | None = None  # what was written (put), added (add), or seen (get; None: nothing)
    expect: int | None = None
    end: int | None = None
    outcome: str = OPEN
    version: int = 0  # of the key: seen, or written
    lsn: int | None = None  # of the partition
    result: int | None = None  # of an add: the sum
    partition: int = 0

    @property
    def writes(self) -> bool:
        return self.kind != "get"


@dataclass
class Metrics:
    """All operations, in the order in which they began."""

    operations: list[Operation] = field(default_factory=list)
    _count: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def begin(self, client: int, kind: str, key: bytes, value: bytes | int | None = None, expect: int | None = None) -> Operation:
        made = Operation(client, kind, key, next(self._count), value, expect)
        self.operations.append(made)
        return made

    def end(self, one: Operation, outcome: str = OK) -> None:
        """It was answered; or given up, with an unknown outcome: then it may be done at any time from its beginning on."""
        one.outcome = outcome
        one.end = next(self._count) if outcome != UNKNOWN else None

    def answered(self) -> list[Operation]:
        return [one for one in self.operations if one.outcome == OK]

    def problems(self) -> list[str]:
        return list(problems(self.operations))

    def check(self) -> None:
        found = self.problems()
        assert not found, "\n".join(found[:20])


def problems(operations: Iterable[Operation]) -> Iterator[str]:
    """What is wrong with a history."""
    every = list(operations)
    partitions: dict[int, list[Operation]] = defaultdict(list)
    keys: dict[tuple[int, bytes], list[Operation]] = defaultdict(list)
    homes = {one.key: one.partition for one in every if one.partition}
    for one in every:
        home = one.partition or homes.get(one.key, 0)
        partitions[home].append(one)
        keys[home, one.key].append(one)
    for home, here in partitions.items():
        yield from _positions(home, here)
        yield from _real_time(f"partition {home}", [(one.begin, one.end, one.lsn, one.writes, one) for one in here if one.outcome == OK])
    for (_, key), here in keys.items():
        yield from _key(key, here)


def _positions(home: int, here: list[Operation]) -> Iterator[str]:
    """H1: no two writes have one position."""
    by_lsn: dict[int, Operation] = {}
    for one in here:
        if one.writes and one.outcome == OK and one.lsn is not None:
            other = by_lsn.setdefault(one.lsn, one)
            if other is not one:
                yield f"H1: partition {home}, position {one.lsn} is two writes: {other} and {one}"


def _real_time(what: str, points: list[tuple[int, int | None, int | None, bool, Operation]]) -> Iterator[str]:
    """H4, by a sweep: the highest position that was answered so far, at every beginning."""
    events: list[tuple[int, bool, int, bool, Operation]] = []
    for begin, end, position, writes, one in points:
        if position is not None:
            events.append((begin, True, position, writes, one))
            if end is not None:
                events.append((end, False, position, writes, one))
    highest, by, floors = -1, None, {}
    for _, begins, position, _, one in sorted(events, key=lambda event: event[0]):
        if begins:
            floors[id(one)] = (highest, by)
        elif position > highest:
            highest, by = position, one
    for _, _, position, writes, one in points:
        floor, earlier = floors.get(id(one), (-1, None))
        if position is not None and (position < floor or (writes and position == floor)):
            yield f"H4: {what} goes back in time: {one} is at {position}, and before it began there was {earlier} at {floor}"


def _key(key: bytes, here: list[Operation]) -> Iterator[str]:
    done = [one for one in here if one.outcome == OK]
    writes = {one.version: one for one in done if one.writes}
    adds = any(one.kind == "add" for one in here)
    unknown = [one for one in here if one.writes and one.outcome in (UNKNOWN, OPEN)]
    refused = {one.value for one in here if one.kind == "put" and one.outcome == REFUSED}
    values: dict[int, Any] = {}

    def says(version: int, value: Any, one: Operation) -> Iterator[str]:
        if values.setdefault(version, value) != value:
            yield f"H1: key {key!r}, version {version} is {values[version]!r} and also {value!r} ({one})"

    for one in done:
        if one.writes:
            yield from says(one.version, one.result if one.kind == "add" else one.value, one)
    seen_by: dict[int, Operation] = {}
    for one in done:
        if one.kind == "get":
            if one.version == 0:
                if one.value is not None:
                    yield f"H2: key {key!r} is not there and has a value: {one}"
                continue
            yield from says(one.version, one.value, one)
            first = seen_by.setdefault(one.version, one)
            if (one.end or 0) < (first.end or 0):
                seen_by[one.version] = one
    yield from _unknown_ones(key, writes, seen_by, values, unknown, refused, adds)
    versions = sorted(values)
    for one in done:  # H3
        if one.kind == "get" and one.lsn is not None:
            between = [version for version in versions if one.version < version <= one.lsn]
            if between:
                yield f"H3: key {key!r}: {one} does not see version {between[-1]}"
            if one.version > one.lsn:
                yield f"H3: key {key!r}: {one} sees what is behind its position"
    for one in done:  # H5
        if one.expect is not None and one.writes:
            if one.expect >= one.version or (one.expect and one.expect not in values and not unknown):
                yield f"H5: key {key!r}: {one} expected a version that never was before it"
            between = [version for version in versions if one.expect < version < one.version]
            if between:
                yield f"H5: key {key!r}: {one} was done though version {between[0]} was there"
    points = [(one.begin, one.end, one.version, one.writes, one) for one in done]
    yield from _real_time(f"key {key!r}", points)
    if adds:
        yield from _counter(key, values, writes, unknown)


def _unknown_ones(
    key: bytes,
    writes: dict[int, Operation],
    seen_by: dict[int, Operation],
    values: dict[int, Any],
    unknown: list[Operation],
    refused: set[Any],
    adds: bool,
) -> Iterator[str]:
    """H2 and H7, for versions that no answer named."""
    if adds:
        return  # their sum is checked: H6
    by_value = {one.value: one for one in unknown}
    used: dict[Any, int] = {}
    for version, reader in sorted(seen_by.items()):
        if version in writes:
            continue
        value = values[version]
        if value in refused:
            yield f"H7: key {key!r}: {value!r} was refused, and is seen as version {version} by {reader}"
            continue
        author = by_value.get(value)
        if author is None:
            yield f"H2: key {key!r}: nobody wrote {value!r}, which is version {version} for {reader}"
            continue
        if used.setdefault(value, version) != version:
            yield f"H2: key {key!r}: {value!r} was written once, and is version {used[value]} and version {version}"
        if reader.end is not None and author.begin > reader.end:
            yield f"H2: key {key!r}: {reader} sees what was written later, by {author}"
        if author.expect is not None:
            between = [other for other in values if author.expect < other < version]
            if between or author.expect >= version:
                yield f"H5: key {key!r}: {author} is seen as version {version}, and did not find version {author.expect}"


def _counter(key: bytes, values: dict[int, Any], writes: dict[int, Operation], unknown: list[Operation]) -> Iterator[str]:
    """H6. What is added is positive, so what is over the answered sum only grows."""
    answered, over = 0, 0
    most = sum(int(one.value or 0) for one in unknown)
    for version in sorted(values):
        if version in writes:
            answered += int(writes[version].value or 0)
        extra = int(values[version]) - answered
        if extra < over or extra > most:
            yield (
                f"H6: key {key!r}, version {version} is {values[version]}; what was answered comes to {answered}, and what nobody knows to between "
                f"{over} and {most}"
            )
            return
        over = extra


# --- clients that write it down


class NotingClient:
    """A client whose operations come into a history. One at a time."""

    def __init__(self, history: Metrics, number: int, addresses: str | list[str], timeout: str = "10s") -> None:
        self._history, self.number = history, number
        self.inner = AsyncClient(addresses, "t", timeout=timeout)
        self._values = itertools.count(1)
        self.again = 0  # answers that were given before

    async def close(self) -> None:
        await self.inner.close()

    async def get(self, key: bytes, counter: bool = False) -> Operation:
        one = self._history.begin(self.number, "get", key)
        try:
            found = (await self.inner.get_many([key]))[0]
        except MillstreamError:
            self._history.end(one, REFUSED)
            return one
        except asyncio.CancelledError:
            self._history.end(one, REFUSED)
            raise
        one.version, one.lsn, one.partition = found.version, found.lsn, found.partition
        one.value = int.from_bytes(found.value, "big", signed=True) if counter and found.value is not None else found.value
        self._history.end(one)
        return one

    async def put(self, key: bytes, expect: int | None = None) -> Operation:
        value = b"%d-%d" % (self.number, next(self._values))
        one = self._history.begin(self.number, "put", key, value, expect)
        asked = pb.UpsertRequest(keys=[key], values=[value], expect=[] if expect is None else [expect])
        return await self._write(one, "Upsert", asked, key)

    async def add(self, key: bytes, amount: int = 1) -> Operation:
        one = self._history.begin(self.number, "add", key, amount)
        return await self._write(one, "Call", pb.CallRequest(function="add", key=key, argument=to_bytes(str(amount))), key)

    async def _write(self, one: Operation, name: str, asked: Any, key: bytes) -> Operation:
        try:
            reply = await self.inner._writer.write(name, asked, key)
        except (Conflict, RefusedRequest):
            self._history.end(one, REFUSED)
            return one
        except (MillstreamError, asyncio.CancelledError) as error:
            perhaps = isinstance(error, (UnknownOutcome, SessionExpired, asyncio.CancelledError))
            self._history.end(one, UNKNOWN if perhaps else REFUSED)
            if isinstance(error, asyncio.CancelledError):
                raise
            return one
        one.version = one.lsn = reply.at.lsn
        one.partition = reply.at.partition
        self.again += reply.again
        if name == "Call":
            one.result = int(reply.result)
        self._history.end(one)
        return one


async def mixed(client: NotingClient, keys: int, seed: int, until: asyncio.Event, most: int = 1 << 30) -> None:
    """Random operations on a few keys, until told to end: reads, writes, conditional writes, additions."""
    chance = random.Random(seed)
    known: dict[bytes, int] = {}
    for _ in range(most):
        if until.is_set():
            return
        key, what = b"r%d" % chance.randrange(keys), chance.random()
        if what < 0.3:
            known[key] = (await client.get(key)).version
        elif what < 0.55:
            await client.put(key)
        elif what < 0.7:
            await client.put(key, expect=known.get(key, 0))
        elif what < 0.85:
            await client.add(b"c%d" % chance.randrange(keys))
        else:
            await client.get(b"c%d" % chance.randrange(keys), counter=True)


async def read_all(history: Metrics, addresses: str | list[str], keys: int) -> None:
    """Everything is read once more, by somebody new: what was answered must be there."""
    client = NotingClient(history, 999, addresses, "20s")
    for number in range(keys):
        for key, counter in ((b"r%d" % number, False), (b"c%d" % number, True)):
            assert (await client.get(key, counter)).outcome == OK
    await client.close()


class CuttingProxy:
    """A way to a node that breaks: at random, or when told. What was sent may have arrived, and an answer may be lost."""

    def __init__(self, seed: int = 0, chance: float = 0.0) -> None:
        self.chance = chance
        self.target = 0
        self.cuts = 0
        self.is_away = False
        self._random = random.Random(seed)
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()

    def cut(self) -> None:
        """All connections, now."""
        for writer in list(self._open):
            writer.transport.abort()
        self._open.clear()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_away:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, back}
        await asyncio.gather(self._pipe(reader, back, writer), self._pipe(there, writer, back))
        self._open -= {writer, back}

    async def _pipe(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, other: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while data := await source.read(1 << 16):
                breaks = self._random.random() < self.chance
                if not breaks or self._random.random() < 0.5:  # it arrives, or it does not; then nothing more comes either way
                    sink.write(data)
                    await sink.drain()
                if breaks:
                    self.cuts += 1
                    with contextlib.suppress(OSError):
                        await asyncio.wait_for(sink.drain(), 1)
                    await asyncio.sleep(0.002)  # what was passed on is on its way
                    break
        for writer in (sink, other):
            writer.transport.abort()
