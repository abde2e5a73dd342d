"""A real Azurite on a free port of this host (scripts/azurite.py), or a skipped test that says why there is none."""

from __future__ import annotations

from typing import Any

import azurite
import pytest


def start() -> Any:
    try:
        azurite.fetch()
    except RuntimeError as error:
        pytest.skip(str(error))
    return azurite.Azurite()
