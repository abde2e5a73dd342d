"""Sums without rounding: of ints, of floats and of Decimals, to which a number can be added and from which it can be taken away again.

| form                                  | when                                                                                                  |
| ------------------------------------- | ----------------------------------------------------------------------------------------------------- |
| a number                              | ints alone, within 64 bits; or one float or Decimal that is finite                                    |
| `[base, n, m, e]`                     | everything else: the sum is m·base^e. base is 10 if a Decimal is among the terms, and 2 otherwise. n: |
|                                       | how many terms were floats (or Decimals); when the last one leaves, an int is left again              |
| `[base, n, m, e, inf, -inf, nan]`     | with infinities or NaN among the terms, which are counted apart: nothing brings back what they swallow |

m is no multiple of base, and is bytes (signed, big end first) beyond 64 bits. So the form follows from the number, n and the counts alone: sums of the same
terms are the same data, whatever the order, and whatever came and went.

What follows from sums (means, squares, standard deviations) is rounded once, at the end. Of ints and floats they are floats, the nearest there are; of
Decimals Decimals of 28 digits, whatever context the program has set. What has an infinity or a NaN among its terms is shown as float arithmetic would, and
what is beyond the range of floats is infinite.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Iterable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, Overflow, Subnormal, Underflow
from fractions import Fraction
from typing import Any

from millstream.errors import HookError

_LEAST, _MOST = -(2**63), 2**63 - 1
_DIGITS = 1_000
_EXACTLY = Context(prec=_DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact, Overflow, Underflow, Subnormal])
_ROUNDED = Context(prec=28, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])  # what Python starts with
_WIDE = Context(prec=80, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
_NONE = (0, 0, 0)
_ratio = float.as_integer_ratio


class NotANumber(ValueError):
    """The value cannot be summed. Callers add the reducer and the field to the message."""


#: base (0 for ints alone), n, m, e (0 for ints alone), and how many of inf, -inf and nan.
Opened = tuple[int, int, int, int, tuple[int, int, int]]


def opened(x: Any) -> Opened:
    """What a sum consists of."""
    kind = x.__class__
    if kind is float:
        m, below = _ratio(x)
        return 2, 1, m, 1 - below.bit_length(), _NONE
    if kind is list:
        base, n, m, e, *specials = x
        if m.__class__ is bytes:
            m = int.from_bytes(m, "big", signed=True)
        if specials:
            return base, n, m, e, tuple(specials)  # type: ignore[return-value]
        return (base, n, m, e, _NONE) if n or e < 0 else (0, 0, m << e, 0, _NONE)
    if kind is int:
        return 0, 0, x, 0, _NONE
    e = x.as_tuple().exponent
    return 10, 1, int(x.scaleb(-e, _EXACTLY)), e, _NONE


def form(base: int, n: int, m: int, e: int, specials: tuple[int, int, int] = _NONE) -> Any:
    if not m:
        e = 0
    elif base == 10:
        digits = str(m)
        zeros = len(digits) - len(digits.rstrip("0"))
        m, e = m // 10**zeros, e + zeros
    else:
        zeros = (m & -m).bit_length() - 1
        m, e = m >> zeros, e + zeros
    if specials != _NONE:
        return [base, n, _packed(m), e, *specials]
    if n == 0 and e >= 0:
        x = m * 10**e if base == 10 else m << e
        return x if _LEAST <= x <= _MOST else form(2, 0, x, 0) if base == 10 else [2, 0, _packed(m), e]
    if n == 1:
        if base == 10:
            return Decimal(m).scaleb(e, _EXACTLY)
        if e >= -1074 and m.bit_length() <= 53 and e + m.bit_length() <= 1024:
            return math.ldexp(m, e)
    return [base, n, _packed(m), e]


def _packed(m: int) -> int | bytes:
    return m if _LEAST <= m <= _MOST else m.to_bytes(m.bit_length() // 8 + 1, "big", signed=True)


def term(value: Any) -> Any:
    """A number as a sum of one; None as None. A bool counts as 0 or 1."""
    kind = value.__class__
    if kind is float:
        if value - value == 0.0:
            return value + 0.0  # -0.0 is 0.0
        return [2, 0, 0, 0, int(value > 0), int(value < 0), int(value != value)]
    if kind is int:
        return value if _LEAST <= value <= _MOST else form(2, 0, value, 0)
    if value is None:
        return None
    if isinstance(value, float):
        return term(float.__float__(value))
    if isinstance(value, Decimal):
        if not value.is_finite():
            nan = value.is_nan()
            return [10, 0, 0, 0, int(not nan and value > 0), int(not nan and value < 0), int(nan)]
        try:
            return _EXACTLY.normalize(value) if value else Decimal(0)
        except (Inexact, Overflow, Underflow, Subnormal):
            raise HookError(f"a Decimal of more than {_DIGITS:,} digits cannot be summed: {value:.6E}. Round it before.") from None
    try:
        return term(operator.index(value))
    except TypeError:
        raise NotANumber(f"{type(value).__name__} is no number that can be summed exactly: there are int, float and Decimal") from None


def plus(a: Any, b: Any) -> Any:
    """The sum of two sums.

    >>> shown(plus(0.1, 0.2)), shown(plus(plus(1e300, 1.0), -1e300)), plus(1, 0.5)
    (0.30000000000000004, 1.0, 1.5)
    """
    if a.__class__ is int and b.__class__ is int:
        x = a + b
        return x if _LEAST <= x <= _MOST else form(2, 0, x, 0)
    return _moved(a, b, 1) if b.__class__ is float and a.__class__ is list and len(a) == 4 and a[0] == 2 else _joined(a, b, 1)


def minus(a: Any, b: Any) -> Any:
    """What `plus(result, b)` would make a.

    >>> minus(minus(plus(plus(1, 0.1), 1e20), 1e20), 0.1)
    1
    """
    if a.__class__ is int and b.__class__ is int:
        x = a - b
        return x if _LEAST <= x <= _MOST else form(2, 0, x, 0)
    return _moved(a, b, -1) if b.__class__ is float and a.__class__ is list and len(a) == 4 and a[0] == 2 else _joined(a, b, -1)


def _moved(a: list[Any], v: float, sign: int) -> Any:
    """A sum of floats and one more, or less: what is most frequent, without opening them."""
    _, n, m, e = a
    if m.__class__ is bytes:
        m = int.from_bytes(m, "big", signed=True)
    more, below = _ratio(v)
    shift = e + below.bit_length() - 1
    if shift >= 0:
        m, e = (m << shift) + sign * more, e - shift
    else:
        m += sign * more << -shift
    n += sign
    if n < 2 or not m:
        return form(2, n, m, e)
    zeros = (m & -m).bit_length() - 1
    m >>= zeros
    return [2, n, m if _LEAST <= m <= _MOST else _packed(m), e + zeros]


def _joined(a: Any, b: Any, sign: int) -> Any:
    base, n, m, e, specials = opened(a)
    other_base, other_n, other_m, other_e, other_specials = opened(b)
    if base != other_base:
        if base and other_base:
            raise HookError(
                f"a float and a Decimal cannot be summed exactly: {shown(a)!r} and {shown(b)!r}. Make them one type, with a function of the value."
            )
        base = base or other_base
    if e != other_e:
        if base == 10:
            _check_digits(abs(e - other_e), a, b)
        if e > other_e:
            m, e = m * 10 ** (e - other_e) if base == 10 else m << e - other_e, other_e
        else:
            other_m = other_m * 10 ** (other_e - e) if base == 10 else other_m << other_e - e
    m += sign * other_m
    if base == 10:
        _check_digits(len(str(m)) - (m < 0), a, b)
    if specials != other_specials or specials != _NONE:
        specials = tuple(x + sign * y for x, y in zip(specials, other_specials, strict=True))  # type: ignore[assignment]
    return form(base or 2, n + sign * other_n, m, e, specials)


def _check_digits(digits: int, a: Any, b: Any) -> None:
    if digits > _DIGITS:
        told = " and ".join(f"{Decimal(shown(x)):.6E}" for x in (a, b))
        raise HookError(f"the exact sum of Decimals has more than {_DIGITS:,} digits: {told}. Round them before they are summed.")


def total(sums: Iterable[Any]) -> Any:
    """The sum of many sums; None among them are skipped, and None is the sum of none.

    >>> shown(total([0.1] * 10)), total([1, None, 2]), total([])
    (1.0, 3, None)
    """
    parts = [part for part in sums if part is not None]
    kinds = set(map(type, parts))
    if kinds == {int}:
        return form(2, 0, builtins.sum(parts), 0)
    if kinds == {float}:  # the same, with what is known of all of them
        mantissas: dict[int, int] = {}
        for m, below in map(_ratio, parts):
            mantissas[below] = mantissas.get(below, 0) + m
        most = max(mantissas)
        return form(2, len(parts), builtins.sum(m * (most // below) for below, m in mantissas.items()), 1 - most.bit_length())
    result = None
    for part in parts:
        result = part if result is None else plus(result, part)
    return result


def shown(x: Any) -> Any:
    """A sum as a number: an int, a Decimal without rounding, or a float rounded once. Beyond the range of floats it is infinite."""
    if x.__class__ is not list:
        return plain(x) if x.__class__ is Decimal else x
    base, _, m, e, specials = opened(x)
    if specials != _NONE:
        up, down, nan = specials
        text = "nan" if nan or (up and down) else "inf" if up else "-inf"
        return Decimal(text) if base == 10 else float(text)
    if base == 10:
        return plain(Decimal(m).scaleb(e, _EXACTLY))
    return quotient(m, e) if base else m


def quotient(m: int, e: int, by: int = 1) -> float:
    """m·2^e / by, rounded once."""
    try:
        return (m << e) / by if e >= 0 else m / (by << -e)
    except OverflowError:
        return math.inf if (m > 0) == (by > 0) else -math.inf


def plain(x: Decimal) -> Decimal:
    """Without an exponent above 0, which normalizing gives: 100 and not 1E+2."""
    exponent = x.as_tuple().exponent
    return _EXACTLY.quantize(x, Decimal(1)) if isinstance(exponent, int) and exponent > 0 and x.adjusted() < 100 else x


def divided(x: Any, count: int) -> Any:
    """A sum divided by a number, rounded once: a float, or of Decimals a Decimal of 28 digits. None if the number is 0.

    >>> divided(3, 2), divided(Decimal("1"), 3)
    (1.5, Decimal('0.3333333333333333333333333333'))
    """
    if count == 0:
        return None
    base, _, m, e, specials = opened(x)
    if any(specials):
        return shown(x)
    return plain(_ROUNDED.divide(shown(x), Decimal(count))) if base == 10 else quotient(m, e, count)


def squared(x: Any) -> Any:
    base, n, m, e, (up, down, nan) = opened(x)
    return form(base or 2, n, m * m, 2 * e, (up + down, 0, nan))


def deviation(count: int, x: Any, squares: Any) -> Any:
    """The standard deviation of a sample, from exact sums and so rounded once; None below two. Of Decimals a Decimal of 28 digits."""
    if count < 2:
        return None
    base, _, _, _, specials = opened(x)
    if any(specials):
        return Decimal("NaN") if base == 10 else math.nan
    first, second = _fraction(x), _fraction(squares)
    variance = (second * count - first * first) / (count * (count - 1))
    if base == 10:
        root = _WIDE.sqrt(_WIDE.divide(Decimal(variance.numerator), Decimal(variance.denominator)))
        return plain(_ROUNDED.plus(root))
    return _root(variance.numerator, variance.denominator)


def _fraction(x: Any) -> Fraction:
    base, _, m, e, _ = opened(x)
    return Fraction(m * base**e) if e >= 0 else Fraction(m, base**-e)


def _root(n: int, d: int) -> float:
    """The square root of n/d, rounded once: 54 bits and one that says whether anything is left are enough for that."""
    shift = (n.bit_length() - d.bit_length() - 109) // 2
    if shift >= 0:
        top, bottom = n, d << 2 * shift
    else:
        top, bottom = n << -2 * shift, d
    root = math.isqrt(top // bottom)
    root |= root * root * bottom != top
    return quotient(root, shift)
