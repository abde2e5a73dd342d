"""What `millstream.connector` offers."""

from __future__ import annotations

import millstream.connector as connector


def test_all_that_is_named_is_there_and_in_order() -> None:
    assert all(hasattr(connector, name) for name in connector.__all__)
    assert connector.__all__ == sorted(connector.__all__, key=lambda name: (name[0].islower(), name))
