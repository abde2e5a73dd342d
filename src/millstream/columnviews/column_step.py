"""What the steps of tables and views on columns share: which epochs of a shard go by columns, and the way back to visits.

Rules
1. Where little has come, columns are not worth it.
2. A user's function that raises, and whatever else cannot be worked on in columns, sends the whole shard to its visits, as if nothing had been done
   (`SingleRows`): they say what is wrong, or send it to dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millstream.columnviews.packing import SingleRows
from millstream.core.arrivals import Arrivals, OperatorInput
from millstream.core.keyspace import ROW
from millstream.core.outcome import Counts, Outcome
from millstream.core.step import Step
from millstream.operators.rows import StreamRows, arrivals_of, rows_of


class ColumnStep(Step):
    """Runs one table or view on one shard for one epoch. Use once."""

    few = 64  # records that are worth no columns

    def run(self, arrivals: Arrivals | OperatorInput) -> Outcome:
        given = arrivals if isinstance(arrivals, OperatorInput) else None

        def ordered() -> Arrivals:
            return arrivals if isinstance(arrivals, Arrivals) else arrivals_of(arrivals, self.visit.guards.order)

        count = len(arrivals.timestamps) if isinstance(arrivals, Arrivals) else sum(map(len, arrivals.rows))
        is_drawn = given is not None and given.by_lot
        if (given is not None and given.one_by_one) or not count or (count < self.few and not is_drawn) or not self.may_go_by_columns():
            return super().run(ordered())
        rows = given or rows_of(arrivals)  # type: ignore[arg-type]
        try:
            return self.run_rows(rows, [some for some in rows.rows if len(some)], ordered)
        except SingleRows:
            self._begin_anew()
        return super().run(ordered())  # outside of the handler: what is raised then has no past

    def may_go_by_columns(self) -> bool:
        """Whether this epoch is none for visits alone."""
        builds = self.times.builds
        waits = any(builds[one.consumer].waiting for one in self.computation.downstreams if one.consumer in builds)  # type: ignore[attr-defined]
        return not self.times.scans and not waits

    def run_rows(self, given: OperatorInput, inputs: Sequence[StreamRows], ordered: Callable[[], Arrivals]) -> Outcome:
        """The epoch on columns. Raises SingleRows. inputs: the rows of the streams that have any."""
        raise NotImplementedError

    def due_besides(self, given: OperatorInput, row_keys: Sequence[bytes]) -> tuple[list[bytes], dict[bytes, bytes]]:
        """Does what comes before all visits. Gives the keys that are to be visited for their timers alone, and where the index goes on behind them."""
        due, left = self.due_keys()
        if given.rejected:
            self.reject(given.rejected)
        if due:
            for row_key in row_keys:
                due.pop(row_key, None)
        return sorted(due), left

    def visit_key(self, row_key: bytes, arrivals: Arrivals, group: int | None) -> None:
        """A visit of one key, with the records of a group if there are any."""
        visit = self._visit if self.wiring.dead_letters is None else self._forgiving
        at, stop = (0, 0) if group is None else (arrivals.bounds[group], arrivals.bounds[group + 1])
        visit(row_key, row_key.decode(), self.store.get(ROW + row_key), arrivals, at, stop)

    def _begin_anew(self) -> None:
        """Nothing has been done."""
        self.delta.clear()
        self.index.clear()
        self.counts = Counts()
        visit = self.visit
        visit.productions.clear()
        visit.gathered.clear()
        visit.tallies.clear()
