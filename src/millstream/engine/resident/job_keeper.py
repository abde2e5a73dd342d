"""The Spark jobs that resident tasks live in, as long as the run lasts.

Rule: a job that ends although the run goes on is begun again for the slots that it had. Spark gives a job up when one of its tasks has failed
`spark.task.maxFailures` times, and a job of months will get there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from millstream.core.membership import MOST_LOSSES

_log = logging.getLogger("millstream.resident")


class JobKeeper:
    """begin: runs a job (its number) with a task for each of the slots given, until it ends. changed: the coordinator's lock; told when a job has ended."""

    def __init__(self, begin: Callable[[int, Sequence[int]], None], changed: threading.Condition) -> None:
        self._begin = begin
        self._changed = changed
        self._job_of: dict[int, int] = {}  # by slot: the number of the job that fills it
        self._last = 0
        self.ended: list[tuple[float, str]] = []  # the last jobs that ended although the run goes on: when, and why
        self.is_ending = False  # so does the run
        self.begun = 0  # how often a job was begun

    def fill(self, slots: Iterable[int]) -> None:
        """A job for some slots, as long as the run lasts, or until others fill all of them."""
        with self._changed:
            self._last += 1
            self._job_of.update(dict.fromkeys(slots, self._last))
            threading.Thread(target=self._keep, args=(self._last,), name="millstream-coordinator-job", daemon=True).start()

    def has_slot(self, job: int, slot: int) -> bool:
        """Whether a slot is filled by this job, not by a later one."""
        return self._job_of.get(slot, job) == job

    def _keep(self, job: int) -> None:
        while not self.is_ending and (slots := self._slots_of(job)):
            self.begun += 1
            try:
                self._begin(job, slots)
                why = "it ended"
            except Exception as error:
                why = str(error)
            with self._changed:
                if self.is_ending or not self._slots_of(job):
                    return
                self.ended.append((time.monotonic(), why))
                del self.ended[: -MOST_LOSSES - 1]
                self._changed.notify_all()
            _log.info("the job of the resident tasks has ended and is begun again: %s", why.splitlines()[0] if why else "")
            time.sleep(0.2)

    def _slots_of(self, job: int) -> list[int]:
        with self._changed:
            return sorted(slot for slot, of in self._job_of.items() if of == job)
