"""A run on Spark: its epochs are begun and watched, what is left at its end is done, and what ended it is explained. The handle above shows it to people.

Rules
1. A run that is disturbed by one that it has replaced starts its query again; one that has been replaced stops. Only a query of Spark's can be disturbed.
2. Whoever waits for the end is told, whatever happens in it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from millstream.core.topology import Topology
from millstream.engine.epochs import Epochs
from millstream.engine.source_planner import SourcePlanner
from millstream.engine.trigger import Trigger
from millstream.errors import ClusterError, InputError, MillstreamError

from .error_text import SHARED_LOG, reason, translated

_RESTARTS = 6


class Run:
    """One run of a pipeline. bounded: it ends with its input; drain: event time ends with it."""

    query: Any = None  # Spark's own, if Spark plans the epochs

    def __init__(self, topology: Topology, epochs: Epochs[Any], *, bounded: bool, drain: bool) -> None:
        self.epochs = epochs
        self.bounded = bounded
        self.stopping = False
        self.error: BaseException | None = None
        self.done = threading.Event()
        self._drain = bounded and drain
        self._thread: threading.Thread | None = None
        self._hints = tuple(hint for injector in topology.injectors.values() for hint in injector.source.hints())
        self._at_end: Callable[[], None] = lambda: None
        self.beside: list[Callable[[], None]] = []  # ends what was started beside the run

    def start(self, at_end: Callable[[], None]) -> None:
        """Begins. at_end: called when all is done, before those who wait are told."""
        self._at_end = at_end
        self.begin()
        self._thread = threading.Thread(target=self._supervise, name="millstream-run", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """What may fail at once."""

    def work(self) -> None:
        """All epochs, until the input ends or somebody says stop."""
        raise NotImplementedError

    def halt(self) -> None:
        """Somebody says stop; the epoch under way has ended."""

    def stop(self, seconds: float | None = None) -> bool:
        """Ends the run between two epochs. Returns whether it has ended within so many seconds (None: however long it takes)."""
        began = time.monotonic()
        self.stopping = True
        self.epochs.stopping.set()
        self.wake()
        if threading.current_thread() is self._thread:
            return False  # a sink's function, say: it ends when that returns
        if not self.epochs.lock.acquire(timeout=-1 if seconds is None else max(0.0, seconds)):
            return False
        self.epochs.lock.release()  # the epoch under way has ended; one that comes later is turned away. Holding on would leave Spark waiting for it
        self.halt()
        return self.done.wait(None if seconds is None else max(0.0, began + seconds - time.monotonic()))

    def wake(self) -> None:
        """Somebody says stop."""

    def _supervise(self) -> None:
        try:
            self.work()
            if self._drain and not self.stopping:
                self.epochs.drain(lambda: self.stopping)
            elif self.bounded and not self.stopping:
                self.epochs.settle(lambda: self.stopping)
        except BaseException as error:
            if not self.stopping or isinstance(self.epochs.error or error, MillstreamError):
                self.error = self.epochs.error or error  # also if it cannot be explained
                self.error = self._explained(self.error)
        finally:
            try:
                self.close()
                self._at_end()
            finally:
                self.done.set()  # whoever waits must not wait for ever, whatever is said last

    def close(self) -> None:
        """At the end, also of a run that does not even begin. A source that cannot be closed ends the run with an error, if there is none yet; what is said at
        the end is said nevertheless."""
        for close in (self.epochs.close, *self.beside):
            try:
                close()
            except Exception as error:
                if self.error is None:
                    self.error = self._explained(error)

    def _explained(self, error: BaseException) -> BaseException:
        """A run that has been replaced, or whose checkpoint has gone, may hear of it from Spark first."""
        if not isinstance(error, MillstreamError):
            try:
                self.epochs.explain(error)
            except MillstreamError as behind:
                return behind
            except Exception:
                pass  # the checkpoint cannot even be looked at
        found = translated(error, self._hints)
        if found is error and not isinstance(error, (MillstreamError, KeyboardInterrupt)):
            wrapped = MillstreamError(f"Spark has ended the run: {reason(error)}")
            wrapped.exit_code = ClusterError.exit_code
            wrapped.__cause__ = error
            return wrapped
        return found


class QueryRun(Run):
    """A run whose epochs Spark plans. start: starts the query."""

    def __init__(
        self, topology: Topology, epochs: Epochs[Any], start: Callable[[], Any], *, bounded: bool, drain: bool, disturbed_until: float
    ) -> None:
        super().__init__(topology, epochs, bounded=bounded, drain=drain)
        self._start_query = start
        self._disturbed_until = disturbed_until

    def begin(self) -> None:
        self.query = self._begin_query()

    def halt(self) -> None:
        self.query.stop()

    def _begin_query(self) -> Any:
        """The query, begun; once more where another run, which this one has replaced, has been at Spark's log in the same moment."""
        for left in reversed(range(_RESTARTS)):
            try:
                return self._start_query()
            except Exception as error:
                if not left or not self._is_disturbed(error):
                    raise self._explained(error) from error
            time.sleep(1)
        raise AssertionError("unreachable")

    def work(self) -> None:
        """Until the query ends. Rule 1: Spark ends it too when its log has been written to by somebody else."""
        for left in reversed(range(_RESTARTS)):
            try:
                self.query.awaitTermination()
                return
            except Exception as error:
                if not left or self.stopping or not self._is_disturbed(error):
                    raise
            time.sleep(1)
            if self.stopping:
                return
            self.query = self._begin_query()

    def _is_disturbed(self, error: Exception) -> bool:
        """Whether an error of Spark's comes from a run that this one has replaced, and that may have written to Spark's log once more before it noticed."""
        if self.epochs.error is not None or self.epochs.fenced() is not None:
            return False
        return any(sign in str(error) for sign in SHARED_LOG) or time.monotonic() < self._disturbed_until


class PlannedRun(Run):
    """A run whose epochs Millstream plans. every: the least time between two of them, in seconds. eager: an epoch at every turn."""

    def __init__(
        self, topology: Topology, epochs: Epochs[Any], planner: SourcePlanner, *, bounded: bool, drain: bool, every: float, eager: bool
    ) -> None:
        super().__init__(topology, epochs, bounded=bounded, drain=drain)
        self._planner = planner
        self._trigger = Trigger(epochs, planner, bounded=bounded, every=every, eager=eager)

    def work(self) -> None:
        self._trigger.run(lambda: self.stopping)

    def wake(self) -> None:
        self._trigger.wake()

    def _explained(self, error: BaseException) -> BaseException:
        """What Spark could not read is said in the words of our own readers, as in a resident run: with the line."""
        found = super()._explained(error)
        if not isinstance(found, InputError) or found is error:
            return found
        try:
            told = next((one for reader in self._planner.readers.values() if (one := reader.refused(str(found))) is not None), None)
        except Exception:  # the file cannot even be looked at
            return found
        return found if told is None else InputError("\n  ".join((str(told), *self._hints)))
