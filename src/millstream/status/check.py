"""Are the views of a checkpoint right? All documents are mapped again, at one manifest, and compared with what views and joins keep.

    1. *Stating*: for every shard of every sender, its rows are read in order and mapped. What they give is cut by the consumer's shard.
    2. *Judging*: for every shard of every consumer, what it was given, sorted by group, is merged with its rows, and each group compared.

Rules
1. Both are streams: memory holds one group with its contributions, and what sorting holds. That is Spark's, on disk where it must; or, locally, all that is
   given, which is for small checkpoints.
2. What is not complete (a view that is being filled, messages on their way over a strong edge) is not judged, and it is said why.
3. A sample is of groups, by hash: in those everything is compared.
4. The first differences are told, and all are counted. Groups that cannot be read are all named: a repair must know them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from millstream.core.keys import key_of, shard_of
from millstream.core.keyspace import ROW, SUB, NoEntries, Store, after, decode_row, sub_prefix
from millstream.core.statekind import StateKind
from millstream.core.topology import WINDOW
from millstream.engine.evolution import reconciled
from millstream.engine.program import Compiled, Program
from millstream.errors import BY_NAME, DefinitionError, MillstreamError, travelling_name
from millstream.state.manifest import Manifest
from millstream.state.manifest_log import ManifestLog
from millstream.state.memory_storage import MemoryStore
from millstream.state.queries import Reader, maps_prefix
from millstream.state.reader import AsOf, CommittedState
from millstream.state.storage import open_storage
from millstream.views import check
from millstream.views.aggregate import Aggregate
from millstream.views.check import Discrepancy, Expected
from millstream.views.dsl import TABLE
from millstream.views.join import Join
from millstream.views.operator import ViewOperator

Stated = tuple[int, bytes, bytes, bytes]  # the part that judges it, group, origin, and what is given
Given = tuple[bytes, bytes, bytes]  # the same for one part
FIRST = 20  # differences that are told, of each part and in all


class CheckPlan(msgspec.Struct):
    """What is checked against what, at a manifest. consumers: views and joins that are judged; senders: whose rows are mapped. skipped: what is not judged,
    and why."""

    manifest: Manifest
    consumers: list[str]
    senders: list[str]
    skipped: dict[str, str]
    sample: float = 1.0

    @property
    def shards(self) -> int:
        """Of every computation."""
        return max((len(state.shards) for state in self.manifest.computations.values()), default=1)

    @property
    def rows(self) -> int:
        """How many rows are mapped, about."""
        return sum(shard.keys for name in self.senders for shard in self.manifest.computations[name].shards)

    @property
    def parts(self) -> int:
        """How many parts judge: a shard of a consumer each, and one for what is wrong with documents themselves."""
        return len(self.consumers) * self.shards + 1


class Judgement(msgspec.Struct):
    """What one part has found. by_what: how many differences of each kind; first: some of them. unreadable: groups with a row that cannot be read, or with
    entries beside no row."""

    view: str = ""
    groups: int = 0
    contributions: int = 0
    by_what: dict[str, int] = {}
    first: list[Discrepancy] = []
    unreadable: list[str] = []

    def add(self, one: Discrepancy) -> None:
        """One more difference."""
        self.by_what[one.what] = self.by_what.get(one.what, 0) + 1
        if len(self.first) < FIRST:
            self.first.append(one.brief())


class CheckReport(msgspec.Struct):
    """What a check has found, by view (and by table, for documents that cannot be read)."""

    epoch: int
    judgements: dict[str, Judgement]
    skipped: dict[str, str]

    @property
    def count(self) -> int:
        """How many differences there are."""
        return sum(n for one in self.judgements.values() for n in one.by_what.values())

    @property
    def wrong(self) -> list[str]:
        """The views and joins that differ."""
        return [name for name, one in self.judgements.items() if one.by_what.keys() - {"document"}]

    @property
    def first(self) -> list[Discrepancy]:
        """The first of them."""
        return [found for one in self.judgements.values() for found in one.first][:FIRST]


def planned(program: Program, latest: Manifest, views: Sequence[str] = (), sample: float = 1.0) -> CheckPlan:
    """What can be checked of a checkpoint, and what of it is asked for (by default all)."""
    manifest = reconciled(latest, program, list(latest.computations))
    topology = program.topology
    derived = {name: one for name, one in topology.derived.items() if topology.by_name[name].relation is not None}
    tables = [spec.name for spec in topology.computations if spec.kind == TABLE and spec.name in manifest.computations]
    unknown = [name for name in views if name not in derived and name not in tables]
    if unknown:
        known = ", ".join([*derived, *tables]) or "none"
        if unknown[0] in topology.by_name and topology.by_name[unknown[0]].kind == WINDOW:
            raise DefinitionError(
                f"{unknown[0]!r} is a window operator: its windows come from records, which are not kept, so there is nothing to compare them with or to "
                f"rebuild them from. Views and tables are: {known}"
            )
        raise DefinitionError(f"no view is called {unknown[0]!r}; there are: {known}")
    waiting = {stored_ref.computation for stored_ref in manifest.pending}
    consumers, skipped = list[str](), dict[str, str]()
    for name, one in derived.items():
        if views and name not in views:
            continue
        filling = [sender for sender in one.senders if sender in manifest.builds and manifest.builds[sender].is_filling]
        if name not in manifest.computations:
            skipped[name] = "the checkpoint does not have it yet: the next run fills it"
        elif manifest.builds[name].is_filling:
            skipped[name] = f"its generation {manifest.builds[name].generation} is not complete: run the pipeline until it is"
        elif filling:
            skipped[name] = f"{', '.join(filling)}, from which it derives, is being filled"
        elif name in waiting:
            skipped[name] = "changes are on their way to it over a strong edge: run the pipeline until they have arrived"
        else:
            consumers.append(name)
    asked = [name for name in tables if not views or name in views]
    senders = dict.fromkeys([*(sender for name in consumers for sender in derived[name].senders), *asked])
    return CheckPlan(manifest, consumers, list(senders), skipped, sample)


class _Failure(NamedTuple):
    """An error on its way to whoever asked."""

    name: str
    text: str


class Checker:
    """Does both steps, for some shards, in one process."""

    def __init__(self, program: Program, plan: CheckPlan, cut: Reader) -> None:
        self._compiled = Compiled(program)
        self._plan = plan
        self._cut = cut
        self._at = {name: at for at, name in enumerate(plan.consumers)}
        self._made: dict[str, tuple[ViewOperator, StateKind]] = {}

    def _make(self, name: str) -> tuple[ViewOperator, StateKind]:
        found = self._made.get(name)
        if found is None:
            made, kind = self._compiled.make(name)
            assert isinstance(made, ViewOperator)
            found = self._made[name] = (made, kind)
        return found

    def _sampled(self, consumer: str, group: str) -> bool:
        """Rule 3."""
        sample = self._plan.sample
        if sample >= 1:
            return True
        return int.from_bytes(blake2b(f"{consumer}\0{group}".encode(), digest_size=4).digest(), "big") < sample * 2**32

    # --- stating

    def stated(self, sender: str, shard: int) -> Iterator[Stated]:
        """What the rows of a shard of a sender give."""
        made, kind = self._make(sender)
        encode, shards, consumers = made.encode, self._plan.shards, self._at
        for row_key, raw in self._rows(sender, shard):
            key = key_of(row_key.decode())
            try:
                state = self._state(sender, shard, made, kind, row_key, raw)
            except Exception as error:
                yield self._wrong(Discrepancy(sender, key, "document", None, f"cannot be read: {type(error).__name__}: {error}"))
                continue
            for one in check.contributed(made, key, state, consumers):
                if isinstance(one, Discrepancy):
                    yield self._wrong(one)
                elif self._sampled(one.consumer, one.group):
                    group = one.group.encode()
                    part = consumers[one.consumer] * shards + shard_of(group, shards)
                    yield part, group, one.origin.encode(), encode([one.right, one.parts])

    def _wrong(self, one: Discrepancy) -> Stated:
        return self._plan.parts - 1, one.view.encode(), b"", pickle.dumps(one.brief())

    def _rows(self, name: str, shard: int) -> Iterator[tuple[bytes, bytes]]:
        for entry, raw in self._cut.scan(name, ROW, after(ROW), shard=shard):
            yield entry[len(ROW) :], raw

    def _state(self, name: str, shard: int, made: ViewOperator, kind: StateKind, row_key: bytes, raw: bytes, whole: bool = False) -> Any:
        """The state of a row. whole: with all entries beside it; otherwise with those that its documents are made of."""
        state = kind.decode(decode_row(raw).state)
        for field, sub in kind.maps(state):
            store: Store = NoEntries()
            if (whole or isinstance(made, Join)) and check.has_entries(made, state):
                start = maps_prefix(row_key)
                store = MemoryStore(self._cut.scan(name, start, after(start), shard=shard))
            sub.bind(store, sub_prefix(row_key, field), kind.encode_sub, kind.decode_sub)
        return state

    # --- judging

    def judged(self, part: int, given: Iterable[Given]) -> Iterator[Judgement | _Failure]:
        """What is wrong in one part. given: sorted by group."""
        if part == self._plan.parts - 1:
            yield from self._passed_on(given)
            return
        name, shard = self._plan.consumers[part // self._plan.shards], part % self._plan.shards
        consumer, _ = self._make(name)
        assert isinstance(consumer, (Aggregate, Join))
        generation = self._plan.manifest.builds[name].active
        judgement = Judgement(name)
        strays = dict.fromkeys(self._strays(name, shard))
        for row_key, raw, expected in _merged(self._rows(name, shard), _grouped(given, consumer.decode)):
            text = row_key.decode()
            if not self._sampled(name, text):
                continue
            judgement.groups += 1
            judgement.contributions += len(expected.contributions)
            found = list(self._compared(name, shard, consumer, row_key, raw, expected, generation))
            if text in strays:
                del strays[text]
                found.append(_stray(name, text))
            for one in found:
                judgement.add(one)
            if any(one.what == "row" for one in found):
                judgement.unreadable.append(text)
        for text in strays:
            judgement.add(_stray(name, text))
            judgement.unreadable.append(text)
        yield judgement

    def _compared(
        self, name: str, shard: int, consumer: Aggregate | Join, row_key: bytes, raw: bytes | None, expected: Expected, generation: int
    ) -> Iterator[Discrepancy]:
        text, row = row_key.decode(), None
        if raw is not None:
            try:
                row = self._state(name, shard, consumer, self._make(name)[1], row_key, raw, whole=True)
            except Exception as error:
                yield check.unreadable(consumer, text, error)
                return
        yield from check.compared(consumer, text, row, expected, generation)

    def _strays(self, name: str, shard: int) -> Iterator[str]:
        """Groups that have entries beside a row that is not there, or that needs none."""
        consumer, kind = self._make(name)
        last = b""
        for entry, _ in self._cut.scan(name, SUB, after(SUB), shard=shard):
            row_key = entry[5 : 5 + int.from_bytes(entry[1:5], "big")]
            if row_key == last:
                continue
            last, text = row_key, row_key.decode()
            raw = self._cut.entry(name, shard, ROW + row_key)
            try:
                is_stray = raw is None or not check.has_entries(consumer, kind.decode(decode_row(raw).state))
            except Exception:
                continue  # the row has been named
            if is_stray and self._sampled(name, text):
                yield text

    def _passed_on(self, given: Iterable[Given]) -> Iterator[Judgement | _Failure]:
        """What is wrong with documents themselves, by sender; and what has failed."""
        found: dict[str, Judgement] = {}
        for _, _, body in given:
            one = pickle.loads(body)  # our own
            if isinstance(one, _Failure):
                yield one
            else:
                found.setdefault(one.view, Judgement(one.view)).add(one)
        yield from found.values()


def _stray(name: str, text: str) -> Discrepancy:
    return Discrepancy(name, key_of(text), "node", "nothing in its row", "entries beside it", None)


def _grouped(given: Iterable[Given], decode: Callable[[bytes], Any]) -> Iterator[tuple[bytes, Expected]]:
    """What was given, group by group."""
    for group, rows in groupby(given, key=itemgetter(0)):
        expected = Expected({}, [])
        for _, origin, body in rows:
            right, parts = decode(body)
            check.add(expected, origin.decode(), parts, right)
        yield group, expected


def _merged(
    rows: Iterator[tuple[bytes, bytes]], expected: Iterator[tuple[bytes, Expected]]
) -> Iterator[tuple[bytes, bytes | None, Expected]]:
    """Rows and what should be there, both in the order of their keys, side by side."""
    row, should = next(rows, None), next(expected, None)
    while row is not None or should is not None:
        if should is None or (row is not None and row[0] < should[0]):
            assert row is not None
            yield row[0], row[1], Expected()
            row = next(rows, None)
        elif row is None or should[0] < row[0]:
            yield should[0], None, should[1]
            should = next(expected, None)
        else:
            yield row[0], row[1], should[1]
            row, should = next(rows, None), next(expected, None)


# --- the two ways of doing it


def checked_here(
    program: Program, log: ManifestLog, plan: CheckPlan, told: Callable[[str, int], None] = lambda sender, rows: None
) -> CheckReport:
    """The check in this process. told: hears how many rows of a sender's shards have been mapped, now and then."""
    with AsOf(CommittedState(log), plan.manifest) as cut:
        checker = Checker(program, plan, cut)
        parts: dict[int, list[Given]] = {}
        for sender in plan.senders:
            for shard in range(plan.shards):
                for part, *given in checker.stated(sender, shard):
                    parts.setdefault(part, []).append(tuple(given))  # type: ignore[arg-type]
                told(sender, sum(one.keys for one in plan.manifest.computations[sender].shards[: shard + 1]))
        found = (one for part in range(plan.parts) for one in checker.judged(part, sorted(parts.pop(part, []))))
        return _report(plan, found)


