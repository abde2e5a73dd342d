"""Crash points: places where a test can have the process killed, by name. Without one armed, nothing happens.

    MILLSTREAM_CRASH="epoch.6-committed@3"        kill -9 of the driver there, in epoch 3
    MILLSTREAM_CRASH="task.4-staging@3"           the same, from inside a task in the middle of staging
    MILLSTREAM_CRASH="worker:task.4-staging@3"    kill -9 of the Python worker only

The points follow the numbers of "One epoch" in docs/design.md.
"""

from __future__ import annotations

import os
import signal

POINTS = (
    "epoch.1-looked",  # manifest N does not exist yet
    "epoch.2-read",  # what makes up the state is known
    "task.3-shuffled",  # a task has its records
    "task.4-staging",  # the unit is written, the sink parts are not
    "task.4-staged",  # everything of this task is durable
    "epoch.5-checked",  # all receipts are there and fit together
    "epoch.6-committed",  # the manifest exists, nothing after it was done
    "epoch.7-publishing",  # some sinks have committed, some not
    "epoch.7-published",  # all sinks have committed
    "epoch.7-done",  # Millstream is done, Spark's own commit log does not know
)

VARIABLE = "MILLSTREAM_CRASH"


def armed() -> str:
    """What the environment arms; travels to the tasks inside the epoch."""
    return os.environ.get(VARIABLE, "")


def point(name: str, epoch: int, spec: str, driver: int | None = None) -> None:
    """Kills the process if this point is armed for this epoch."""
    if not spec:
        return
    whom, _, what = spec.rpartition(":")
    if what != f"{name}@{epoch}":
        return
    if whom == "worker":
        flag = f"/tmp/millstream-crash-{driver}-{name}-{epoch}"  # a worker dies once, not on every retry
        try:
            os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
    os.kill(driver or os.getpid(), signal.SIGKILL)
    signal.pause()
