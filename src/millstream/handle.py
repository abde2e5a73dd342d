"""The handle of a running pipeline: its end, its status, a look at its state and output; and the signs of life that it gives.

Rules
1. Everything that a handle shows is committed.
2. With `serve` its live state is served beside it (`service/live`), from before the first epoch until the end.
3. A run says what it is doing, at most once a second and only when something has changed, and ends with where the rows are; `quiet` turns that off.
4. Signs of life go on for as long as the run does, whatever goes wrong with one of them: a driver that is silent is taken for dead.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from millstream.engine.program import Compiled, Program
from millstream.errors import DefinitionError
from millstream.monitoring.epoch_feed import EpochFeed, takers_of
from millstream.monitoring.observer import Look, Observer
from millstream.operators.interval_join import IntervalJoin
from millstream.operators.pane_rows import PaneReader
from millstream.operators.panes import WindowOperator
from millstream.operators.waiting_rows import WaitingReader
from millstream.readable import open_windows, relations
from millstream.state import compaction, heartbeat
from millstream.state.manifest_log import Identity
from millstream.state.queries import states
from millstream.state.reader import steady
from millstream.status import render
from millstream.status.narrator import Narrator
from millstream.status.report import Overview, Status, status_of

if TYPE_CHECKING:
    from millstream.engine.spark.run import Run
    from millstream.monitoring.prometheus import MetricsServer
    from millstream.monitoring.web_server import PageServer
    from millstream.service.blocking import ServerThread

_log = logging.getLogger("millstream.run")
_QUIET_AFTER = 5.0  # seconds without a record, after which a run says what it waits for


class Handle:
    """A running pipeline."""

    def __init__(
        self, program: Program, run: Run, narrator: Narrator, serve: str | None = None, ui: str | None = None, metrics: str | None = None
    ) -> None:
        self._program = program
        self._run = run
        self._epochs = run.epochs
        self._narrator = narrator
        self._heard = time.monotonic()
        self._signing = threading.Lock()
        self._is_over = False
        self._unsaid: type[Exception] | None = None  # what the last sign that could not be given failed with
        self._server: ServerThread | None = None
        self._page: PageServer | None = None
        self._metrics: MetricsServer | None = None
        self._feed = EpochFeed(self._epochs.metrics, takers_of(program.name))
        try:
            if serve is not None:
                self._server = _serving(run, serve)
            if ui is not None:
                self._page = _page(self, ui)
            if metrics is not None:
                self._metrics = _metrics(self, metrics)
            run.start(self._at_end)
        except BaseException:
            self._stop_serving()
            run.close()
            raise
        if self.serving:
            narrator.say(f"live state is served at {self.serving}")
        if self._page is not None:
            narrator.say(f"the page of the run is at {self._page.url}")
        if self._metrics is not None:
            narrator.say(f"metrics are at {self._metrics.url}")
        threading.Thread(target=self._give_signs, name="millstream-signs", daemon=True).start()

    def _at_end(self) -> None:
        """The run has ended, and nobody has been told yet."""
        with self._signing:
            self._is_over = True
            with contextlib.suppress(Exception):
                self._sign(self._last_word())
            with contextlib.suppress(Exception):
                self._feed.pump()
        try:
            if self._run.error is None:
                self._narrator.ended(self._status(), self._run.stopping, self._epochs.published)
        finally:
            self._stop_serving()

    def _stop_serving(self) -> None:
        for server in (self._server, self._page, self._metrics):
            if server is not None:
                server.stop()

    def await_termination(self, timeout: float | None = None) -> bool:
        """Waits for the end: of the input and the drain (available_now), of a call of `stop`, or an error, which is raised.

        Returns whether the pipeline has ended; with a timeout in seconds it may not have.
        """
        ended = self._run.done.wait(timeout)
        if ended and self._run.error is not None:  # not before all is closed: whoever is told may end Spark, or the process
            raise self._run.error
        return ended

    def say(self, text: str) -> None:
        """One line to whoever watches the run, unless it is quiet."""
        self._narrator.say(text)

    def stop(self, timeout: float | None = None) -> bool:
        """Ends the pipeline between two epochs. Nothing is lost: the next run goes on from here.

        Returns whether the run has ended. With a timeout in seconds it may not have: the epoch under way waits for a hook, and `status` says which one. The
        run then ends as soon as the hook returns; call it again to wait for that.
        """
        return self._run.stop(timeout)

    @property
    def running(self) -> bool:
        """Whether the pipeline is still at work."""
        return not self._run.done.is_set()

    @property
    def serving(self) -> str | None:
        """Where live state is served (HOST:PORT), if it is."""
        return None if self._server is None else self._server.address

    @property
    def page(self) -> str | None:
        """Where the page of the run is (a URL), if it has one."""
        return None if self._page is None else self._page.url

    @property
    def query(self) -> Any:
        """Spark's own streaming query, where Spark plans the epochs because it alone can read a source; else None. Stop the run with `stop`, not with
        the query's."""
        return self._run.query

    @property
    def error(self) -> BaseException | None:
        """What ended the pipeline, if it was an error."""
        return self._run.error

    def status(self) -> Status:
        """How the pipeline is doing: epoch, speed, low watermarks and lag, keys and timers; and what its parts say of themselves."""
        found = self._status()
        found.parts = self._parts()
        return found

    def _status(self) -> Status:
        found = status_of(self._program.name, self._epochs.latest, self._epochs.metrics.recent(10))
        found.state = "running" if self.running else self._last_word()
        found.mode, found.run = self._epochs.mode(), self._epochs.token
        found.records_per_second = self._epochs.metrics.records_per_second(self._epochs.clock())
        found.waits_for = "" if any(task.at for task in found.mode.tasks) else self._waits_for(found.mode)
        return found

    def _parts(self) -> dict[str, dict[str, Any]]:
        """What sources, sinks, compactions, state caches and the log say of themselves."""
        topology, epochs = self._program.topology, self._epochs
        sinks = {emission.name: emission.sink.stats() for emission in topology.emissions}
        found: dict[str, Any] = {
            "sources": {name: own for name, injector in topology.injectors.items() if (own := injector.source.stats()) is not None},
            "sinks": {name: {**msgspec.to_builtins(one), "own": sinks[name]} for name, one in epochs.publishing.published.items()},
            "compactions": epochs.compaction.stats(),
            "state_caches": dict(epochs.state_caches),
            "log": compaction.stats(epochs.latest) if epochs.latest is not None else {},
        }
        return msgspec.to_builtins(found)  # type: ignore[no-any-return]

    def epochs(self) -> list[dict[str, Any]]:
        """The last epochs: number, records, milliseconds, whether tasks ran, and where the milliseconds went (`phases`)."""
        return [msgspec.to_builtins(s) for s in self._epochs.metrics]

    def state(self, computation: str, key: Any = None) -> Any:
        """The committed state of a key (None if it has none), or with no key a dict of all keys, for looking at a small pipeline by hand. Of a window operator
        that is a list of the key's open panes: dicts with `start`, `end`, and what the reducers show so far. Of a join of streams, of the records that wait."""
        if computation not in self._program.topology.by_name:
            known = ", ".join(self._program.topology.by_name)
            raise DefinitionError(f"no computation is called {computation!r}; there are: {known}")
        made, kind = Compiled(self._program).make(computation)
        keys = None if key is None else [key]
        if isinstance(made, WindowOperator):
            reader = PaneReader.of_operator(made, kind)
            found = steady(self._epochs.log, lambda cut: open_windows.states(cut, computation, reader, keys))
        elif isinstance(made, IntervalJoin):
            waiting = WaitingReader(kind.decode_sub)
            found = steady(self._epochs.log, lambda cut: open_windows.states(cut, computation, waiting, keys))
        else:
            found = steady(self._epochs.log, lambda cut: states(cut, computation, kind, keys))
        return found if key is None else found.get(key)

    def view(self, name: str, key: Any = None) -> Any:
        """What a table, view or join shows, as committed: by key, or with a key one row (None if there is none). For looking at a small one by hand;
        `ms.views.read` gives a large one as Arrow."""
        found = steady(self._epochs.log, lambda cut: relations.by_key(relations.shown(cut, name, key=key)))
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
        status = self._status()
        done = f"epoch {status.epoch}, {status.records:,} records"
        return f"<Millstream run of {status.pipeline!r}: {status.state}, {done}, checkpoint {self._epochs.storage.url}>"

    def __str__(self) -> str:
        return str(self._status())

    def _repr_html_(self) -> str:
        error: list[RenderableType] = [] if self.error is None else ["", Text(f"{type(self.error).__name__}: {self.error}")]
        return render.html(Group(render.progress(self._status()), *error))

    # --- signs of life

    def _waits_for(self, mode: heartbeat.RunMode) -> str:
        """What a running pipeline waits for: tasks that are not there, or input that it has not had for some seconds."""
        if self.running and mode.missing:
            return "its tasks to start" if not mode.generation else f"{_tasks(mode.missing)} to be replaced"
        if any(one.records for one in self._epochs.metrics.recent(1)):
            self._heard = time.monotonic()
        if not self.running or self._run.bounded or time.monotonic() - self._heard < _QUIET_AFTER:
            return ""
        sources = [injector.source for injector in self._program.topology.injectors.values()]
        return " or ".join(dict.fromkeys(source.waits_for() for source in sources))

    def _give_signs(self) -> None:
        said = 0.0
        while not self._run.done.wait(1.0 if said else 0.0):
            try:  # rule 4
                if time.monotonic() - said >= heartbeat.EVERY:
                    said = time.monotonic()
                    with self._signing:
                        if not self._is_over:
                            self._sign("running")
                self._narrator.tell(self._status)
                with self._signing:
                    self._feed.pump()
            except Exception as error:
                if type(error) is not self._unsaid:
                    self._unsaid = type(error)
                    _log.warning("a sign of life could not be given, and is tried again: %s: %s", type(error).__name__, error)

    def _sign(self, state: str) -> None:
        epochs = self._epochs
        if epochs.log.runs.superseded(epochs.token) or not epochs.log.runs.has_claim(epochs.token):
            return  # somebody else's checkpoint, or nobody's
        heartbeat.say(epochs.storage, self._alive(state, self._status()))

    def _alive(self, state: str, status: Status) -> heartbeat.Alive:
        """What this driver says of itself."""
        epochs = self._epochs
        return heartbeat.Alive(
            run=epochs.token,
            at=int(time.time() * 1000),
            host=socket.gethostname(),
            pid=os.getpid(),
            state=state,
            epoch=status.epoch,
            records_per_second=status.records_per_second,
            epoch_millis=status.epoch_millis,
            waits_for=status.waits_for,
            mode=status.mode,
            figures=epochs.figures(),
        )

    @cached_property
    def _identity(self) -> Identity:
        return self._epochs.log.identity()

    def look(self) -> Look:
        """For the page and for metrics: what there is to see, without a look at the checkpoint."""
        status, epochs = self._status(), self._epochs
        found = Overview(
            checkpoint=epochs.storage.url,
            id=self._identity.id,
            shards=epochs.shards,
            token=epochs.token,
            status=status,
            alive=self.running,
            last_sign=self._alive(status.state, status),
        )
        error = self.error
        return Look(found, epochs.latest, list(epochs.metrics), status, "" if error is None else f"{type(error).__name__}: {error}")

    def _last_word(self) -> str:
        return "failed" if self._run.error is not None else "stopped" if self._run.stopping else "ended"


