"""Rows of injected streams on their way into shards, where they are plain Python dictionaries; and what a simulated task is given of them."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from millstream.core import dedup
from millstream.core.arrivals import Arrivals, OperatorInput, wrapped, wrong_time
from millstream.core.dedup import IdRows
from millstream.core.keys import BadKey, key_text, shard_of
from millstream.core.record import CopyingBatch
from millstream.core.topology import Group, Injector, Route, is_expression
from millstream.core.typed import converter
from millstream.core.watermark import Progress, Seen, lags_of
from millstream.engine.program import Arrival, Compiled
from millstream.errors import DefinitionError, HookError, InputError
from millstream.operators.expressions import NotUnderstood, parse
from millstream.sources.schema import converted, millis


def is_rejected(compiled: Compiled, stream: str, row: dict[str, Any]) -> bool:
    """Whether a row is rejected on its way to any consumer. Then it is not deduplicated there (`core/arrivals.py`)."""
    one = Injected(compiled, 1, 0, {})
    one.add(compiled.topology.injectors[stream], row)
    return any(arrival[0] is None for arrivals in one.queued.values() for arrival in arrivals)


class Injected:
    """The injected records of one epoch, by consumer and shard, and what watermark policies want to know of them."""

    def __init__(self, compiled: Compiled, shards: int, now: int, progress: Mapping[str, Progress]) -> None:
        self.compiled = compiled
        self.shards = shards
        self.now = now
        self.progress = progress
        self.queued: dict[tuple[str, int], list[Arrival]] = {}
        self.seen: dict[tuple[str, str, int], Seen] = {}  # stream, first consumer, shard

    def add(self, injector: Injector, row: dict[str, Any]) -> None:
        """Takes a row in."""
        known = self.compiled.columns_of(injector)
        if known is not None:
            row = converted(row, known, injector.name)
        time: Any = self.now if injector.timestamp is None else self._column(injector, row, injector.timestamp, "timestamp")
        if isinstance(time, datetime.datetime):
            time = millis(time)
        if time is not None and time.__class__ is not int:
            raise InputError(f"stream {injector.name!r}: the timestamp {time!r} of {row!r} is neither an int (milliseconds) nor a datetime")
        wrong = wrong_time(time)
        name: Any
        if injector.id is None:
            name = blake2b(repr(sorted(row.items(), key=lambda item: item[0])).encode(), digest_size=8).hexdigest()
        else:
            name = self._column(injector, row, injector.id, "id")
            wrong = wrong or ("its id is null" if name is None else None)
            name = None if name is None else str(name)
        value = row if injector.value is None else self._column(injector, row, injector.value, "value")
        routes = self.compiled.routes_of.get(injector.name, [])
        for route in routes:
            text, no_key = self._key_text(injector, route, row, name)
            if wrong or no_key:
                own: Any = None if injector.id is None else name  # as on Spark, where a rejected record has no id but its own
                batch = CopyingBatch(injector.name, (wrapped(value, wrong or no_key),), (own,))
                self.queued.setdefault((route.computation, 0), []).append((None, time, own, batch, 0))
                continue
            shard = shard_of(text.encode(), self.shards)
            self.queued.setdefault((route.computation, shard), []).append((text, time, name, _batch(injector, value, name), 0))
            if route is routes[0]:
                self.seen.setdefault((injector.name, route.computation, shard), Seen()).add(self._look(injector, row, time))
        if not routes and not wrong:
            self.seen.setdefault((injector.name, "", 0), Seen()).add(self._look(injector, row, time))

    def _key_text(self, injector: Injector, route: Route, row: dict[str, Any], name: str | None) -> tuple[str, str]:
        """The text of a row's key for a consumer; or, behind it, why there is none."""
        if isinstance(route.key, tuple):
            parts = [self._column(injector, row, k, "key") for k in route.key]
            key: Any = tuple(parts) if route.key else name
            if not route.key and name is None:
                return "", ""  # anywhere will do
        else:
            key = self._column(injector, row, route.key, "key")
            parts = [key]
        if any(part is None for part in parts):
            return "", f"its key ({route.key!r}) is null"
        try:
            return key_text(key), ""
        except BadKey as error:
            raise InputError(
                f"stream {injector.name!r}, key {route.key!r} of computation {route.computation!r}: {error} (row {row!r})"
            ) from error

    def _look(self, injector: Injector, row: dict[str, Any], time: Any) -> Seen:
        """What the injector's watermark policy wants to know of one row."""
        policy = injector.watermark
        mark = self._column(injector, row, policy.mark_column, "watermark") if policy.mark_column else None
        one = Seen(1, time, None if policy.sub_column else mark)
        if policy.sub_column:
            sub = self._column(injector, row, policy.sub_column, "sub-source")
            if sub is not None:
                one.subs = {sub: (time, mark)}
        newest = self.progress.get(injector.name, Progress()).newest
        if policy.wants_lags and newest is not None:
            one.lags = lags_of(np.array([newest - time]))
        return one

    def _column(self, injector: Injector, row: dict[str, Any], column: Any, what: str) -> Any:
        """A column of a row, or an SQL expression on it; one that only Spark understands is what the test says in Python."""
        if not isinstance(column, str):
            raise DefinitionError(
                f"stream {injector.name!r}: without Spark its {what} must be a column name or SQL text, not a Spark Column"
            )
        if column in row:
            return row[column]
        if column in self.compiled.program.expressions:
            return self.compiled.program.expressions[column](row)
        if is_expression(column):
            try:
                return parse(column).row(row)
            except NotUnderstood as error:
                raise DefinitionError(
                    f"stream {injector.name!r}: its {what} is the SQL text {column!r}, which only Spark can work out ({error.why}). Say in Python what it "
                    f"means, with LocalRunner(..., expressions={{{column!r}: lambda row: ...}})."
                ) from None
            except HookError as error:
                raise InputError(f"stream {injector.name!r}, {what}: {error} (row {row!r})") from error
        raise InputError(f"stream {injector.name!r}: {row!r} has no column {column!r}, which is its {what}")

    def seen_in_all(self) -> dict[str, Seen]:
        """What came in on every stream."""
        found = {name: Seen() for name in self.compiled.topology.injectors}
        for (stream, _, _), seen in self.seen.items():
            found[stream].add(seen)
        return found

    def seen_by(self, group: Group, shard: int) -> dict[str, Seen]:
        """What one task sees of it."""
        return {stream: seen for (stream, computation, at), seen in self.seen.items() if at == shard and computation in group.computations}


