"""Tables, views and joins in resident runs, under faults: every view is right after every epoch, also while a new one is filled."""

from __future__ import annotations

from typing import Any

import pytest
from faultkit import shop, trade

import millstream as ms
from effort import some


@pytest.mark.slow
@pytest.mark.parametrize(("production", "then"), [(ms.WEAK, None), (ms.STRONG, {"more": True})])
def test_seeds_of_resident_faults(production: str, then: dict[str, Any] | None) -> None:
    later = None if then is None else shop(production, **then)
    ms.testing.assert_exactly_once(shop(production), trade(3), seeds=range(some(12)), epochs="same", resident=True, then=later)
