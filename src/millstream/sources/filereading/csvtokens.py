"""One line of CSV cut into its values, by the rules of Spark's parser (univocity, which stops at a delimiter when a quote is not escaped). Pure.

Rules
1. A value that does not begin with a quote is what stands up to the next separator, quotes and escapes and all.
2. A quoted value ends with a quote that has a separator, blanks and a separator, or the end of the line behind it. Blanks behind it are left out.
3. In it, the escape before a quote, or before another escape, goes; before anything else it stays. A line that ends inside a quoted value ends it.
4. A quote that has something else behind it was none: the value is then what stands up to the next separator, with its quotes. Of several in a row that
   end a value, the last one does.
5. A quote of rule 4 that has an escape behind it, or blanks and one more quote in the last value of a line, is refused: what Spark's parser makes of it
   follows no rule.
6. An empty value is null; an empty one in quotes is not.
"""

from __future__ import annotations


class OddQuotes(Exception):
    """A line with quotes and escapes in places where they mean nothing."""


def values(line: str, separator: str, quote: str, escape: str) -> list[str | None]:
    """The values of a line.

    >>> values('a,"b,c",,"d\\\\"e"', ",", '"', "\\\\")
    ['a', 'b,c', None, 'd"e']
    """
    found: list[str | None] = []
    at, end = 0, len(line)
    while True:
        if at < end and line[at] == quote:
            value, at = _quoted(line, at, separator, quote, escape)
            found.append(value)
        else:
            stop = line.find(separator, at)
            stop = end if stop < 0 else stop
            found.append(line[at:stop] or None)
            at = stop
        if at >= end:
            return found
        at += 1  # behind the separator


def _quoted(line: str, start: int, separator: str, quote: str, escape: str) -> tuple[str, int]:
    """A value that begins with a quote, and where it ends: at a separator, or the end of the line."""
    out: list[str] = []
    at, end = start + 1, len(line)
    if at == end:
        return quote, end
    while at < end:
        sign = line[at]
        after = line[at + 1] if at + 1 < end else ""
        if sign == escape and after and (after == quote or (after == escape and escape != quote)):
            out.append(after)
            at += 2
        elif sign == quote:
            run = behind = at + 1
            while behind < end and line[behind] == quote:
                run = behind = behind + 1
            while behind < end and line[behind] <= " " and line[behind] != separator:
                behind += 1
            if behind >= end or line[behind] == separator:
                return "".join(out) + quote * (run - at - 1), behind
            stop = line.find(separator, behind)
            stop = end if stop < 0 else stop
            if line[run] == escape or (behind > run and stop == end and quote in line[behind:]):
                raise OddQuotes
            return quote + "".join(out) + line[at:stop], stop
        else:
            if sign != escape or after:
                out.append(sign)
            at += 1
    return "".join(out), end
