"""What can be told of a pipeline before Spark is started: columns that a source's schema does not have, hooks that cannot work. Pure.

Rule: only what is certainly wrong is refused here. A source whose columns are not known, and SQL text, are Spark's business.
"""

from __future__ import annotations

import inspect

from millstream.core.computation import Computation
from millstream.core.topology import check_columns
from millstream.engine.program import Compiled
from millstream.errors import DefinitionError

_HOOKS = ("process_record", "process_timer", "process_late_record")


def check(compiled: Compiled) -> None:
    """Raises DefinitionError for the first thing that cannot work."""
    for spec in compiled.topology.computations:
        computation, _ = compiled.make(spec.name)
        check_hooks(spec.name, computation)
    for injector in compiled.topology.injectors.values():
        known = compiled.columns_of(injector)
        injector.check(known)
        for route in compiled.topology.routes:
            if route.stream == injector.name:
                keys = route.key if isinstance(route.key, tuple) else (route.key,)
                check_columns(f"injected stream {injector.name!r}, key of computation {route.computation!r}", keys, known)


_OWN = {name for name in {**vars(Computation), **Computation.__annotations__} if name.startswith("_") and not name.startswith("__")}


def check_hooks(name: str, computation: Computation) -> None:
    """A hook that is a generator or a coroutine would be called and never run; a name that Millstream uses itself would be overwritten."""
    for cls in type(computation).__mro__:
        taken = sorted(_OWN & set(vars(cls))) if cls is not Computation and not cls.__module__.startswith("millstream.") else []
        if taken:
            raise DefinitionError(
                f"computation {name!r}: {cls.__name__}.{taken[0]} is a name that Millstream uses itself: give it another, without the underscore"
            )
    for hook in _HOOKS:
        function = getattr(computation, hook)
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            what = "is async" if not inspect.isgeneratorfunction(function) else "has a yield"
            raise DefinitionError(
                f"computation {name!r}: {type(computation).__name__}.{hook} {what}, so its body would never run. Hooks are plain functions; "
                f"to send something on, call self.produce(value)."
            )
