"""How do many values become one? Reducers, for views and windows.

    base        what a reducer is, and the rules that each one keeps
    fields      what the builtin ones read of a value: a field, a function, the value
    order       one order of all plain values, and one text for each
    exact       sums without rounding, and what follows from them
    sums        count, sum, mean, stats
    extremes    min, max, first, last, top, bottom
    values      count_distinct, any_value, collect
    composite   several at once, and what `.reduce(...)` makes of its arguments
    law_checks  a check of the rules, for reducers of one's own

Pure: value in, value out (`law_checks` draws lots, by a seed). Nothing here knows a group, a document, a window, or where a total is kept.
"""

from millstream.reducers.base import Reducer
from millstream.reducers.composite import Several, as_reducer
from millstream.reducers.extremes import bottom, first, last, max, min, top
from millstream.reducers.law_checks import assert_reducer
from millstream.reducers.sums import count, mean, stats, sum
from millstream.reducers.values import any_value, collect, count_distinct

__all__ = [
    "Reducer",
    "Several",
    "any_value",
    "as_reducer",
    "assert_reducer",
    "bottom",
    "collect",
    "count",
    "count_distinct",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "stats",
    "sum",
    "top",
]
