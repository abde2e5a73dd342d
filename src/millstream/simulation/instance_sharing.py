"""Whose instance a hook runs on, varied; and what hooks keep outside of the state, by name.

An instance of a computation serves one shard for one epoch. A program must not build on that: what it keeps on `self` is another key's, or
lost. `SharedWorker` makes it visible: the same run with one instance for everything (ONE), and with a new one for each visit of a key
(VISIT), must give what the run with one per shard and epoch (EPOCH) gives. A cache on `self` is no mistake: it changes no result.

Rules
1. A new instance comes from the user's own factory and is of the user's own class. Nothing is subclassed or patched.
2. What the step binds stays where it is when an instance is renewed; only what the user's class and hooks have put there goes.
3. An attribute is blamed if starting it anew for each visit, all others being kept, changes the result. Guesses are not told.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

from millstream.core.computation import Computation
from millstream.core.statekind import StateKind
from millstream.engine.program import Compiled, Program

EPOCH = "one instance for each shard and epoch"
ONE = "one instance for all keys and epochs"
VISIT = "a new instance for each key and epoch"
SHARINGS = (EPOCH, ONE, VISIT)

_HOOKS = ("process_record", "process_late_record", "process_timer", "finish_key", "finish_epoch")
_BOUND = frozenset(Computation.__annotations__) | {*_HOOKS, "produce"}
_DEEP = 3  # how far into objects that cannot be pickled


class SharedCompiled(Compiled):
    """A worker that shares instances in one of the three ways. renewed: with ONE, the attributes that start anew for each visit."""

    def __init__(self, program: Program, sharing: str = EPOCH, renewed: Collection[str] = ()) -> None:
        super().__init__(program, all_ids=True)
        self.sharing = sharing
        self.renewed = tuple(renewed)
        self.kept: dict[str, Computation] = {}

    def make(self, name: str) -> tuple[Computation, StateKind]:
        if self.sharing == EPOCH:
            return super().make(name)
        if name not in self.kept:
            made = super().make(name)[0]
            if self.sharing == VISIT or self.renewed:
                made = _Renewed(made, lambda: Compiled.make(self, name)[0], self.renewed)
            self.kept[name] = made
        return self.kept[name], self._kinds[name]

    def attributes(self) -> dict[str, list[str]]:
        """By computation: what stands on its instance besides what the step binds."""
        return {name: names for name, made in self.kept.items() if (names := list(_own(made)))}


class _Renewed(Computation):
    """Stands in for an instance of the user's class, with which it shares all attributes, and renews it whenever a key is bound."""

    __slots__ = ("_inner", "_make_inner", "_renewed")

    def __init__(self, inner: Computation, make: Callable[[], Computation], renewed: Collection[str]) -> None:
        self._make_inner = make
        self._renewed = renewed
        self._inner = inner
        self._take_in(inner)

    def _take_in(self, inner: Computation) -> None:
        hooks = {hook: getattr(inner, hook) for hook in _HOOKS}
        self.__dict__.update(vars(inner))
        object.__setattr__(inner, "__dict__", self.__dict__)
        self.__dict__.update(hooks)  # the step calls the inner one's, without a frame of ours in a dead letter's traceback
        self._inner = inner

    def _is_plain(self) -> bool:
        return self._inner._is_plain()

    def _finishes(self) -> bool:
        return self._inner._finishes()

    @property
    def judges_lateness(self) -> bool:  # type: ignore[override]
        return self._inner.judges_lateness

    @property
    def key(self) -> Any:  # type: ignore[override]
        return self.__dict__["key"]

    @key.setter
    def key(self, key: Any) -> None:
        fresh = self._make_inner()
        if self._renewed:
            for name in self._renewed:
                _put(self._inner, name, fresh)
        elif fresh is not self._inner:
            for name in _own(self._inner):
                self.__dict__.pop(name, None)
            self._take_in(fresh)
        self.__dict__["key"] = key


def _put(inner: Computation, name: str, fresh: Computation) -> None:
    if hasattr(fresh, name):
        setattr(inner, name, getattr(fresh, name))
    elif hasattr(inner, name):
        delattr(inner, name)


def _own(instance: Computation) -> Iterator[str]:
    """The names of what the user's class and hooks have put on an instance."""
    yield from [name for name in vars(instance) if name not in _BOUND]
    for of in type(instance).__mro__:
        slots = () if of is _Renewed else vars(of).get("__slots__", ())
        yield from [name for name in ([slots] if isinstance(slots, str) else slots) if hasattr(instance, name)]


# --- what outlives a run


def outside(program: Program) -> dict[str, Any]:
    """What the hooks of a program can reach that outlives a run, by name, as something that can be compared: attributes of classes, variables
    of modules and of functions around, and what every new instance is given."""
    compiled = Compiled(program)
    found: dict[str, Any] = {}
    for spec in program.topology.computations:
        fresh, other = (compiled.make(spec.name)[0] for _ in range(2))
        found.update(
            {f"self.{name}": _print(getattr(fresh, name)) for name in _own(fresh) if getattr(fresh, name) is getattr(other, name, None)}
        )
        for of in type(fresh).__mro__:
            if of in (Computation, object):
                continue
            found.update(_of_class(of))
            for function in _functions(of):
                for name, value in _variables(function):
                    found.update(_of_class(value) if isinstance(value, type) else {name: _print(value)})
    return found


def _of_class(of: type) -> dict[str, Any]:
    if of.__module__ == "builtins" or of.__module__.startswith("millstream."):
        return {}
    values = {
        name: value
        for name, value in vars(of).items()
        if not name.startswith("__") and not callable(value) and not hasattr(type(value), "__get__")
    }
    return {f"{of.__name__}.{name}": _print(value) for name, value in values.items()}


def _functions(of: type) -> Iterator[FunctionType]:
    for value in vars(of).values():
        inner = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
        if isinstance(inner, FunctionType):
            yield inner


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables outside of a function that it speaks of."""
    codes, names = [function.__code__], set[str]()
    while codes:
        code = codes.pop()
        names |= set(code.co_names)
        codes += [inner for inner in code.co_consts if isinstance(inner, type(code))]
    reached = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            reached[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name, value in sorted(reached.items()):
        if not isinstance(value, (ModuleType, FunctionType, MethodType)):
            yield name, value


def _print(value: Any, depth: int = _DEEP) -> Any:
    """A fingerprint: equal for what has not changed."""
    try:
        return pickle.dumps(value)
    except Exception:
        fields = getattr(value, "__dict__", None)
        if depth and fields:
            return {name: _print(field, depth - 1) for name, field in fields.items()}
        return repr(value)
