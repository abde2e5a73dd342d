"""The step of an operator that takes a whole shard's rows at once (`operators/`): what it shares with the step of hooks.

Rules
1. Late records, dead letters and rejected records are those of `core/step.py`: counted, named and sent in the same way.
2. An operator visits no key. What it does of single records, it does in the order in which they stand in their rows.
"""

from __future__ import annotations

from millstream.core.arrivals import Arrivals, OperatorInput
from millstream.core.keys import key_bytes
from millstream.core.outcome import Outcome
from millstream.core.record import Record
from millstream.core.step import Step
from millstream.errors import MillstreamError


class OperatorStep(Step):
    """Runs one operator on one shard for one epoch. Use once."""

    def run(self, arrivals: Arrivals | OperatorInput) -> Outcome:
        self.visit.begin(None, b"", None)
        try:
            return self.computation.run_columns(self, arrivals)  # type: ignore[attr-defined, no-any-return]
        except MillstreamError:
            raise
        except Exception as error:
            raise self._blame(error) from error

    def put_late(self, record: Record) -> None:
        """A late record."""
        self._at(record)
        self._late(record)

    def put_failed(self, record: Record, error: Exception) -> None:
        """A record for which a function of the user's raised: a dead letter, or the end of the epoch."""
        self._at(record)
        self.visit.cause = record
        if self.wiring.dead_letters is None:
            raise self._blame(error) from error
        self.write_dead_letter(record, error)

    def _at(self, record: Record) -> None:
        self.computation.key = record.key
        self.visit.begin(record.key, key_bytes(record.key), None)