class TypedBatch(CopyingBatch):
    """Rows of an injector whose values are of a class."""

    __slots__ = ("_convert",)

    def __init__(self, stream: str, values: Sequence[Any], ids: Sequence[str], typed: type) -> None:
        super().__init__(stream, values, ids)
        self._convert = converter(typed, stream)

    def value(self, index: int) -> Any:
        return self._convert(super().value(index))


def _batch(injector: Injector, value: Any, name: str) -> CopyingBatch:
    if injector.typed is None:
        return CopyingBatch(injector.name, (value,), (name,))
    return TypedBatch(injector.name, (value,), (name,), injector.typed)


class Handed(NamedTuple):
    """A production that another task handed over, and that task's unit."""

    unit: int
    arrival: Arrival


class ListInputs:
    """The records of one simulated task, in lists, in any order. Implements the task's Inputs."""

    def __init__(
        self,
        compiled: Compiled,
        injected: Injected,
        group: Group,
        shard: int,
        handed: Mapping[str, Sequence[Handed]],
        dice: random.Random,
        ordered: bool,
    ) -> None:
        self._compiled = compiled
        self._seen = injected.seen_by(group, shard)
        self._handed = handed
        self._injected = {name: list(injected.queued.get((name, shard), ())) for name in group.computations}
        self._rows = {name: [one.arrival for one in handed.get(name, ())] for name in group.computations}
        self._dice = dice
        self._ordered = ordered

    def consumed(self) -> list[int]:
        return sorted({one.unit for some in self._handed.values() for one in some})

    def take(self, stored: Iterable[tuple[Route, Any]]) -> None:
        for route, table in stored:
            columns = [table.column(name).to_pylist() for name in ("key", "ts", "id", "body")]
            self._rows[route.computation] += [self._compiled.arrival(route.stream, *row) for row in zip(*columns, strict=True)]

    def is_empty(self) -> bool:
        return not self._seen and not any(self._injected.values()) and not any(self._rows.values())

    def seen(self, newest: Mapping[str, int | None]) -> dict[str, Seen]:
        return self._seen

    def ids(self, computation: str, stream: str) -> IdRows:
        rows = self._identified(computation, stream)
        return ListIds([f"{row[0]}\x1f{row[2]}".encode() for row in rows], [row[1] for row in rows])

    def arrivals(self, computation: str, keep: Mapping[str, Any]) -> Arrivals | OperatorInput:
        dropped = {
            id(row)
            for stream, mask in keep.items()
            for row, stays in zip(self._identified(computation, stream), mask.tolist(), strict=True)
            if not stays
        }
        rows = [row for row in self._injected[computation] if id(row) not in dropped] + self._rows[computation]
        self._dice.shuffle(rows)
        arrivals = Arrivals.of(rows, self._ordered)
        if not self._compiled.topology.by_name[computation].in_columns:
            return arrivals
        from millstream.operators.rows import rows_of  # it needs pyarrow

        found = rows_of(arrivals)  # every attempt takes its own path, and all must come to the same
        found.one_by_one, found.by_lot = self._dice.random() < 0.5, True
        return found

    def _identified(self, computation: str, stream: str) -> list[Arrival]:
        return [row for row in self._injected[computation] if row[3].stream == stream and row[0] is not None]


class ListIds:
    """The names of some rows, in lists. Implements deduplication's IdRows."""

    def __init__(self, names: list[bytes], times: list[int]) -> None:
        self._names, self._times = names, times
        self.hashes = np.array([int.from_bytes(blake2b(name, digest_size=8).digest(), "big") for name in names], np.uint64)

    def ids(self, positions: Any) -> list[bytes]:
        return [self._names[at] for at in positions.tolist()]

    def packed(self, positions: Any) -> bytes:
        return dedup.pack(self.ids(positions))

    def in_order(self, positions: Any) -> Any:
        return np.array(sorted(positions.tolist(), key=lambda at: (self._times[at], at)), np.int64)
