"""python scripts/api_page.py: prints the page of the API in Markdown, from the docstrings of the public names.

Public is what a module's `__all__` says. A class is described by its docstring, its arguments, and those of its methods that have a docstring.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import millstream as ms
from millstream.handle import Handle
from millstream.operators import streams
from millstream.views import dsl

#: By the name of a module, what it has beside, or in place of, its `__all__`.
MORE = {"ms": ["sum", "min", "max"], "ms.views": ["frame", "origins", "read"]}
#: What calls of other things give. Nobody makes one, so nobody needs their arguments.
GIVEN = [streams.Keyed, streams.Windowed, dsl.PipelineTable, dsl.Mapped, dsl.Grouped, dsl.Relation, dsl.View, dsl.Joined, Handle]
#: Public methods of theirs that only the engine calls.
HIDDEN = {ms.MapState: {"bind", "is_bound", "belongs_to", "take_over", "changes", "copied", "put_back"}, ms.Record: {"anew"}}
UNMADE = {*GIVEN, ms.Computation, ms.Stream, ms.Record, ms.Timer}


def page() -> str:
    modules = {"ms": ms, **{f"ms.{name}": getattr(ms, name) for name in ms.__all__ if isinstance(getattr(ms, name), ModuleType)}}
    parts = ["# API\n\nEvery public name, from its docstring. The pages on [operators](operators.md), [computations](computations.md) and"]
    parts[0] += "\n[sources and sinks](sources-and-sinks.md) say what they are for. `import millstream as ms`.\n"
    for name, module in modules.items():
        parts += [f"## {name} {{#{name}}}\n", said((inspect.getdoc(module) or "").split("\n\n")[0]), *entries(name, module)]
    parts.append("## What calls give {#given}\n")
    for cls in GIVEN:
        parts += entry(cls.__name__, cls)
    return "\n".join(parts)


def names_in(name: str, module: ModuleType) -> list[str]:
    """The public names of a module. Without `__all__` they are the functions and classes that it defines."""
    own = [one for one, what in vars(module).items() if not one.startswith("_") and getattr(what, "__module__", "") == module.__name__]
    return [*getattr(module, "__all__", [] if name in MORE else own), *MORE.get(name, [])]


def entries(name: str, module: ModuleType) -> Iterator[str]:
    found = {one: getattr(module, one) for one in names_in(name, module)}
    plain = {one: what for one, what in found.items() if not isinstance(what, ModuleType) and not callable(what)}
    if plain:
        yield "| constant | value |\n| --- | --- |"
        yield from (f"| `{name}.{one}` | {value_of(what)} |" for one, what in plain.items())
        yield ""
    last = {id(what): one for one, what in found.items()}  # of a class with two names the one that users write, which comes later
    for one, what in found.items():
        if callable(what) and last[id(what)] == one:
            yield from entry(f"{name}.{one}", what)


def entry(title: str, what: Any) -> Iterator[str]:
    """A class or a function, and the methods of a class."""
    yield f"### {title} {{#{title}}}\n"
    if what not in UNMADE and not (isinstance(what, type) and issubclass(what, Exception)):
        yield f"```python\n{title}{signature(what)}\n```\n"
    if not isinstance(what, type):
        yield said(inspect.getdoc(what) or "")
        return
    yield said(inspect.cleandoc(vars(what).get("__doc__") or ""))  # its own, and no base's
    for name, member in vars(what).items():
        inner = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if name.startswith("_") or name in HIDDEN.get(what, ()) or not getattr(inner, "__doc__", None) or not inspect.isfunction(inner):
            continue
        given = "" if isinstance(member, property) else signature(inner, drop=0 if isinstance(member, staticmethod) else 1)
        yield f"#### {name} {{#{title}.{name}}}\n\n```python\n{name}{given}\n```\n\n{said(inspect.getdoc(inner) or '')}"


def signature(what: Any, drop: int = 0) -> str:
    """The arguments, as they are written; on a line each if there are many."""
    try:
        known = inspect.signature(what)
    except (TypeError, ValueError):
        return "(...)"
    parts, star = [], False
    for one in list(known.parameters.values())[drop:]:
        if one.name.startswith("_"):
            continue
        if one.kind is one.KEYWORD_ONLY and not star:
            parts.append("*")
        star = star or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        hint = "" if one.annotation is one.empty else f": {text_of(one.annotation)}"
        default = "" if one.default is one.empty else f" = {shown(one.default)}" if hint else f"={shown(one.default)}"
        parts.append({one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "") + one.name + hint + default)
    gives = "" if known.return_annotation in (known.empty, "None", None) else f" -> {text_of(known.return_annotation)}"
    line = f"({', '.join(parts)}){gives}"
    return line if len(line) <= 90 else "(\n" + "".join(f"    {part},\n" if part != "*" else "    *,\n" for part in parts) + f"){gives}"


def text_of(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:typing|collections\.abc|millstream(?:\.\w+)*)\.(?=\w)", "", text)


def value_of(constant: Any) -> str:
    text = shown(constant)
    return said(inspect.getdoc(constant) or "").split("\n")[0] if text == "..." else f"`{text}`"


def shown(value: Any) -> str:
    """A value as it is written; without its address, if it has one."""
    text = repr(value)
    return "..." if text.startswith("<") else text if len(text) <= 60 else "..."


def said(text: str) -> str:
    """A docstring as Markdown: examples are blocks, and what looks like markup is none."""
    parts = []
    for paragraph in re.split(r"\n\n+", text):
        prose, arrow, example = paragraph.partition(">>>")
        if prose.startswith("    "):
            parts.append(f"```text\n{inspect.cleandoc(prose)}\n```")
        elif prose.strip():
            pieces = re.split(r"(`[^`]*`)", prose.strip())
            parts.append("".join(one if one.startswith("`") else re.sub(r"([*_<\[\]|])", r"\\\1", one) for one in pieces))
        if arrow:
            parts.append(f"```pycon\n{arrow}{example.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(page())
