"""What every operation of an expression gives for the values of one record. This is the meaning: columns and Spark agree with it.

Rules
1. Spark's, with ANSI mode on. A null operand makes a null, but for `and`, `or`, `<=>`, `is null`, `coalesce`, `greatest`, `least` and `case`. NaN equals NaN
   and is greater than every other number; -0.0 equals 0.0; texts are compared by their bytes. A result that does not fit, a division by zero and a text that
   is no number are errors.
2. There are four types: long, double, string, boolean. An integer is a long of 64 bits whatever its column has. Where Spark would make one type of another by
   itself we refuse, but for a long beside a double, which becomes a double. All other values can only be passed on, or asked whether they are null.
3. Operands are looked at from left to right, of `/` and `%` from right to left; once one is null, or decides, the others are not worked out, so they
   cannot fail either. Spark's optimizer may leave out more: where we fail, Spark may give a value, if that does not depend on what failed.
4. The branches of coalesce, case, greatest and least have one type. One record does not always show what the other branches are: a long column beside a double
   one is refused for columns alone, when the run starts.
"""

from __future__ import annotations

import math
import operator
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any
from zlib import crc32

NULL, LONG, DOUBLE, STRING, BOOLEAN = "null", "long", "double", "string", "boolean"
NUMBERS = (LONG, DOUBLE)
LEAST, MOST = -(2**63), 2**63 - 1
COMPARED = ("=", "<", "<=", ">", ">=", "<=>")
BRANCHING = ("coalesce", "case", "greatest", "least")
_KINDS = {type(None): NULL, bool: BOOLEAN, int: LONG, float: DOUBLE, str: STRING}

#: What an operation takes, and what it gives; None: what it takes.
_TAKES: dict[str, tuple[tuple[str, ...], str | None]] = {
    **dict.fromkeys(("+", "-", "*", "%", "negative", "abs"), (NUMBERS, None)),
    "/": (NUMBERS, DOUBLE),
    **dict.fromkeys(("floor", "ceil"), (NUMBERS, LONG)),
    **dict.fromkeys(("and", "or", "not"), ((BOOLEAN,), BOOLEAN)),
    **dict.fromkeys(("lower", "upper", "trim", "ltrim", "rtrim", "concat", "substring"), ((STRING,), STRING)),
    **dict.fromkeys(("length", "crc32"), ((STRING,), LONG)),
    **dict.fromkeys(("startswith", "endswith", "contains", "like"), ((STRING,), BOOLEAN)),
    **dict.fromkeys((*COMPARED, "in"), ((LONG, DOUBLE, STRING, BOOLEAN), BOOLEAN)),
    **dict.fromkeys(("greatest", "least"), ((LONG, DOUBLE, STRING, BOOLEAN), None)),
}
_CASTS = {  # to: from
    "string": (STRING, LONG, BOOLEAN),
    "double": (DOUBLE, LONG, BOOLEAN, STRING),
    "boolean": (BOOLEAN, LONG, DOUBLE, STRING),
    **dict.fromkeys(("int", "bigint"), (LONG, DOUBLE, BOOLEAN, STRING)),
}
CAST_GIVES = {"string": STRING, "double": DOUBLE, "boolean": BOOLEAN, "int": LONG, "bigint": LONG}
#: Operations that can fail for values of the right types.
CAN_FAIL = frozenset(("+", "-", "*", "/", "%", "negative", "abs", "floor", "ceil", "lower", "upper", "cast"))


class BadOperands(Exception):
    """Why an operation cannot be done with its operands."""


def kind(value: Any) -> str:
    """The type of a value; of one that expressions do not know, what Python calls it."""
    found = _KINDS.get(type(value))
    if found is None:
        found = next((name for cls, name in _KINDS.items() if isinstance(value, cls)), type(value).__name__)
    if found == LONG and not LEAST <= value <= MOST:
        raise BadOperands(f"{value} does not fit into a long")
    return found


