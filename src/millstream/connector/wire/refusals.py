"""Why one end refuses the other: the texts that stand in ERROR, and what can be told from them.

Rules
1. ERROR carries a text and nothing else, and the text is for people. The texts that the other end has to understand are made here, and
   recognised here: no program looks for words anywhere else.
2. A text is recognised by how it begins. What is not recognised (any other mistake, a failure, another implementation's words) is `OTHER`.
3. `FINAL` are the reasons that waiting does not change. After any other it may help to come back.
"""

from __future__ import annotations

COOKIE, VERSION, FENCE, TLS, OTHER = "cookie", "version", "fence", "tls", "other"

FINAL = frozenset({COOKIE, VERSION, FENCE, TLS})

WRONG_COOKIE = "the cookie is wrong"
_VERSION = "version "
_FENCED = "fenced: "


def wrong_version(said: str, spoken: str) -> str:
    return f"{_VERSION}{said!r} is not spoken here; {spoken!r} is"


def fenced(why: str) -> str:
    """Somebody else has the name now."""
    return f"{_FENCED}{why}"


def reason(text: str) -> str:
    """What the text of an ERROR comes to.

    >>> reason(fenced("another connection has this worker's name now")), reason("the sink failed at Prepare: no fence is left")
    ('fence', 'other')
    """
    if text == WRONG_COOKIE:
        return COOKIE
    if text.startswith(_VERSION):
        return VERSION
    return FENCE if text.startswith(_FENCED) else OTHER
