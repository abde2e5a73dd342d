"""Files that a reader may meet, good and bad: pools of values by type, and lines made of them by chance."""

from __future__ import annotations

import decimal
import json
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa


def _pool(text: str) -> list[str]:
    return text.split(" | ")


def _pools(plain: str, unusual: str) -> tuple[list[str], list[str]]:
    return _pool(plain), _pool(unusual)


#: By type, texts of values as they may stand in JSON: those of a plain form, which must be read, and others.
JSON_VALUES = {
    "string": _pools(
        '"x" | "ä€😀" | "a b" | "" | 1 | 1.50 | 1e3 | true | "\\ud83d\\ude00" | "\\/"',
        '{"a": 1,  "b":[1, 2]} | [1 , 2] | NaN | "\\ud800" | -0.0 | "a\\u0000b" | {"q":"\\u0041"} | \'s\' | {\'a\':\'b\'} | '
        '123456789012345678901234567890 | -Infinity | +5 | 01 | -INF | "\\x" | "tab\there" | \'it\\\'s\'',
    ),
    "byte": _pools(
        "1 | -128 | 127",
        '128 | 255 | 256 | -129 | 1.0 | "1" | true | "" | 1e1 | -0',
    ),
    "short": _pools(
        "1 | 32767 | -32768",
        "32768 | 65535 | 1.0",
    ),
    "int": _pools(
        "0 | 2147483647",
        '2147483648 | 1.0 | "5" | []',
    ),
    "long": _pools(
        "7 | -9223372036854775808 | 9223372036854775807",
        '9223372036854775808 | 1.0 | 1e3 | "1" | true | [1] | {} | -0 | 007',
    ),
    "float": _pools(
        "1 | 0.1 | 2.5e3 | 16777217 | NaN | -0",
        '1.00000017881393432617187499 | 1e40 | 1e-50 | "NaN" | "Infinity" | "1" | "-INF" | -Infinity | +Infinity | INF | '
        '+INF | 9007199791611905 | -0.0 | ""',
    ),
    "double": _pools(
        '1 | 0.1 | 1e+5 | 123456789012345678901234567890 | NaN | "NaN" | -Infinity | -0 | -0.0 | 1e400',
        '-1e400 | 1e-400 | "nan" | "Infinity" | "+INF" | "1.5" | Infinity | 1. | .5 | -.5 | "" | 0.1e | -NaN | +1',
    ),
    "boolean": _pools(
        "true | false",
        '"true" | 1 | 0 | True',
    ),
    "binary": _pools(
        '"aGk=" | ""',
        '"aGk" | "a G k =" | "!!" | 5 | "aGk=aGk=" | "_-_-" | " aGk= "',
    ),
    "date": _pools(
        '"2020-01-02" | "1999-12-31"',
        '"2020-1-2" | "2020-01-02T10:00:00" | "2020-01-02 zzz" | "2020" | "2020-05" | 18000 | "18000" | "" | '
        '" 2020-01-02 " | "10000-01-01" | "+2020-01-02" | "-0001-01-01" | "2020-02-30" | "20200102" | "123" | "-200000" | '
        '"0000-01-01" | "2020-01-02+01:00" | "2020-13-01"',
    ),
    "timestamp": _pools(
        '"2020-01-02T03:04:05Z" | "2020-01-02 03:04:05" | "2020-01-02T03:04:05.123456Z" | "1500-01-01T00:00:00Z" | '
        '"2020-01-02 03:04:05.123456789" | "2020-01-02T03:04:05.1+02:00" | "2020-01-02" | "2020-01-02T03:04" | '
        "1577934245 | -1",
        '"2020" | "2020-1-2 3:4:5" | 1577934245.5 | "1577934245" | "" | "2020-01-02T03:04:05 UTC" | '
        '"2020-01-02T03:04:05GMT" | "2020-01-02T03:04:05 Europe/Berlin" | "2020-01-02T03:04:05+0200" | '
        '"2020-01-02T03:04:05+2" | "2020-01-02T24:00:00" | "2020-01-02T03:04:60" | "2020-02-30T00:00:00" | "now" | '
        '"2020-01-02T03:04:05.Z" | "10000-01-01T00:00:00Z" | "-0001-01-01T00:00:00Z" | 99999999999999 | '
        '9223372036854775807 | "2020-01-02T03:04:05UTC+1" | "2020-01-02T03:04:05+02:00:01" | "2020-01-02T03:04:05 PST" | '
        '"2020-01-02 03:04:05+19:00" | "2020-01-02T03:04GMT" | "2020-03-29T02:30:00 Europe/Berlin" | '
        '"2020-10-25T02:30:00 Europe/Berlin" | "294247-01-10T04:00:54.775808Z" | "2020-01-02T03:04Z" | " T03:04:05"',
    ),
    "timestamp_ntz": _pools(
        '"2020-01-02T03:04:05" | "2020-01-02 03:04:05.5" | "2020-01-02"',
        '"2020-01-02T03:04:05Z" | 1577934245 | "2020-01-02T03:04:05+02:00" | "03:04:05" | "" | "2020-01"',
    ),
    "decimal(10,2)": _pools(
        '1 | 1.5 | -3.25 | 99999999.99 | 1.555 | 1.545 | -1.555 | "1.5" | 1e3 | 1e-5',
        '99999999.999 | 100000000 | "1,234.5" | "abc" | "" | "1e3" | " 1.5" | "NaN" | true | 1E9',
    ),
}

