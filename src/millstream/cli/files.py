"""A pipeline, or tables, in a Python file, for the commands that are given one.

Rule: the file is executed once, here. Its classes and functions travel to the workers by value, so the workers never execute it; modules beside it are
imported by the workers, which get its folder as a path.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from millstream.errors import DefinitionError, MillstreamError
from millstream.pipeline import Pipeline
from millstream.service.table import Table

MODULE = "__millstream_main__"
_NO_SESSION = (
    '\nThere is no Spark session yet when the file is executed. Give keys, timestamps and ids as SQL text (key="lower(user)") instead of '
    "Columns, and a source of "
    'Spark\'s as a function of the session (inject("in", lambda spark: spark.readStream...)).'
)


def load(file: Path) -> ModuleType:
    """Executes a pipeline's file as a module whose content is sent to workers by value."""
    module = execute(file)
    with contextlib.suppress(ModuleNotFoundError):  # without Spark there are no workers
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(module)
    return module


def execute(file: Path) -> ModuleType:
    """Executes a file as a module."""
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    spec = importlib.util.spec_from_file_location(MODULE, file.resolve())
    if spec is None or spec.loader is None:
        raise DefinitionError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    try:
        spec.loader.exec_module(module)
    except MillstreamError:
        raise
    except Exception as error:
        here = error.__traceback__
        while here is not None and here.tb_frame.f_code.co_filename != spec.origin:
            here = here.tb_next
        text = str(error) + type(error).__name__
        hint = _NO_SESSION if any(sign in text for sign in ("SESSION_OR_CONTEXT", "SparkContext", "sparkContext")) else ""
        raise DefinitionError(
            f"{file} cannot be executed\n" + "".join(traceback.format_exception(type(error), error, here)).rstrip() + hint
        ) from error
    return module


def tables_in(module: ModuleType, name: str | None, file: Path) -> list[Table]:
    """The table, or the list of tables, of that name; without a name all tables that the file's variables hold."""
    held = {variable: value for variable, value in vars(module).items() if isinstance(value, Table)}
    if name is None:
        if not held:
            raise DefinitionError(f"{file} has no table: it needs a variable that holds an ms.service.Table.")
        return list({id(table): table for table in held.values()}.values())
    named = vars(module).get(name)
    tables = [named] if isinstance(named, Table) else named
    if not isinstance(tables, (list, tuple)) or not tables or not all(isinstance(table, Table) for table in tables):
        known = ", ".join(sorted(held)) or "none"
        raise DefinitionError(f"{file} has no table, and no list of tables, in a variable {name!r}. It has the tables: {known}.")
    return list(tables)


def pipeline_in(module: ModuleType, name: str | None, file: Path) -> Pipeline:
    """The pipeline of that name; without a name the one called `pipeline`, or the only one."""
    found = {variable: value for variable, value in vars(module).items() if isinstance(value, Pipeline)}
    known = ", ".join(sorted(found))
    if name is not None:
        if name not in found:
            raise DefinitionError(f"{file} has no pipeline in a variable {name!r}. It has: {known or 'none'}.")
        return found[name]
    if "pipeline" in found:
        return found["pipeline"]
    if not found:
        raise DefinitionError(f"{file} has no pipeline: it needs a variable that holds an ms.Pipeline.")
    if len({id(value) for value in found.values()}) > 1:
        raise DefinitionError(f"{file} has several pipelines: {known}. Say which, as in {file}:{min(found)}.")
    return next(iter(found.values()))


def file_and_name(text: str) -> tuple[Path, str | None]:
    """The two parts of FILE:NAME; a file whose own name has a colon is taken as it is."""
    file, colon, name = text.rpartition(":")
    if colon and name.isidentifier() and not Path(text).is_file():
        return Path(file), name
    return Path(text), None