def checked_on_spark(
    program: Program, log: ManifestLog, plan: CheckPlan, spark: Any, storage_options: dict[str, Any] | None = None
) -> CheckReport:
    """The check as a batch job of Spark's."""
    from millstream.engine.spark import pickling
    from millstream.engine.spark.background_jobs import two_steps

    order = (pickling.dumps(program), msgspec.msgpack.encode(plan), log.storage.url, storage_options)
    pieces = [(sender, shard) for sender in plan.senders for shard in range(plan.shards)]
    bodies = two_steps(spark, pieces, partial(_stating, order, plan.parts), plan.parts, partial(_judging, order))
    return _report(plan, map(pickle.loads, bodies))


def _checker_of(order: Any) -> Checker:
    """In a task: the same, of what the driver has sent."""
    from millstream.engine.spark import pickling

    program, plan, url, options = order
    decoded = msgspec.msgpack.decode(plan, type=CheckPlan)
    cut = AsOf(CommittedState(ManifestLog(open_storage(url, options))), decoded.manifest)
    return Checker(pickling.loads(program), decoded, cut)


def _stating(order: Any, parts: int, piece: tuple[str, int]) -> Iterator[Stated]:
    try:
        yield from _checker_of(order).stated(*piece)
    except MillstreamError as error:
        yield parts - 1, b"", b"", pickle.dumps(_Failure(travelling_name(error), str(error)))


def _judging(order: Any, part: int, given: Iterable[Given]) -> Iterator[bytes]:
    try:
        for one in _checker_of(order).judged(part, given):
            yield pickle.dumps(one)
    except MillstreamError as error:
        yield pickle.dumps(_Failure(travelling_name(error), str(error)))


def _report(plan: CheckPlan, found: Iterable[Any]) -> CheckReport:
    report = CheckReport(plan.manifest.epoch, {name: Judgement(name) for name in plan.consumers}, plan.skipped)
    for one in found:
        if isinstance(one, _Failure):
            raise BY_NAME.get(one.name, MillstreamError)(one.text)
        judgement = report.judgements.setdefault(one.view, Judgement(one.view))
        judgement.groups += one.groups
        judgement.contributions += one.contributions
        for what, n in one.by_what.items():
            judgement.by_what[what] = judgement.by_what.get(what, 0) + n
        judgement.first = [*judgement.first, *one.first][:FIRST]
        judgement.unreadable += one.unreadable
    return report
