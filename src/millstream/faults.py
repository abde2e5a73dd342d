"""Crash points: places where a test can have the process killed, by name. Without one armed, nothing happens.

    MILLSTREAM_CRASH="epoch.6-committed@3"        kill -9 of the driver there, in epoch 3
    MILLSTREAM_CRASH="task.4-staging@3"           the same, from inside a task in the middle of staging
    MILLSTREAM_CRASH="worker:task.4-staging@3"    kill -9 of the Python worker only
    MILLSTREAM_CRASH="task.4-staging@3/1.0"       only the task of shard 0 on level 1 of the graph; 1. is any shard of the level, .0 the shard on any level

A resident task stages what all its levels and shards did at once: of the points in step 4, give the shard alone.

Several may be armed, with commas in between.

The points follow the numbers of "One epoch" in docs/architecture.md.
"""

from __future__ import annotations

import os
import signal
import time

POINTS = (
    "epoch.1-looked",  # manifest N does not exist yet
    "epoch.2-read",  # what makes up the state is known
    "task.3-shuffled",  # a task has its records
    "task.4-staging",  # in a micro-batch the unit is written, the sink parts are not; in a resident task neither is
    "task.4-staged",  # everything of this task is durable
    "epoch.5-checked",  # all receipts are there and fit together
    "epoch.6-committed",  # the manifest exists, nothing after it was done
    "epoch.7-publishing",  # some sinks have committed, some not
    "epoch.7-published",  # all sinks have committed
    "epoch.7-done",  # Millstream is done, Spark's own commit log does not know
)

#: The steps of a request in the state service ("The life of a request" in docs/views-and-service.md);
#: armed as "request.4-logged@7", at the seventh request there.
REQUEST_POINTS = (
    "request.1-routed",  # the partition is found
    "request.2-queued",  # it waits for its turn
    "request.3-turned",  # the turn has decided, nothing is written
    "request.4-logged",  # the log has been given the record
    "request.5-durable",  # the log has it durably
    "request.6-applied",  # the store has it
    "request.7-answered",  # the answer is about to go out
)

VARIABLE = "MILLSTREAM_CRASH"
_LAST = 30.0  # seconds that a task outlives the driver it has killed


def armed() -> str:
    """What the environment arms; travels to the tasks inside the epoch."""
    return os.environ.get(VARIABLE, "")


def text_of(point: str, epoch: int, worker: bool = False, level: int | None = None, shard: int | None = None) -> str:
    """What arms a point.

    >>> text_of("task.4-staging", 3, worker=True, level=1)
    'worker:task.4-staging@3/1.'
    """
    place = "" if level is None and shard is None else f"/{'' if level is None else level}.{'' if shard is None else shard}"
    return f"{'worker:' if worker else ''}{point}@{epoch}{place}"


def point(name: str, epoch: int, spec: str, driver: int | None = None, level: int | None = None, shard: int | None = None) -> None:
    """Kills the process if this point is armed for this epoch, and for this task."""
    if not spec:
        return
    for one in spec.split(","):
        whom, _, what = one.rpartition(":")
        where, _, place = what.partition("/")
        if where == f"{name}@{epoch}" and _is_here(place, level, shard):
            _kill(whom, f"{driver}-{name}-{epoch}-{place}", driver)


def _is_here(place: str, level: int | None, shard: int | None) -> bool:
    at_level, _, at_shard = place.partition(".")
    return at_level in ("", str(level)) and at_shard in ("", str(shard))


def _kill(whom: str, which: str, driver: int | None) -> None:
    if whom == "worker":
        flag = f"/tmp/millstream-crash-{which}"  # a worker dies once, not on every retry
        try:
            os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
    os.kill(driver or os.getpid(), signal.SIGKILL)
    time.sleep(_LAST)  # a task goes no further; its executor ends it, or it ends by itself
    os._exit(1)


class CrashPoints:
    """The crash points of a driver. armed: see above."""

    def __init__(self, armed: str = "") -> None:
        self.armed = armed

    def __call__(self, name: str, epoch: int) -> None:
        point(name, epoch, self.armed)
