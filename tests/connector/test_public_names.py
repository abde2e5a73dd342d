"""What `millstream.connector` offers, and that what it offered before is still there."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import millstream.connector as connector


def test_all_that_is_named_is_there_and_in_order() -> None:
    assert all(hasattr(connector, name) for name in connector.__all__)
    assert connector.__all__ == sorted(connector.__all__, key=lambda name: (name[0].islower(), name))


@pytest.mark.parametrize(
    ("old", "new"),
    [("Files", "FileOutputs"), ("Memory", "MemoryOutputs"), ("Postgres", "PostgresOutputs"), ("Standing", "Recovered")],
)
def test_an_old_name_is_the_new_thing_and_says_so(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old} is called {new}"):
        assert getattr(connector, old) is getattr(connector, new)


def test_a_name_that_never_was_is_none() -> None:
    with pytest.raises(AttributeError, match="Fils"):
        getattr(connector, "Fils")  # noqa: B009


def test_the_old_place_of_the_pushing_client_says_where_it_is_now() -> None:
    sys.modules.pop("millstream.connector.push", None)
    with pytest.warns(DeprecationWarning, match="millstream.connector.push has moved"):
        old = importlib.import_module("millstream.connector.push")
    assert old.PushClient is connector.PushClient


def test_who_uses_the_new_names_is_told_nothing() -> None:
    code = "from millstream.connector import *; import millstream as ms; ms.sinks.connector('127.0.0.1:1').check(); import millstream.cli"
    subprocess.run([sys.executable, "-W", "error::DeprecationWarning:millstream", "-c", code], check=True, timeout=60)
