"""What follows from exact sums: means, squares, standard deviations. Each is rounded once, at the end.

Of ints and floats they are floats, the nearest there are; of Decimals Decimals of 28 digits, whatever context the program has set. What has an infinity
or a NaN among its terms is shown as float arithmetic would, and what is beyond the range of floats is infinite.
"""

from __future__ import annotations

import math
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from typing import Any

from millstream.reducers.exact import form, opened, plain, quotient, shown

_ROUNDED = Context(prec=28, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])  # what Python starts with
_WIDE = Context(prec=80, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])


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
    """The square of a sum of one."""
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
