"""The handle of a running pipeline: its end, its status, a look at its state and output; and the signs of life that it gives.

Rules
1. Everything that a handle shows is committed.
2. A run says what it is doing, at most once a second and only when something has changed, and ends with where the rows are; `quiet` turns that off.
3. A run that is disturbed by one that it has replaced starts its query again; one that has been replaced stops.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from millstream.core.topology import Topology
from millstream.engine.program import Program, Worker
from millstream.errors import DefinitionError, MillstreamError
from millstream.sources import Files
from millstream.state import alive
from millstream.state.reader import steady
from millstream.state.rows import states
from millstream.status.narrator import Narrator
from millstream.status.report import Status, status_of

from .epoch import SparkEpochs
from .reasons import SHARED_LOG, reason, translated

_RESTARTS = 6
_QUIET_AFTER = 5.0  # seconds without a record, after which a run says what it waits for


class Handle:
    """A running pipeline."""

    def __init__(
        self,
        program: Program,
        epochs: SparkEpochs,
        begin: Callable[[], Any],
        *,
        bounded: bool,
        drain: bool,
        narrator: Narrator,
        disturbed_until: float,
    ) -> None:
        self._program = program
        self._epochs = epochs
        self._bounded = bounded
        self._drain = bounded and drain
        self._stopping = False
        self._hints = _hints(program.topology)
        self._error: BaseException | None = None
        self._begin = begin
        self._narrator = narrator
        self._disturbed_until = disturbed_until
        self._heard = time.monotonic()
        self._query: Any = None
        self._done = threading.Event()
        self._query = self._started()
        self._thread = threading.Thread(target=self._supervise, name="millstream-run", daemon=True)
        self._thread.start()
        threading.Thread(target=self._give_signs, name="millstream-signs", daemon=True).start()

    def _supervise(self) -> None:
        try:
            self._await_query()
            if self._drain and not self._stopping:
                self._epochs.drain(lambda: self._stopping)
            elif self._bounded and not self._stopping:
                self._epochs.settle(lambda: self._stopping)
        except BaseException as error:
            if not self._stopping or isinstance(self._epochs.error or error, MillstreamError):
                self._error = self._explained(self._epochs.error or error)
        finally:
            try:
                self._epochs.close()
                with contextlib.suppress(Exception):
                    self._sign()
                if self._error is None:
                    self._narrator.ended(self.status(), self._stopping, self._epochs.published)
            finally:
                self._done.set()  # whoever waits must not wait for ever, whatever is said last

    def _started(self) -> Any:
        """The query, begun; once more where another run, which this one has replaced, has been at Spark's log in the same moment."""
        for left in reversed(range(_RESTARTS)):
            try:
                return self._begin()
            except Exception as error:
                if not left or not self._is_disturbed(error):
                    raise self._explained(error) from error
            time.sleep(1)
        raise AssertionError("unreachable")

    def _await_query(self) -> None:
        """Until the query ends. Rule 3: Spark ends it too when its log has been written to by somebody else."""
        for left in reversed(range(_RESTARTS)):
            try:
                self._query.awaitTermination()
                return
            except Exception as error:
                if not left or self._stopping or not self._is_disturbed(error):
                    raise
            time.sleep(1)
            if self._stopping:
                return
            self._query = self._started()

    def _is_disturbed(self, error: Exception) -> bool:
        """Whether an error of Spark's comes from a run that this one has replaced, and that may have written to Spark's log once more before it noticed."""
        if self._epochs.error is not None or self._epochs.fenced() is not None:
            return False
        return is_shared_log(error) or time.monotonic() < self._disturbed_until

    def _explained(self, error: BaseException) -> BaseException:
        """A run that has been replaced, or whose checkpoint has gone, may hear of it from Spark first."""
        if not isinstance(error, MillstreamError):
            try:
                self._epochs.explain(error)
            except MillstreamError as behind:
                return behind
            except Exception:
                pass  # the checkpoint cannot even be looked at
        found = translated(error, self._hints)
        if found is error and not isinstance(error, (MillstreamError, KeyboardInterrupt)):
            wrapped = MillstreamError(f"Spark has ended the run: {reason(error)}")
            wrapped.__cause__ = error
            return wrapped
        return found

    def await_termination(self, timeout: float | None = None) -> bool:
        """Waits for the end: of the input and the drain (available_now), of a call of `stop`, or an error, which is raised.

        Returns whether the pipeline has ended; with a timeout in seconds it may not have.
        """
        ended = self._done.wait(timeout)
        if self._error is not None:
            raise self._error
        return ended

    def stop(self) -> None:
        """Ends the pipeline between two epochs. Nothing is lost: the next run goes on from here."""
        self._stopping = self._epochs.stopping = True
        with self._epochs.lock:
            pass  # the epoch under way ends; one that comes later is turned away. Holding on would leave Spark waiting for it
        self._query.stop()
        self._done.wait(60)

    @property
    def running(self) -> bool:
        """Whether the pipeline is still at work."""
        return not self._done.is_set()

    @property
    def error(self) -> BaseException | None:
        """What ended the pipeline, if it was an error."""
        return self._error

    def status(self) -> Status:
        """How the pipeline is doing: epoch, speed, low watermarks and lag, keys and timers."""
        stats = [(s.epoch, s.records, s.millis) for s in self._epochs.stats]
        found = status_of(self._program.name, self._epochs.latest, stats)
        found.state = "running" if self.running else "failed" if self._error else "stopped" if self._stopping else "ended"
        found.waits_for = self._waits_for()
        return found

    def epochs(self) -> list[dict[str, Any]]:
        """The last epochs: number, records, milliseconds, whether a Spark job ran."""
        return [msgspec.to_builtins(s) for s in self._epochs.stats]

    def state(self, computation: str, key: Any = None) -> Any:
        """The committed state of a key (None if it has none), or with no key a dict of all keys, for looking at a small pipeline by hand."""
        if computation not in self._program.topology.by_name:
            known = ", ".join(self._program.topology.by_name)
            raise DefinitionError(f"no computation is called {computation!r}; there are: {known}")
        kind = Worker(self._program).make(computation)[1]
        found = steady(self._epochs.log, lambda cut: states(cut, computation, kind, None if key is None else [key]))
        return found if key is None else found.get(key)

    def output(self, stream: str | None = None) -> list[tuple[Any, Any, int]]:
        """What a stream has sent to its sink so far: (key, value, timestamp). Without a name, of the only stream that goes to a sink.

        For sinks that can be read here: files, and memory. It reads all there is: for looking at a small pipeline by hand.
        """
        emissions = {emission.name: emission for emission in self._program.topology.emissions}
        if stream is None and len(emissions) == 1:
            stream = next(iter(emissions))
        if stream not in emissions:
            raise DefinitionError(f"no stream {stream!r} goes to a sink; there are: {', '.join(emissions) or 'none'}")
        sink = emissions[stream].sink
        if not hasattr(sink, "read"):
            raise DefinitionError(f"what goes to {sink.describe()} cannot be read here")
        return [(row.key, row.value, row.timestamp) for row in sink.read(self._program.name, stream)]

    @property
    def published(self) -> dict[str, tuple[str, int]]:
        """By sink: where its rows are, and how many this run has put there."""
        return dict(self._epochs.published)

    def __repr__(self) -> str:
        status = self.status()
        done = f"epoch {status.epoch}, {status.records:,} records"
        return f"<Millstream run of {status.pipeline!r}: {status.state}, {done}, checkpoint {self._epochs.storage.url}>"

    def __str__(self) -> str:
        return str(self.status())

    def _repr_html_(self) -> str:
        return self.status()._repr_html_() + (
            f"<pre>{type(self._error).__name__}: {_escaped(self._error)}</pre>" if self._error is not None else ""
        )

    # --- signs of life

    def _waits_for(self) -> str:
        """What input a running pipeline has not had for some seconds."""
        last = next((s for s in reversed(self._epochs.stats)), None)
        if last is not None and last.records:
            self._heard = time.monotonic()
        if not self.running or self._bounded or time.monotonic() - self._heard < _QUIET_AFTER:
            return ""
        sources = [injector.source for injector in self._program.topology.injectors.values()]
        return " or ".join(dict.fromkeys(_waits_for(source) for source in sources))

    def _give_signs(self) -> None:
        said = 0.0
        while True:
            if time.monotonic() - said >= alive.EVERY:
                said = time.monotonic()
                with contextlib.suppress(Exception):  # a sign more or less decides nothing
                    self._sign()
            if self._done.wait(1.0):
                return
            if not self._narrator.quiet:
                self._narrator.tell(self.status())

    def _sign(self) -> None:
        epochs = self._epochs
        if epochs.log.superseded(epochs.token) or not epochs.log.has_claim(epochs.token):
            return  # somebody else's checkpoint, or nobody's
        status = self.status()
        state = (
            "running"
            if status.state == "running" and self._thread.is_alive() and threading.current_thread() is not self._thread
            else self._last_word()
        )
        sign = alive.Alive(
            epochs.token,
            int(time.time() * 1000),
            socket.gethostname(),
            os.getpid(),
            state,
            status.epoch,
            status.records_per_second,
            status.epoch_millis,
            status.waits_for,
        )
        alive.say(epochs.storage, sign)

    def _last_word(self) -> str:
        return "failed" if self._error is not None else "stopped" if self._stopping else "ended"


def _waits_for(source: Any) -> str:
    told = getattr(source, "waits_for", None)
    if told is not None:
        return str(told())
    return f"files in {source.path}" if isinstance(source, Files) else source.describe() if hasattr(source, "describe") else "its source"


def _escaped(error: BaseException) -> str:
    from html import escape

    return escape(str(error))


def is_shared_log(error: Exception) -> bool:
    """Whether Spark says that somebody else has written to its log."""
    return any(sign in str(error) for sign in SHARED_LOG)


def _hints(topology: Topology) -> tuple[str, ...]:
    """What may be wrong with a file that cannot be read."""
    headless = [
        name
        for name, injector in topology.injectors.items()
        if isinstance(injector.source, Files) and injector.source.format == "csv" and "header" not in injector.source.options
    ]
    return tuple(
        f"If the files of stream {name!r} begin with a line of column names, say options={{'header': 'true'}}." for name in headless
    )