#: Likewise for CSV.
CSV_VALUES = {
    "string": _pools(
        "x | ä€😀 | a b | ",
        " x  | null | 'q' | a\tb",
    ),
    "byte": _pools(
        "1 | -128",
        "128 | 255 | +5",
    ),
    "short": _pools(
        "1 | 32767",
        "32768 | 1.0",
    ),
    "int": _pools(
        "0 | 2147483647 | ",
        "2147483648 | +5 |  5",
    ),
    "long": _pools(
        "7 | -9223372036854775808 | ",
        "9223372036854775808 | +1 | 01 | -0 | 1L | 1.0 |  1 | 1  | ٣ | --1 | - | 1e3 | 0x1",
    ),
    "float": _pools(
        "1 | 0.1",
        "1.00000017881393432617187499 | 1e40 | NaN | Inf | -Inf | 1f | 9007199791611905",
    ),
    "double": _pools(
        "1 | 1.5 | -0.0 | 1.5e3 |  | NaN | Infinity | 1e400 | -0",
        "nan | inf | Inf | +Infinity | 1d | 0x1p3 |  1.5 | 1.5  | 1e-400 | .5 | 5. | +1 | 1_0 | -Inf | -NaN | 1e",
    ),
    "boolean": _pools(
        "true | false | TRUE | ",
        "1 | t |  true | yes",
    ),
    "decimal(10,2)": _pools(
        "1 | 1.5 | 99999999.99 |  | 1.555 | -1.555 | 1e3",
        "99999999.999 | 100000000 | abc | 1e-5 |  1.5 | +1 | 1. | NaN",
    ),
    "date": _pools(
        "2020-01-02 | ",
        "2020-1-2 | 2020-01-02 zzz | 2020 | 18000 |  2020-01-02  | 2020-02-30 | 20200102 | 123 | 2020-01-02GMT | -800000 | 2020-00-01",
    ),
    "timestamp": _pools(
        "2020-01-02T03:04:05Z | 2020-01-02 03:04:05 |  | 2020-01-02 | 2020-01-02T03:04:05.5+01:00 | 2020-01-02T03:04",
        "2020 | 1577934245 | 2020-01-02T03:04:05 Europe/Berlin | 2020-01-02T24:00:00 | 2020-01-02T03:04GMT | "
        "2020-01-02T03:04:05 EST | 1800-01-01T00:00:00 Europe/Berlin | 2020-01-02T03:04:05+01:3 | "
        "2020-01-02T03:04:05+123 | 2020-01-02T03:04:05+123456 | 2020-01-02T03:04:05 utc | 2020-01-02T03:04:05.+01:00 | "
        "2020-01-02T03:04:05.5.5 | 2020-01-02  03:04:05 | 123:04:05 | 3000-07-01T00:00:00 Europe/Berlin",
    ),
    "timestamp_ntz": _pools(
        "2020-01-02T03:04:05 | ",
        "2020-01-02T03:04:05Z | 2020 | 03:04:05 |  2020-01-02T03:04:05",
    ),
}

