"""Sums without rounding: of ints, of floats and of Decimals, to which a number can be added and from which it can be taken away again.

A sum is kept as the exact number x and as how many of its terms were floats (or Decimals), n: when the last float leaves, an int is left again.
Infinities and NaN are counted apart, because nothing brings back what they swallow.

| form                                       | when                                                                                      |
| ------------------------------------------ | ----------------------------------------------------------------------------------------- |
| int, or bytes (signed, big end first)      | n = 0; within 64 bits, or beyond                                                          |
| float, or Decimal                          | n = 1, and x is that number                                                               |
| `[n, x0, x1, ...]` of floats               | x = x0 + x1 + ...; each is the float nearest to what those before it have left. Two       |
|                                            | floats hold 106 bits                                                                      |
| `[n, x]` with a Decimal                    | without zeros at the end                                                                  |
| `{"n", "m", "e"}`                          | x = m·2^e, m odd, as bytes: beyond the range of floats                                    |
| `{"of", "inf", "-inf", "nan", "rest"}`     | how many of each, and the sum of the rest                                                 |

The form follows from x and n (and the counts) alone: so sums of the same terms are the same data, whatever the order, and whatever came and went.
x0 is x rounded once, which is what `math.fsum` gives.

The quick way of adding a float is Knuth's two-sum, which finds the error of a float addition exactly, as a float.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Iterable
from decimal import MAX_EMAX as _EMAX
from decimal import MIN_EMIN as _EMIN
from decimal import Context, Decimal, Inexact, Overflow, Subnormal, Underflow
from typing import Any

from millstream.errors import HookError

_LEAST, _MOST = -(2**63), 2**63 - 1
_SAFE = 2**53  # ints up to here are floats without loss
_MORE = 1.0 + 2.0**-40
_DIGITS = 1_000
_EXACTLY = Context(prec=_DIGITS, Emax=_EMAX, Emin=_EMIN, traps=[Inexact, Overflow, Underflow, Subnormal])
_NOTHING = (0, 0, 0)
_fsum = math.fsum


class NotANumber(ValueError):
    """The value cannot be summed. Callers add the reducer and the field to the message."""


def term(value: Any) -> Any:
    """A number as a sum of one; None as None. A bool counts as 0 or 1."""
    kind = value.__class__
    if kind is float:
        if value - value == 0.0:
            return value + 0.0  # -0.0 is 0.0
        return _specials("float", (int(value > 0), int(value < 0), int(value != value)), 0)
    if kind is int:
        return value if _LEAST <= value <= _MOST else _packed(value)
    if value is None:
        return None
    if isinstance(value, float):
        return term(float.__float__(value))
    if isinstance(value, Decimal):
        if not value.is_finite():
            nan = value.is_nan()
            return _specials("Decimal", (int(not nan and value > 0), int(not nan and value < 0), int(nan)), 0)
        return _decimal_form(1, _without_zeros(value))
    try:
        return term(operator.index(value))
    except TypeError:
        raise NotANumber(f"{type(value).__name__} is no number that can be summed exactly: there are int, float and Decimal") from None


def plus(a: Any, b: Any) -> Any:
    """The sum of two sums.

    >>> plus(0.1, 0.2), plus(plus(1e300, 1.0), -1e300), plus(1, 0.5)
    ([2, 0.30000000000000004, -2.7755575615628914e-17], [3, 1.0], 1.5)
    """
    kind = b.__class__
    if kind is float:
        return _moved(a, b, 1)
    if kind is int and a.__class__ is int:
        x = a + b
        return x if _LEAST <= x <= _MOST else _packed(x)
    if a.__class__ is float:
        return _moved(b, a, 1)
    return _joined(a, b, 1)


def minus(a: Any, b: Any) -> Any:
    """What `plus(result, b)` would make a.

    >>> minus(minus(plus(plus(1, 0.1), 1e20), 1e20), 0.1)
    1
    """
    kind = b.__class__
    if kind is int and a.__class__ is int:
        x = a - b
        return x if _LEAST <= x <= _MOST else _packed(x)
    if kind is float and a.__class__ is not dict:
        return _moved(a, -b, -1)
    return _joined(a, b, -1)


def total(sums: Iterable[Any]) -> Any:
    """The sum of many sums; None among them are skipped, and None is the sum of none.

    >>> total([0.1] * 10), total([1, None, 2]), total([])
    ([10, 1.0, 5.551115123125783e-17], 3, None)
    """
    parts = list(sums)
    kinds = set(map(type, parts))
    if type(None) in kinds:
        parts = [part for part in parts if part is not None]
        kinds.discard(type(None))
    if kinds == {int}:
        return whole(builtins.sum(parts))
    if kinds == {float}:
        made = _float_form(len(parts), parts)
    elif kinds and kinds <= {int, float, list}:
        made = _mixed(parts)
    else:
        made = None
    if made is not None:
        return made
    result = None
    for part in parts:
        result = part if result is None else plus(result, part)
    return result


def shown(x: Any) -> Any:
    """A sum as a number: an int, a Decimal without rounding, or a float rounded once. Beyond the range of floats it is infinite."""
    kind = x.__class__
    if kind is list:
        return x[1] if x[1].__class__ is float else plain(x[1])
    if kind is bytes:
        return int.from_bytes(x, "big", signed=True)
    if kind is Decimal:
        return plain(x)
    if kind is dict:
        return _special_shown(x) if "rest" in x else quotient(*dyadic(x)[1:])
    return x


def is_decimal(x: Any) -> bool:
    """Whether a Decimal is among the terms."""
    return _kind(x) == "Decimal"


# floats


def _moved(a: Any, v: float, by: int) -> Any:
    """A sum and a finite float; by: how many floats there are more."""
    kind = a.__class__
    if kind is list and len(a) == 3:
        n, hi, lo = a
        s = hi + v
        part = s - hi
        error = (hi - (s - part)) + (v - part)
        t = error + lo
        part = t - error
        if (error - (t - part)) + (lo - part) == 0.0:  # not NaN, which comes of what is beyond the range
            hi = s + t
            part = hi - s
            lo = (s - (hi - part)) + (t - part)
            n += by
            if n > 1 and lo == lo:
                return [n, hi, lo] if lo else [n, hi]
    elif kind is float or (kind is list and len(a) == 2 and a[1].__class__ is float):
        n, hi = (1, a) if kind is float else a
        s = hi + v
        part = s - hi
        lo = (hi - (s - part)) + (v - part)
        n += by
        if n > 1 and lo == lo:
            return [n, s, lo] if lo else [n, s]
    elif kind is list and len(a) == 4 and a[0] + by > 1:
        s, error = _two(a[1], v)
        t, error = _two(a[2], error)
        u, error = _two(a[3], error)
        if error == 0.0:
            t, u = _two(t, u)
            s, t = _two(s, t)
            t, u = _two(t, u)
            if s + t * _MORE == s:  # t is less than half a unit of s, so s is the nearest to all three
                return [a[0] + by, s, t, u] if u else [a[0] + by, s, t] if t else [a[0] + by, s]
    return _joined(a, v, 1, by)


def _two(a: float, b: float) -> tuple[float, float]:
    """The sum of two floats, rounded, and its error."""
    s = a + b
    part = s - a
    return s, (a - (s - part)) + (b - part)


def _float_form(n: int, terms: list[float]) -> Any:
    """The sum of floats, n of which count as such; None if it, or what comes on the way, is beyond their range."""
    try:
        x = _fsum(terms)
        found = [x]
        if x:
            left = [*terms, -x]
            while x := _fsum(left):
                found.append(x)
                left.append(-x)
    except OverflowError:
        return None
    return _counted(n, found)


def _counted(n: int, found: list[float]) -> Any:
    if n == 1 and len(found) == 1:
        return found[0]
    if n == 0 and all(x.is_integer() for x in found):
        return whole(builtins.sum(map(int, found)))
    return [n, *found]


def _mixed(parts: list[Any]) -> Any:
    """Ints, floats and lists; None if they need more than floats."""
    n = 0
    terms: list[float] = []
    whole = 0
    for part in parts:
        kind = part.__class__
        if kind is float:
            n += 1
            terms.append(part)
        elif kind is int:
            whole += part
        elif part[1].__class__ is float:
            n += part[0]
            terms += part[1:]
        else:
            return None
    if not -_SAFE <= whole <= _SAFE:
        return None
    terms.append(float(whole))
    return _float_form(n, terms)


def _terms(a: Any) -> list[float]:
    """Floats whose sum is a sum of floats or an int. Raises OverflowError if there are none."""
    kind = a.__class__
    if kind is list:
        return list(a[1:])
    if kind is float:
        return [a]
    found = []
    left = shown(a)
    while left:
        near = float(left)
        found.append(near)
        left -= int(near)
    return found


# everything


def _joined(a: Any, b: Any, sign: int, more: int | None = None) -> Any:
    """Any two sums; more: how many floats b counts for, if not as many as it is."""
    kinds = {_kind(a), _kind(b)}
    if kinds == {"float", "Decimal"}:
        raise HookError(
            f"a float and a Decimal cannot be summed exactly: {shown(a)!r} and {shown(b)!r}. Make them one type, with a function of the value."
        )
    if is_special(a) or is_special(b):
        return _special_joined(a, b, sign)
    if "Decimal" in kinds:
        n = _decimals(a) + sign * _decimals(b)
        return _decimal_form(n, _exactly(_EXACTLY.add if sign > 0 else _EXACTLY.subtract, _as_decimal(a), _as_decimal(b)))
    if kinds == {"int"}:
        return whole(shown(a) + sign * shown(b))
    if a.__class__ is not dict and b.__class__ is not dict:
        n = _floats(a) + (sign * _floats(b) if more is None else more)
        try:
            made = _float_form(n, _terms(a) + ([-x for x in _terms(b)] if sign < 0 else _terms(b)))
        except OverflowError:
            made = None
        if made is not None:
            return made
    na, ma, ea = dyadic(a)
    nb, mb, eb = dyadic(b)
    e = min(ea, eb)
    return dyadic_form(na + (sign * nb if more is None else more), (ma << (ea - e)) + sign * (mb << (eb - e)), e)


def _kind(a: Any) -> str:
    kind = a.__class__
    if kind is int or kind is bytes:
        return "int"
    if is_special(a):
        return str(a["of"])
    return "Decimal" if kind is Decimal or (kind is list and a[1].__class__ is Decimal) else "float"


def _floats(a: Any) -> int:
    return int(a[0]) if a.__class__ is list else int(a.__class__ is float)


def dyadic(a: Any) -> tuple[int, int, int]:
    """n, m and e of a sum m·2^e of ints and floats."""
    kind = a.__class__
    if kind is int:
        return 0, a, 0
    if kind is bytes:
        return 0, shown(a), 0
    if kind is dict:
        return a["n"], int.from_bytes(a["m"], "big", signed=True), a["e"]
    n, floats = (1, [a]) if kind is float else (a[0], a[1:])
    pairs = [x.as_integer_ratio() for x in floats]
    below = max(d for _, d in pairs)
    return n, builtins.sum(m * (below // d) for m, d in pairs), 1 - below.bit_length()


def dyadic_form(n: int, m: int, e: int) -> Any:
    """The form of m·2^e: floats, if they reach so far."""
    if m == 0:
        return _counted(n, [0.0])
    zeros = (m & -m).bit_length() - 1
    m, e = m >> zeros, e + zeros
    if n == 0 and e >= 0:
        return whole(m << e)
    if e >= -1074:
        found = []
        left, unit = (m << e, 1) if e >= 0 else (m, 1 << -e)
        try:
            while left:
                near = left / unit
                found.append(near)
                top, bottom = near.as_integer_ratio()
                left -= top * (unit // bottom)
            return _counted(n, found)
        except OverflowError:
            pass
    return {"n": n, "m": m.to_bytes(m.bit_length() // 8 + 1, "big", signed=True), "e": e}


def whole(x: int) -> Any:
    return x if _LEAST <= x <= _MOST else _packed(x)


def _packed(x: int) -> bytes:
    return x.to_bytes(x.bit_length() // 8 + 1, "big", signed=True)


def quotient(m: int, e: int, by: int = 1) -> float:
    """m·2^e / by, rounded once."""
    try:
        return (m << e) / by if e >= 0 else m / (by << -e)
    except OverflowError:
        return math.inf if (m > 0) == (by > 0) else -math.inf


# Decimals


def _exactly(operation: Any, *given: Decimal) -> Decimal:
    try:
        return _without_zeros(operation(*given))
    except (Inexact, Overflow, Underflow, Subnormal):
        told = " and ".join(f"{x:.6E}" for x in given)
        raise HookError(f"the exact sum of Decimals has more than {_DIGITS:,} digits: {told}. Round them before they are summed.") from None


def _without_zeros(x: Decimal) -> Decimal:
    try:
        return _EXACTLY.normalize(x) if x else Decimal(0)
    except (Inexact, Overflow, Underflow, Subnormal):
        raise HookError(f"a Decimal of more than {_DIGITS:,} digits cannot be summed: {x:.6E}. Round it before.") from None


def _decimals(a: Any) -> int:
    return int(a[0]) if a.__class__ is list else int(a.__class__ is Decimal)


def _as_decimal(a: Any) -> Decimal:
    if a.__class__ is list:
        return Decimal(a[1])
    return a if a.__class__ is Decimal else Decimal(shown(a))


def _decimal_form(n: int, x: Decimal) -> Any:
    if n == 1:
        return x
    exponent = x.as_tuple().exponent  # there are no zeros at the end: below 0, it is no integer
    return whole(int(x)) if n == 0 and isinstance(exponent, int) and exponent >= 0 else [n, x]


def plain(x: Decimal) -> Decimal:
    """Without an exponent above 0, which normalizing gives: 100 and not 1E+2."""
    exponent = x.as_tuple().exponent
    return _EXACTLY.quantize(x, Decimal(1)) if isinstance(exponent, int) and exponent > 0 and x.adjusted() < 100 else x


def decimal_square(x: Decimal) -> Any:
    """The square of one."""
    return _decimal_form(1, _exactly(_EXACTLY.multiply, x, x))


# infinities and NaN


def is_special(a: Any) -> bool:
    """Whether an infinity or a NaN is among the terms."""
    return a.__class__ is dict and "rest" in a


def special_square(a: Any) -> Any:
    """The square of one."""
    return _specials(a["of"], (a["inf"] + a["-inf"], 0, a["nan"]), 0)


def _specials(of: str, counts: tuple[int, int, int], rest: Any) -> Any:
    if counts == _NOTHING:
        return rest
    return {"of": of, "inf": counts[0], "-inf": counts[1], "nan": counts[2], "rest": rest}


def _opened(a: Any) -> tuple[str | None, tuple[int, int, int], Any]:
    if is_special(a):
        return a["of"], (a["inf"], a["-inf"], a["nan"]), a["rest"]
    return None, _NOTHING, a


def _special_joined(a: Any, b: Any, sign: int) -> Any:
    of, one, rest = _opened(a)
    other_of, other, other_rest = _opened(b)
    counts = (one[0] + sign * other[0], one[1] + sign * other[1], one[2] + sign * other[2])
    return _specials(str(of or other_of), counts, (plus if sign > 0 else minus)(rest, other_rest))


def _special_shown(a: Any) -> Any:
    _, (up, down, nan), _ = _opened(a)
    x = "nan" if nan or (up and down) else "inf" if up else "-inf"
    return Decimal(x) if a["of"] == "Decimal" else float(x)
