"""One line of JSON, read by the rules of Spark's parser (Jackson with Spark's defaults). Exact, and not quick. Pure.

Rules
1. Strings may stand in single quotes. NaN, Infinity, -Infinity, +Infinity, -INF and +INF are numbers. Comments, commas at the end, leading zeros
   and control characters in strings are errors.
2. The first value of a line is read. What stands behind it is not looked at.
3. Half of a surrogate pair becomes "?".
4. A node keeps where it stands in the line, because a column of strings takes what is no string as it is written.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = re.compile(r"(?:true|false|null|NaN|Infinity|[+-](?:Infinity|INF))(?![\w$])")
_STRING = {'"': re.compile(r'([^"\\\x00-\x1f]*)(["\\]?)'), "'": re.compile(r"([^'\\\x00-\x1f]*)(['\\]?)")}
_ESCAPE = re.compile(r"\\(?:([\"'\\/bfnrt])|u([0-9a-fA-F]{4}))")
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HALF = re.compile("[\ud800-\udfff]")
_DEEP = 1000


class MalformedLine(Exception):
    """A line that is not JSON."""


class JsonValue(NamedTuple):
    """A value. kind: "string", "int", "float", "word", "null", "object" (its value is a list of pairs) or "array"."""

    kind: str
    value: Any
    start: int
    end: int


def first_value(text: str) -> JsonValue | None:
    """The first value of a line; None for an empty one.

    >>> first_value(" {'a': [1, 2.5]} and more").value[0][1].value[1].value
    '2.5'
    """
    at = _skip(text, 0)
    return None if at == len(text) else _value(text, at, 0)


def _skip(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]


def _value(text: str, at: int, depth: int) -> JsonValue:
    sign = text[at : at + 1]
    if sign in ('"', "'") and sign:
        value, end = _string(text, at)
        return JsonValue("string", value, at, end)
    if sign == "{":
        return _object(text, at, depth + 1)
    if sign == "[":
        return _array(text, at, depth + 1)
    word = _WORD.match(text, at)
    if word is not None:
        said = word.group()
        return JsonValue("null" if said == "null" else "word" if said in ("true", "false") else "float", said, at, word.end())
    number = _NUMBER.match(text, at)
    if number is None or number.end() - at > _DEEP:
        raise MalformedLine
    if text[number.end() : number.end() + 1] not in ("", ",", "]", "}", " ", "\t", "\r", "\n"):
        raise MalformedLine
    return JsonValue("float" if number.group(1) or number.group(2) else "int", number.group(), at, number.end())


def _string(text: str, at: int) -> tuple[str, int]:
    pattern, sign = _STRING[text[at]], text[at]
    parts: list[str] = []
    at += 1
    while True:
        plain, stop = pattern.match(text, at).groups()  # type: ignore[union-attr]
        parts.append(plain)
        at += len(plain) + 1
        if stop == sign:
            whole = "".join(parts)
            return (_joined(whole) if len(parts) > 1 and _HALF.search(whole) else whole), at
        escape = _ESCAPE.match(text, at - 1) if stop else None
        if escape is None:
            raise MalformedLine
        named, code = escape.groups()
        parts.append(chr(int(code, 16)) if named is None else _ESCAPED.get(named, named))
        at = escape.end()


def _joined(text: str) -> str:
    """Pairs of surrogates as one character, halves as "?"."""
    paired = re.sub(
        "[\ud800-\udbff][\udc00-\udfff]",
        lambda pair: chr(0x10000 + ((ord(pair.group()[0]) - 0xD800) << 10) + ord(pair.group()[1]) - 0xDC00),
        text,
    )
    return _HALF.sub("?", paired)


def _object(text: str, start: int, depth: int) -> JsonValue:
    if depth > _DEEP:
        raise MalformedLine
    pairs: list[tuple[str, JsonValue]] = []
    at = _skip(text, start + 1)
    if text[at : at + 1] == "}":
        return JsonValue("object", pairs, start, at + 1)
    while True:
        if text[at : at + 1] not in ('"', "'") or at >= len(text):
            raise MalformedLine
        name, at = _string(text, at)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise MalformedLine
        node = _value(text, _skip(text, at + 1), depth)
        pairs.append((name, node))
        at = _skip(text, node.end)
        sign = text[at : at + 1]
        if sign == "}":
            return JsonValue("object", pairs, start, at + 1)
        if sign != ",":
            raise MalformedLine
        at = _skip(text, at + 1)


def _array(text: str, start: int, depth: int) -> JsonValue:
    if depth > _DEEP:
        raise MalformedLine
    nodes: list[JsonValue] = []
    at = _skip(text, start + 1)
    if text[at : at + 1] == "]":
        return JsonValue("array", nodes, start, at + 1)
    while True:
        node = _value(text, at, depth)
        nodes.append(node)
        at = _skip(text, node.end)
        sign = text[at : at + 1]
        if sign == "]":
            return JsonValue("array", nodes, start, at + 1)
        if sign != ",":
            raise MalformedLine
        at = _skip(text, at + 1)
