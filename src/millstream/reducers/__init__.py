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
