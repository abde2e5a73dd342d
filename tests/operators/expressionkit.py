"""Random expressions, as SQL texts whose types fit, and hostile rows for them."""

from __future__ import annotations

import math
import random
from typing import Any

import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("m", pa.int64()),
        ("d", pa.float64()),
        ("e", pa.float64()),
        ("f", pa.float32()),
        ("s", pa.string()),
        ("u", pa.string()),
        ("b", pa.bool_()),
        ("c", pa.bool_()),
        ("o", pa.struct([("n", pa.int64()), ("t", pa.string())])),
    ]
)
LONGS = [0, 1, -1, 2, 3, -3, 7, 10, 2**31 - 1, -(2**31), 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**62]
DOUBLES = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, -2.5, 3.0, 1e308, 5e-324, 2.0**31, 2.0**53, 2.0**63, -(2.0**63), math.nan, math.inf, -math.inf]
STRINGS = [
    "",
    " ",
    "a",
    "A",
    "ab",
    "aB ",
    "  b",
    "é",
    "É",
    "ß",
    "ΑΣ",
    "日本",
    "\U0001f600",
    "%",
    "_",
    "\\",
    "'",
    "\n",
    "a\nb",
    "\t1",
    "1",
    " 12 ",
    "-7",
    "+3",
]
STRINGS += [
    "1.5",
    "1e3",
    ".5",
    "5.",
    "inf",
    "-Infinity",
    "NaN",
    "nan",
    "0x1p3",
    "1d",
    "true",
    "No",
    "y",
    "99999999999",
    "9223372036854775808",
    "z",
]
COLUMNS = {"long": ["i", "l", "m", "o.n"], "double": ["d", "e", "f"], "string": ["s", "u", "o.t", "`s`"], "boolean": ["b", "c"]}
KINDS = list(COLUMNS)


def value(draw: random.Random, kind: Any) -> Any:
    if draw.random() < 0.15:
        return None
    if pa.types.is_struct(kind):
        return {field.name: value(draw, field.type) for field in kind}
    if kind == pa.int32():
        return draw.choice([0, 1, -1, 5, 2**31 - 1, -(2**31)])
    if kind == pa.int64():
        return draw.choice(LONGS)
    if kind == pa.float32():
        return draw.choice([0.0, 1.5, -2.5, math.nan, math.inf, 0.25])
    if kind == pa.float64():
        return draw.choice(DOUBLES)
    return draw.choice(STRINGS) if kind == pa.string() else draw.random() < 0.5


def table(draw: random.Random, count: int) -> Any:
    return pa.table({field.name: pa.array([value(draw, field.type) for _ in range(count)], field.type) for field in SCHEMA})


def quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n") + "'"


def literal(draw: random.Random, kind: str) -> str:
    if kind == "long":
        return str(draw.choice([*LONGS, 1, 2, 3, 5]))
    if kind == "double":
        return repr(draw.choice([one for one in DOUBLES if math.isfinite(one)]))
    return quoted(draw.choice(STRINGS)) if kind == "string" else draw.choice(["true", "false"])


def pattern(draw: random.Random) -> str:
    return quoted("".join(draw.choice(["a", "b", "%", "_", "é", "\\%", "\\_", "\\\\", "\n", " ", "1"]) for _ in range(draw.randrange(4))))


def text(draw: random.Random, kind: str, depth: int, *, literals: bool = True) -> str:
    """An expression of a type. literals: true, false and null may stand in it; with them Spark's optimizer leaves out what we would work out."""

    def some(of: str) -> str:
        return text(draw, of, depth - 1, literals=literals)

    if depth <= 0:
        if draw.random() < 0.7 or (kind == "boolean" and not literals):
            return draw.choice(COLUMNS[kind])
        return "null" if literals and draw.random() < 0.08 else literal(draw, kind)
    other = draw.choice(KINDS)
    forms = [
        lambda: f"coalesce({some(kind)}, {some(kind)})",
        lambda: f"if({some('boolean')}, {some(kind)}, {some(kind)})",
        lambda: f"case when {some('boolean')} then {some(kind)} when {some('boolean')} then {some(kind)} end",
        lambda: f"case {some(other)} when {some(other)} then {some(kind)} else {some(kind)} end",
        lambda: f"nullif({some(kind)}, {some(kind)})",
        lambda: f"{draw.choice(['greatest', 'least'])}({some(kind)}, {some(kind)}, {some(kind)})",
    ]
    if kind in ("long", "double"):
        number = kind if kind == "long" else draw.choice(["long", "double"])
        forms += 3 * [lambda: f"({some(kind)} {draw.choice('+-*%')} {some(number)})"]
        forms += [lambda: f"abs({some(kind)})", lambda: f"- ({some(kind)})"]
    if kind == "long":
        forms += [
            lambda: f"{draw.choice(['length', 'crc32'])}({some('string')})",
            lambda: f"cast({some(other)} as {draw.choice(['int', 'bigint', 'long'])})",
            lambda: f"{draw.choice(['floor', 'ceil'])}({some(draw.choice(['long', 'double']))})",
        ]
    elif kind == "double":
        forms += 2 * [lambda: f"({some(draw.choice(['long', 'double']))} / {some(draw.choice(['long', 'double']))})"]
        forms += [lambda: f"cast({some(other)} as double)"]
    elif kind == "string":
        forms += [
            lambda: f"{draw.choice(['lower', 'upper', 'trim', 'ltrim', 'rtrim'])}({some('string')})",
            lambda: f"concat({some('string')}, {some('string')}, {some('string')})",
            lambda: f"({some('string')} || {some('string')})",
            lambda: f"substring({some('string')}, {draw.randrange(-3, 4)}, {draw.randrange(-1, 4)})",
            lambda: f"substr({some('string')}, {draw.randrange(-3, 4)})",
            lambda: f"cast({some(draw.choice(['long', 'string', 'boolean']))} as string)",
        ]
    else:
        left, right = (other, other) if other not in ("long", "double") else draw.choices(["long", "double"], k=2)
        compared = draw.choice(["=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"])
        negated = draw.choice(["", "not "])
        items = ", ".join([literal(draw, right) for _ in range(3)] + ["null"] * (literals and draw.random() < 0.3))
        forms += 3 * [
            lambda: f"({some(left)} {compared} {some(right)})",
            lambda: f"({some('boolean')} {draw.choice(['and', 'or'])} {some('boolean')})",
        ]
        forms += [
            lambda: f"(not {some('boolean')})",
            lambda: f"({some(other)} is {negated}null)",
            lambda: f"({some(left)} {negated}in ({items}))",
            lambda: f"({some(left)} {negated}between {some(right)} and {some(right)})",
            lambda: f"({some('string')} {negated}like {pattern(draw)})",
            lambda: f"{draw.choice(['startswith', 'endswith', 'contains'])}({some('string')}, {some('string')})",
            lambda: f"cast({some(other)} as boolean)",
        ]
    return draw.choice(forms)()