@cache
def result(op: str, kinds: tuple[str, ...]) -> str:
    """The type that an operation gives for those of its operands. Raises BadOperands if it does not take them."""
    known = [one for one in kinds if one != NULL]
    if op in ("is null", "<=>") and (op == "is null" or len(known) < 2):
        return BOOLEAN
    if op in ("coalesce", "case"):
        takes, gives = tuple(known), None
    else:
        takes, gives = _TAKES[op]
    wrong = [one for one in known if one not in takes]
    if wrong:
        raise BadOperands(f"{op} takes no {wrong[0]}, only {' or '.join(takes)}: use cast(... as ...)")
    made = DOUBLE if DOUBLE in known and set(known) <= set(NUMBERS) else known[0] if known else NULL
    if made != DOUBLE and len(set(known)) > 1:
        raise BadOperands(f"{op} of a {' and a '.join(dict.fromkeys(known))}: cast one of them")
    if len(known) < len(kinds) and op not in (*BRANCHING, "and", "or", "<=>", "in"):
        return NULL
    return gives or made


def cast_result(to: str, of: str) -> str:
    if of == NULL:
        return NULL
    if of not in _CASTS[to]:
        raise BadOperands(f"cast of a {of} as {to} is not the same everywhere: only {', '.join(_CASTS[to])}")
    return CAST_GIVES[to]


# --- operations on values that are not null


def _long(op: str, value: int, *operands: Any) -> int:
    if not LEAST <= value <= MOST:
        raise BadOperands(f"{f' {op} '.join(map(repr, operands)) if len(operands) > 1 else f'{op}({operands[0]})'} overflows a long")
    return value


