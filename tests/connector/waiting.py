"""Waiting for something to become true, in one place. That nothing happens is never shown by waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(
    condition: Callable[[], Any], timeout: float = 10, why: Callable[[], str] = lambda: "waited for too long", every: float = 0.01
) -> None:
    """Returns when the condition holds; fails with `why` when it does not in time."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, why()
        time.sleep(every)