#: Whole lines that are no usual object.
JSON_LINES = _pool(
    ' |     | {} | [] | [{"c0":1},{"c0":2}] | [1,2] | [{"c0":1},5] | 5 | "x" | null | true | {"c0":1} garbage | '
    '{"c0":1}{"c0":2} | {"c0":1,} | {"c0":1,"c1":"a" | {\'c0\':1,\'c1\':\'it\'\'s\'} | {c0:1} | {"c0":1,"c0":2} | {"C0":1} | '
    '{"c0":1}/*c*/ | /*c*/{"c0":1} | \t{"c0":1}\t | } | {"":1,"c0":1} | {"c0":1,"zz":{"a":[1,{"b":tru}]}} | '
    '{"c0":1,"zz":Inf} | {"c0":1,"zz":[NaN, Infinity]} | {"c0" 1} | {"c0":1;"c1":1} | {"zz":1,"zz":2} | [ | {'
)


def json_schema(chance: random.Random) -> dict[str, str]:
    """Columns and their types, nested ones among them."""
    return {f"c{at}": _kind(chance, 2) for at in range(chance.randint(1, 6))}


def _kind(chance: random.Random, deep: int) -> str:
    what = chance.random()
    if deep and what < 0.1:
        return f"array<{_kind(chance, deep - 1)}>"
    if deep and what < 0.2:
        return f"struct<a:{_kind(chance, deep - 1)},b:{_kind(chance, deep - 1)}>"
    if deep and what < 0.27:
        return f"map<string,{_kind(chance, deep - 1)}>"
    return chance.choice(list(JSON_VALUES))


def json_value(chance: random.Random, kind: str, odd: float) -> str:
    """The text of a value that mostly fits. odd: how likely it is an unusual one."""
    if chance.random() < 0.1:
        return "null"
    if chance.random() < odd / 4:
        return chance.choice(["[]", "{}", "5", '"x"', "true", "[1,2]", '{"a":1}'])
    if kind.startswith("array<"):
        return f"[{','.join(json_value(chance, kind[6:-1], odd) for _ in range(chance.randint(0, 3)))}]"
    if kind.startswith("map<string,"):
        return "{" + ",".join(f'"k{at}":{json_value(chance, kind[11:-1], odd)}' for at in range(chance.randint(0, 3))) + "}"
    if kind.startswith("struct<"):
        first, second = _halves(kind[7:-1])
        parts = [
            f'"{name}":{json_value(chance, of, odd)}'
            for name, of in ((first[0], first[1]), (second[0], second[1]))
            if chance.random() < 0.9
        ]
        return "{" + ",".join(parts) + "}"
    plain, unusual = JSON_VALUES[kind]
    return chance.choice(unusual if chance.random() < odd else plain)


def _halves(inner: str) -> list[tuple[str, str]]:
    depth, cut = 0, 0
    for at, sign in enumerate(inner):
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and depth == 0:
            cut = at
            break
    return [(part[0], part[2:]) for part in (inner[:cut], inner[cut + 1 :])]


