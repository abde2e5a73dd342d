"""What follows from exact sums: means, squares, standard deviations. Each is rounded once, at the end.

Of ints and floats they are floats, the nearest there are; of Decimals Decimals of 28 digits, whatever context the program has set. What has an infinity
or a NaN among its terms is shown as float arithmetic would, and what is beyond the range of floats is infinite.
"""

from __future__ import annotations

import math
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from typing import Any

from millstream.reducers.exact import (
    decimal_square,
    dyadic,
    dyadic_form,
    is_decimal,
    is_special,
    plain,
    quotient,
    shown,
    special_square,
    whole,
)

_ROUNDED = Context(prec=28, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])  # what Python starts with
_WIDE = Context(prec=80, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
_SPLIT = 2.0**27 + 1.0  # cuts a float into two halves


def divided(x: Any, count: int) -> Any:
    """A sum divided by a number, rounded once: a float, or of Decimals a Decimal of 28 digits. None if the number is 0.

    >>> divided(3, 2), divided(Decimal("1"), 3)
    (1.5, Decimal('0.3333333333333333333333333333'))
    """
    if count == 0:
        return None
    if is_special(x):
        return shown(x)
    if is_decimal(x):
        return plain(_ROUNDED.divide(shown(x), Decimal(count)))
    _, m, e = dyadic(x)
    return quotient(m, e, count)


def squared(x: Any) -> Any:
    """The square of a sum of one."""
    if x.__class__ is dict:
        return special_square(x)
    if x.__class__ is Decimal:
        return decimal_square(x)
    if x.__class__ is float and 1e-140 < abs(x) < 1e140:  # Dekker's product: its error, too, is a float
        square = x * x
        high = _SPLIT * x - (_SPLIT * x - x)
        low = x - high
        error = ((high * high - square) + 2.0 * high * low) + low * low
        return [1, square, error] if error else square
    n, m, e = dyadic(x)
    return whole(m * m) if n == 0 else dyadic_form(n, m * m, 2 * e)


def deviation(count: int, x: Any, squares: Any) -> Any:
    """The standard deviation of a sample, from exact sums and so rounded once; None below two. Of Decimals a Decimal of 28 digits."""
    if count < 2:
        return None
    decimal = is_decimal(x)
    if is_special(x):
        return Decimal("NaN") if decimal else math.nan
    first, second = fraction(x), fraction(squares)
    variance = (second * count - first * first) / (count * (count - 1))
    if decimal:
        root = _WIDE.sqrt(_WIDE.divide(Decimal(variance.numerator), Decimal(variance.denominator)))
        return plain(_ROUNDED.plus(root))
    return _root(variance.numerator, variance.denominator)


def fraction(x: Any) -> Fraction:
    """A sum without infinities and NaN as a fraction."""
    if is_decimal(x):
        return Fraction(shown(x))
    _, m, e = dyadic(x)
    return Fraction(m << e) if e >= 0 else Fraction(m, 1 << -e)


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
