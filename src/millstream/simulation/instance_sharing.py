"""Whose instance a hook runs on, varied; and what hooks keep outside of the state, by name.

An instance of a computation serves one shard for one epoch. A program must not build on that: what it keeps on `self` is another key's, or lost. So the same
run with one instance for everything (ONE) must give what the run with one per shard and epoch (EPOCH) gives. A cache on `self` is no mistake: it changes no
result.

Rules
1. Instances come from the user's own factory. Nothing is subclassed or patched.
2. An attribute is blamed if starting it anew for each shard and epoch, all others being kept, changes the result. Guesses are not told.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Collection, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

from millstream.core.computation import Computation
from millstream.core.statekind import StateKind
from millstream.engine.program import Compiled, Program

EPOCH = "a new instance for each shard and epoch"
ONE = "one instance for all keys and epochs"
SHARINGS = (EPOCH, ONE)

_HOOKS = ("process_record", "process_records", "process_late_record", "process_timer", "process_expiry", "finish_key", "finish_epoch")
_BOUND = frozenset(Computation.__annotations__) | {*_HOOKS, "produce"}  # what a step puts on an instance
_DEEP = 3  # how far into objects that cannot be pickled


class SharedCompiled(Compiled):
    """A worker that shares instances in one of the two ways. renewed: with ONE, the attributes that start anew for each shard and epoch."""

    def __init__(self, program: Program, sharing: str = EPOCH, renewed: Collection[str] = ()) -> None:
        super().__init__(program, all_ids=True)
        self.sharing = sharing
        self.renewed = tuple(renewed)
        self.kept: dict[str, Computation] = {}

    def make(self, name: str) -> tuple[Computation, StateKind]:
        fresh, kind = super().make(name)
        if self.sharing == EPOCH:
            return fresh, kind
        kept = self.kept.setdefault(name, fresh)
        for attribute in self.renewed:
            if hasattr(fresh, attribute):
                setattr(kept, attribute, getattr(fresh, attribute))
            elif hasattr(kept, attribute):
                delattr(kept, attribute)
        return kept, kind

    def attributes(self) -> dict[str, list[str]]:
        """By computation: what stands on its instance besides what the step binds."""
        return {name: names for name, made in self.kept.items() if (names := list(_own(made)))}


def _own(instance: Computation) -> Iterator[str]:
    """The names of what the user's class and hooks have put on an instance."""
    yield from [name for name in vars(instance) if name not in _BOUND]
    for of in type(instance).__mro__:
        slots = vars(of).get("__slots__", ())
        yield from [name for name in ([slots] if isinstance(slots, str) else slots) if hasattr(instance, name)]


# --- what outlives a run


def outside(program: Program) -> dict[str, Any]:
    """What the hooks of a program can reach that outlives a run, by name, as something that can be compared: attributes of classes, variables
    of modules and of functions around, and what every new instance is given."""
    compiled = Compiled(program)
    found: dict[str, Any] = {}
    for spec in program.topology.computations:
        fresh, other = (compiled.make(spec.name)[0] for _ in range(2))
        given = {name: getattr(fresh, name) for name in _own(fresh)}
        found.update({f"self.{name}": _print(value) for name, value in given.items() if value is getattr(other, name, None)})
        for of in type(fresh).__mro__:
            found.update(_of_class(of))
            for value in () if of.__module__.startswith("millstream.") else vars(of).values():
                function = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
                for name, reached in _variables(function) if isinstance(function, FunctionType) else ():
                    found.update(_of_class(reached) if isinstance(reached, type) else {name: _print(reached)})
    return found


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables outside of a function that it, or a function within it, speaks of. (`inspect.getclosurevars` leaves out those within.)"""
    codes, names = [function.__code__], set[str]()
    while codes:
        code = codes.pop()
        names |= set(code.co_names)
        codes += [inner for inner in code.co_consts if isinstance(inner, type(code))]
    reached = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet
            reached[name] = cell.cell_contents
    for name, value in sorted(reached.items()):
        if not isinstance(value, (ModuleType, FunctionType, MethodType)):
            yield name, value


def _of_class(of: type) -> dict[str, Any]:
    if of.__module__ == "builtins" or of.__module__.startswith("millstream."):
        return {}
    own = {name: value for name, value in vars(of).items() if not name.startswith("__")}
    return {
        f"{of.__name__}.{name}": _print(value) for name, value in own.items() if not callable(value) and not hasattr(type(value), "__get__")
    }


def _print(value: Any, depth: int = _DEEP) -> Any:
    """A fingerprint: equal for what has not changed."""
    try:
        return pickle.dumps(value)
    except Exception:
        fields = getattr(value, "__dict__", None)
        if depth and fields:
            return {name: _print(field, depth - 1) for name, field in fields.items()}
        return repr(value)