def json_line(chance: random.Random, schema: dict[str, str], odd: float) -> str:
    if chance.random() < odd / 5:
        return chance.choice(JSON_LINES)
    parts = [f"{json.dumps(name)}:{json_value(chance, kind, odd)}" for name, kind in schema.items() if chance.random() < 0.95]
    if chance.random() < odd / 4:
        parts.append(f'"extra":{json_value(chance, "string", 0)}')
    if chance.random() < odd / 4 and parts:
        parts.append(chance.choice(parts))
    chance.shuffle(parts)
    line = "{" + ("," if chance.random() < 0.7 else " , ").join(parts) + "}"
    return mangled(chance, line, '{}[]",:\\ 0-xtfn') if chance.random() < odd / 3 else line


def mangled(chance: random.Random, line: str, signs: str) -> str:
    """A line with one sign more, less or changed."""
    at = chance.randrange(len(line) + 1)
    return line[:at] + chance.choice([*signs, ""]) + line[at + chance.randint(0, 1) :]


def csv_schema(chance: random.Random) -> dict[str, str]:
    return {f"c{at}": chance.choice(list(CSV_VALUES)) for at in range(chance.randint(1, 5))}


def csv_line(chance: random.Random, schema: dict[str, str], separator: str, quote: str, escape: str, odd: float) -> str:
    if chance.random() < odd / 4:
        signs = ["a", "b", quote, quote, escape, escape, separator, " ", "\t", "1", quote * 2, "'"]
        return "".join(chance.choice(signs) for _ in range(chance.randint(0, 14)))
    parts = []
    for kind in schema.values():
        plain, unusual = CSV_VALUES[kind]
        value = chance.choice(unusual if chance.random() < odd else plain)
        parts.append(f"{quote}{value}{quote}" if chance.random() < 0.2 else value)
    if chance.random() < odd / 6:
        parts = parts[:-1] if chance.random() < 0.5 else [*parts, "more"]
    return separator.join(parts)


def text_file(chance: random.Random, line: Callable[[float], str]) -> bytes:
    """A file of some lines: usual ones only, or with unusual ones among them."""
    odd = chance.choice([0.0, 0.0, 0.1, 0.5])
    ends = chance.choice([["\n"], ["\r\n"], ["\n", "\r", "\r\n", "\n\n"]])
    text = "".join(line(odd) + chance.choice(ends) for _ in range(chance.randint(0, 8)))
    if chance.random() < 0.3:
        text = text.rstrip("\r\n")
    mark = b"\xef\xbb\xbf" if chance.random() < 0.1 else b""
    return mark + text.encode("utf-8", "replace")


def arrow_value(chance: random.Random, kind: Any) -> Any:
    """A value of an Arrow type, or null."""
    t = pa.types
    if chance.random() < 0.15:
        return None
    if t.is_list(kind):
        return [arrow_value(chance, kind.value_type) for _ in range(chance.randint(0, 3))]
    if t.is_map(kind):
        return [(f"k{at}", arrow_value(chance, kind.item_type)) for at in range(chance.randint(0, 3))]
    if t.is_struct(kind):
        return {kind.field(at).name: arrow_value(chance, kind.field(at).type) for at in range(kind.num_fields)}
    if t.is_string(kind):
        return chance.choice(["", "x", "ä€😀", "a\0b"])
    if t.is_binary(kind):
        return chance.choice([b"", b"\xff\0"])
    if t.is_boolean(kind):
        return chance.random() < 0.5
    if t.is_decimal(kind):
        return decimal.Decimal(chance.randint(-(10**kind.precision) + 1, 10**kind.precision - 1)).scaleb(-kind.scale)
    if t.is_floating(kind):
        return chance.choice([0.0, -0.0, 1.5, float("nan"), float("-inf"), 2.0**-20])
    if t.is_date(kind):
        return chance.randint(-700_000, 2_000_000)
    if t.is_timestamp(kind):
        return chance.randint(-(10**16), 10**16)
    return chance.randint(-(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1)


def ddl(schema: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in schema.items())


def plain(value: Any) -> Any:
    """Something that is equal where two values are, also for NaN and zeros."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return tuple(plain(one) for one in value) if isinstance(value, tuple) else value