def launch(
    program: Program, narrator: Narrator, *, serve: str | None = None, ui: str | None = None, metrics: str | None = None, **asked: Any
) -> Handle:
    """Starts a pipeline on Spark. asked: see `engine/spark/start.start`."""
    from millstream.engine.spark.start import start

    if ui is not None or metrics is not None:
        from millstream.monitoring.addresses import check_addresses

        check_addresses(ui, metrics, os.environ.get("MILLSTREAM_COOKIE", ""))
    return Handle(program, start(program, say=narrator.say, **asked), narrator, serve, ui, metrics)


def _tasks(slots: list[int]) -> str:
    return f"task{'' if len(slots) == 1 else 's'} {', '.join(map(str, slots))}"


def _metrics(handle: Handle, address: str) -> MetricsServer:
    from millstream.monitoring.prometheus import EpochSeconds, MetricsServer, PipelineCollector, SourcesCollector

    sources = {name: injector.source for name, injector in handle._program.topology.injectors.items()}
    pipelines = PipelineCollector([Observer(handle._epochs.log, handle.look)])
    server = MetricsServer([pipelines, SourcesCollector(handle._program.name, sources)], address)
    handle._feed.takers.append(EpochSeconds(server.registry, handle._program.name))
    return server


def _page(handle: Handle, address: str) -> PageServer:
    """The page of a run. The variable MILLSTREAM_COOKIE is the token that whoever looks from another machine must know."""
    from millstream.monitoring.web_server import PageServer

    return PageServer([Observer(handle._epochs.log, handle.look)], address, os.environ.get("MILLSTREAM_COOKIE", ""))


def _serving(run: Run, address: str) -> ServerThread:
    """Serves what a run commits, or says why not before anything is run. The variable MILLSTREAM_COOKIE is the secret that clients must know."""
    from millstream.service.blocking import ServerThread
    from millstream.service.live.backend import LiveServer

    return ServerThread(LiveServer(run.epochs.storage, address, cookie=os.environ.get("MILLSTREAM_COOKIE", "")))
