"""A check of views as data: what is checked against what, and what was found.

Rule: what is not complete (a view that is being filled, messages on their way over a strong edge) is not judged, and it is said why.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.engine.evolution import reconciled
from millstream.engine.program import Program
from millstream.errors import DefinitionError
from millstream.state.manifest import Manifest
from millstream.views.check import Discrepancy
from millstream.views.dsl import TABLE

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
    topology, derived = program.topology, program.topology.derived
    tables = [spec.name for spec in topology.computations if spec.kind == TABLE and spec.name in manifest.computations]
    unknown = [name for name in views if name not in derived and name not in tables]
    if unknown:
        known = ", ".join([*derived, *tables]) or "none"
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
