"""A real Azurite on a free port of this host (scripts/azurite.py), or a skipped test that says why there is none."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest


def start() -> Any:
    name = "azurite"
    spec = importlib.util.spec_from_file_location(name, Path(__file__).resolve().parents[1] / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    try:
        module.fetch()
    except RuntimeError as error:
        pytest.skip(str(error))
    return module.Azurite()