def _arithmetic(op: str, function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    if result(op, (kind(a), kind(b))) == DOUBLE:
        return function(float(a), float(b))
    return _long(op, function(a, b), a, b)


def _divided(a: Any, b: Any) -> float:
    result("/", (kind(a), kind(b)))
    if b == 0:
        raise BadOperands(f"{a!r} / {b!r} is a division by zero")
    return float(a) / float(b)


def _remainder(a: Any, b: Any) -> Any:
    made = result("%", (kind(a), kind(b)))
    if b == 0:
        raise BadOperands(f"{a!r} % {b!r} is a division by zero")
    if made == LONG:
        return int(math.copysign(1, a)) * (abs(a) % abs(b))
    return math.nan if math.isinf(a) or math.isnan(a) or math.isnan(b) else math.fmod(a, b)


def _signed(op: str, function: Callable[[Any], Any], a: Any) -> Any:
    return function(a) if result(op, (kind(a),)) == DOUBLE else _long(op, function(a), a)


def _rounded(op: str, function: Callable[[Any], int], a: Any) -> int:
    if result(op, (kind(a),)) and isinstance(a, int):
        return a
    if math.isinf(a):
        raise BadOperands(f"{op}({a!r}) overflows a long")
    return 0 if math.isnan(a) else _long(op, function(a), a)


def _whole(value: float, to: str) -> int:
    """A double as an integer, within the limits of Spark: 2**63 as a double is not too large."""
    low, high = (LEAST, MOST) if to == "bigint" else (-(2**31), 2**31 - 1)
    if math.isnan(value) or math.isinf(value) or not (math.floor(value) <= float(high) and math.ceil(value) >= low):
        raise BadOperands(f"{value!r} does not fit into {to}")
    return min(math.trunc(value), high)


def compared(op: str, a: Any, b: Any) -> bool:
    """A comparison of two values that are not null."""
    kinds = kind(a), kind(b)
    result(op, kinds)
    if DOUBLE in kinds:
        a, b = float(a), float(b)
        if a != a or b != b:  # NaN is the greatest, and equal to itself
            a, b = a != a, b != b
    return bool(_ORDER[op](a, b))


_ORDER = {"=": operator.eq, "<=>": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def _text(op: str, function: Callable[..., Any], *texts: Any) -> Any:
    result(op, tuple(kind(text) for text in texts))
    return function(*texts)


def _substring(text: Any, *limits: Any) -> str:
    result("substring", (kind(text),))
    return substring(text, *limits)


_OTHER_CASE = re.compile("[\u019b\u0264\u0295\ua7d3\ua7d5]")  # letters whose case newer versions of Unicode have changed


def _is_unknown(one: str) -> bool:
    """Whether newer versions of Unicode may have made a letter of it: it has no meaning yet, and is none of those that never get one."""
    return unicodedata.category(one) == "Cn" and ord(one) & 0xFFFE != 0xFFFE and not 0xFDD0 <= ord(one) <= 0xFDEF


def _cased(upper: bool, text: str) -> str:
    if not text.isascii() and (_OTHER_CASE.search(text) or any(map(_is_unknown, text))):
        raise BadOperands(f"{text!r} has a letter whose case depends on the version of Unicode")
    return text.upper() if upper else text.lower()


def substring(text: str, start: int, length: int | None = None) -> str:
    """A part of a text by characters, from 1 on; negative: from the end."""
    begin = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    return text[max(begin, 0) : None if length is None else max(begin + length, 0)]


_WHOLE, _BLANKS = re.compile(r"[+-]?[0-9]+"), "".join(map(chr, [*range(33), 127]))
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?")
_HEX = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_SPECIAL = re.compile(r"[+-]?NaN|[+-]?(?i:inf(?:inity)?)|(?i:nan)")
_WORDS = {**dict.fromkeys(("t", "true", "y", "yes", "1"), True), **dict.fromkeys(("f", "false", "n", "no", "0"), False)}


def cast(to: str, value: Any) -> Any:
    """A value that is not null as another type."""
    of = kind(value)
    cast_result(to, of)
    if to == "string":
        return value if of == STRING else str(value).lower()
    if to == "boolean" and of != STRING:
        return value != 0
    if to == "double" and of != STRING:
        return float(value)
    if of != STRING:
        made = _whole(value, to) if of == DOUBLE else int(value)
        if to == "int" and not -(2**31) <= made < 2**31:
            raise BadOperands(f"{value!r} does not fit into int")
        return made
    found: Any = None
    text = value.strip(_BLANKS)
    if to == "boolean":
        found = _WORDS.get(text.lower() if text.isascii() else "")
    elif to == "double":
        text = value.strip(_BLANKS[:-1])
        if _DECIMAL.fullmatch(text):
            found = float(text.rstrip("fFdD"))
        elif hexadecimal := _HEX.fullmatch(text):
            found = float.fromhex(hexadecimal[1])
        elif _SPECIAL.fullmatch(text):
            found = float(text)
    elif _WHOLE.fullmatch(text) and len(text.lstrip("+-").lstrip("0")) < 20:
        found = int(text)
        limit = MOST if to == "bigint" else 2**31 - 1
        found = found if -limit - 1 <= found <= limit else None
    if found is None:
        raise BadOperands(f"the text {value!r} is no {to}")
    return found


@cache
def like_pattern(pattern: str) -> re.Pattern[str]:
    """What LIKE means by a pattern."""
    pieces = re.findall(r"\\[\\%_]|[^\\]", pattern, re.DOTALL)
    if "".join(pieces) != pattern:
        raise BadOperands(f"like {pattern!r}: a backslash stands only before %, _ or another backslash")
    return re.compile("".join({"%": ".*", "_": "."}.get(one, re.escape(one[-1])) for one in pieces), re.DOTALL)


def _is_in(value: Any, *items: Any) -> bool | None:
    result("in", (kind(value), *map(kind, items)))
    if any(item is not None and compared("=", value, item) for item in items):
        return True
    return None if None in items else False


def greatest(op: str, values: Sequence[Any]) -> Any:
    """The greatest or least of values that are not null."""
    found = values[0]
    result(op, tuple(map(kind, values)))
    for one in values[1:]:
        if compared(">" if op == "greatest" else "<", one, found):
            found = one
    return found


#: By operation, what it gives for operands that are not null.
STRICT: dict[str, Callable[..., Any]] = {
    "+": partial(_arithmetic, "+", operator.add),
    "-": partial(_arithmetic, "-", operator.sub),
    "*": partial(_arithmetic, "*", operator.mul),
    "/": _divided,
    "%": _remainder,
    "negative": partial(_signed, "negative", operator.neg),
    "abs": partial(_signed, "abs", abs),
    "floor": partial(_rounded, "floor", math.floor),
    "ceil": partial(_rounded, "ceil", math.ceil),
    **{op: partial(compared, op) for op in COMPARED if op != "<=>"},
    "not": partial(_text, "not", operator.not_),
    "in": _is_in,
    "lower": partial(_text, "lower", partial(_cased, False)),
    "upper": partial(_text, "upper", partial(_cased, True)),
    "trim": partial(_text, "trim", lambda text: text.strip(" ")),
    "ltrim": partial(_text, "ltrim", lambda text: text.lstrip(" ")),
    "rtrim": partial(_text, "rtrim", lambda text: text.rstrip(" ")),
    "length": partial(_text, "length", len),
    "crc32": partial(_text, "crc32", lambda text: crc32(text.encode())),
    "concat": partial(_text, "concat", lambda *texts: "".join(texts)),
    "startswith": partial(_text, "startswith", str.startswith),
    "endswith": partial(_text, "endswith", str.endswith),
    "contains": partial(_text, "contains", operator.contains),
    "like": partial(_text, "like", lambda text, pattern: like_pattern(pattern).fullmatch(text) is not None),
    "substring": _substring,
    "cast": lambda value, to: cast(to, value),
}


# --- an expression as a function of a record's value

Evaluated = Callable[[Any], Any]


def field(path: Sequence[str], value: Any) -> Any:
    """A field of a record's value: an item of a dict, an attribute of anything else; null inside a null."""
    for at, name in enumerate(path):
        if value is None and at:
            return None
        try:
            value = value[name] if isinstance(value, Mapping) else getattr(value, name)
        except (KeyError, AttributeError):
            has = f"; it has: {', '.join(map(str, value))}" if isinstance(value, Mapping) else ""
            raise BadOperands(f"there is no field {name!r}{has}") from None
    return value


def evaluated(op: str, parts: Sequence[Evaluated], extra: tuple[Any, ...], wanted: str | None) -> Evaluated:
    """An operation as a function of a record's value. parts: its operands; extra: what is fixed; wanted: the type of its branches, where the text shows it."""
    if op == "is null":
        return lambda value: parts[0](value) is None
    if op in ("and", "or"):
        return partial(_either, op, *parts)
    if op == "<=>":
        return partial(_null_safe, *parts)
    if op in BRANCHING:
        return partial({"case": _case, "coalesce": _coalesce}.get(op, _extreme), op, parts, wanted)
    function = STRICT[op]
    if len(parts) == 1:
        return lambda value: None if (a := parts[0](value)) is None else function(a, *extra)
    if op == "concat":
        return lambda value: None if None in (texts := [part(value) for part in parts]) else function(*texts)
    first, second = parts if op not in ("/", "%") else reversed(parts)
    swapped = first is parts[1]

    def both(value: Any) -> Any:
        a = first(value)
        b = None if a is None else second(value)
        return None if b is None else function(b, a) if swapped else function(a, b)

    return both


def _either(op: str, left: Evaluated, right: Evaluated, value: Any) -> bool | None:
    decides = op == "or"
    a = left(value)
    result(op, (kind(a),))
    if a is decides:
        return a
    b = right(value)
    result(op, (kind(b),))
    return b if b is decides or a is not None else None


def _null_safe(left: Evaluated, right: Evaluated, value: Any) -> bool:
    a, b = left(value), right(value)
    return a is b if a is None or b is None else compared("<=>", a, b)


def _case(op: str, parts: Sequence[Evaluated], wanted: str | None, value: Any) -> Any:
    for condition, branch in zip(parts[:-1:2], parts[1:-1:2], strict=True):
        met = condition(value)
        result("not", (kind(met),))
        if met:
            return _branch(op, branch(value), wanted)
    return _branch(op, parts[-1](value), wanted)


def _coalesce(op: str, parts: Sequence[Evaluated], wanted: str | None, value: Any) -> Any:
    return _branch(op, next((a for part in parts if (a := part(value)) is not None), None), wanted)


def _extreme(op: str, parts: Sequence[Evaluated], wanted: str | None, value: Any) -> Any:
    values = [_branch(op, a, wanted) for part in parts if (a := part(value)) is not None]
    return greatest(op, values) if values else None


def _branch(op: str, value: Any, wanted: str | None) -> Any:
    """A value as the type that the other branches have."""
    if wanted is None or value is None:
        return value
    return float(value) if result(op, (kind(value), wanted)) == DOUBLE else value
