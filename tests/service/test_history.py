"""The checker of histories is checked: good histories pass, and every kind of bad one is found."""

from __future__ import annotations

import copy

import pytest
from history import OK, REFUSED, UNKNOWN, Metrics, Operation, problems
from hypothesis import given, settings
from hypothesis import strategies as st


class Perfect:
    """A partition that does everything at one moment, between its beginning and its end."""

    def __init__(self) -> None:
        self.lsn = 0
        self.there: dict[bytes, tuple[int, bytes | int]] = {}

    def do(self, one: Operation) -> str:
        version, value = self.there.get(one.key, (0, None))
        one.partition = 1
        if one.kind == "get":
            one.version, one.value, one.lsn = version, value, self.lsn
            return OK
        if one.expect is not None and one.expect != version:
            return REFUSED
        self.lsn += 1
        if one.kind == "add":
            one.result = int(value or 0) + int(one.value or 0)
            self.there[one.key] = (self.lsn, one.result)
        else:
            self.there[one.key] = (self.lsn, one.value or b"")
        one.version = one.lsn = self.lsn
        return OK


@st.composite
def good(draw: st.DrawFn) -> Metrics:
    """Some clients, whose operations overlap: begun, done at one moment, answered; or done and never answered; or never done."""
    history, server = Metrics(), Perfect()
    open_: dict[int, tuple[Operation, str]] = {}
    for number in range(draw(st.integers(1, 60))):
        client = draw(st.integers(0, 3))
        if client not in open_:
            kind = draw(st.sampled_from(["get", "put", "add", "get-c"]))
            counter = kind in ("add", "get-c")
            key = draw(st.sampled_from([b"c0", b"c1"] if counter else [b"r0", b"r1"]))
            expect = None
            if kind == "put" and draw(st.booleans()):
                expect = server.there.get(key, (0, b""))[0]
            value: bytes | int | None = draw(st.integers(1, 3)) if kind == "add" else b"%d" % number if kind == "put" else None
            open_[client] = (history.begin(client, kind[:3], key, value, expect), "begun")
            continue
        one, state = open_.pop(client)
        if state == "begun" and (one.kind == "get" or draw(st.integers(0, 9))):
            outcome = server.do(one)
            if one.kind != "get" and not draw(st.integers(0, 5)):
                one.version, one.lsn, one.result = 0, None, None
                history.end(one, UNKNOWN)
            else:
                open_[client] = (one, outcome)
        elif state == "begun":
            history.end(one, UNKNOWN)
        else:
            history.end(one, state)
    for one, state in open_.values():
        history.end(one, UNKNOWN if state == "begun" and one.writes else REFUSED if state == "begun" else state)
    for key, kind in ((b"r0", "get"), (b"r1", "get"), (b"c0", "get"), (b"c1", "get")):
        one = history.begin(9, kind, key)
        server.do(one)
        history.end(one)
    return history


@pytest.mark.slow
@given(good())
def test_what_a_perfect_partition_does_passes(history: Metrics) -> None:
    assert history.problems() == []


def last_writes(history: Metrics) -> list[Operation]:
    """Answered writes whose key was read by somebody who began after the answer."""
    done = history.answered()
    return [
        one
        for one in done
        if one.writes and any(other.kind == "get" and other.key == one.key and other.begin > (one.end or 0) for other in done)
    ]


def ruin(history: Metrics, how: str, pick: int) -> bool:
    """Makes a good history bad; False if there is nothing in it to ruin in this way."""
    done, writes = history.answered(), last_writes(history)
    if how == "stale read":
        found = [
            one
            for one in done
            if one.kind == "get"
            and one.version
            and any(w.version == one.version and w.end and w.end < one.begin for w in done if w.writes and w.key == one.key)
        ]
        if not found:
            return False
        one = found[pick % len(found)]
        one.version, one.value = 0, None
    elif how == "lost write":
        if not writes:
            return False
        one = writes[pick % len(writes)]
        for other in done:
            if other.kind == "get" and other.key == one.key and other.version == one.version:
                other.version, other.value = 0, None
        if not any(other.kind == "get" and other.key == one.key and other.version == 0 and other.begin > (one.end or 0) for other in done):
            return False
    elif how == "doubled increment":
        counters = [one for one in done if one.kind == "add"]
        unknown = sum(int(one.value or 0) for one in history.operations if one.kind == "add" and one.outcome == UNKNOWN)
        if not counters:
            return False
        one = counters[pick % len(counters)]
        for other in done:
            if other.key == one.key and other.version >= one.version:
                if other.kind == "get":
                    other.value = int(other.value or 0) + unknown + 1
                else:
                    other.result = (other.result or 0) + unknown + 1
    elif how == "never written":
        found = [one for one in done if one.kind == "get" and one.key[:1] == b"r" and one.version]
        if not found:
            return False
        found[pick % len(found)].value = b"from nowhere"
    elif how == "going back":
        reads = [one for one in done if one.kind == "get" and one.lsn]
        if not reads:
            return False
        one = copy.copy(reads[pick % len(reads)])
        one.begin, one.end = 10**6, 10**6 + 1
        one.lsn = (one.lsn or 0) - 1
        one.version, one.value = 0, None
        history.operations.append(one)
    elif how == "two answers":
        reads = [
            one
            for one in done
            if one.kind == "get" and one.version and any(w.version == one.version and w.key == one.key for w in done if w.writes)
        ]
        if not reads:
            return False
        one = reads[pick % len(reads)]
        one.value = one.value + 1 if isinstance(one.value, int) else b"other"
    elif how == "reordered":
        pairs = [
            (a, b)
            for a in done
            for b in done
            if a.writes and b.writes and (a.end or 0) < b.begin and a.key == b.key and a.kind == b.kind == "put"
        ]
        if not pairs:
            return False
        first, second = pairs[pick % len(pairs)]
        first.version, second.version = second.version, first.version
        first.lsn, second.lsn = second.lsn, first.lsn
    elif how == "one position twice":
        two = [one for one in done if one.writes]
        if len(two) < 2:
            return False
        two[pick % len(two)].lsn = two[pick % len(two) - 1].lsn
    elif how == "refused and seen":
        found = [
            one
            for one in writes
            if one.kind == "put" and any(o.version == one.version and o.kind == "get" for o in done if o.key == one.key)
        ]
        if not found:
            return False
        found[pick % len(found)].outcome = REFUSED
    else:
        conditional = [one for one in done if one.expect is not None and one.writes]
        if not conditional:
            return False
        one = conditional[pick % len(conditional)]
        earlier = [w.version for w in done if w.writes and w.key == one.key and w.version < one.version]
        one.expect = one.version + 1 if not earlier or one.expect != max(earlier) else (sorted(earlier)[-2] if len(earlier) > 1 else 0)
    return True


KINDS = (
    "stale read",
    "lost write",
    "doubled increment",
    "never written",
    "going back",
    "two answers",
    "reordered",
    "one position twice",
    "refused and seen",
    "condition ignored",
)


@pytest.mark.parametrize("how", KINDS)
def test_a_history_that_was_made_bad_is_found(how: str) -> None:
    ruined = []

    @settings(max_examples=60)  # of few, none may have what is to be ruined
    @given(good(), st.integers(0, 100))
    def one(history: Metrics, pick: int) -> None:
        if ruin(history, how, pick):
            ruined.append(history)
            assert list(problems(history.operations)), history.operations

    one()
    assert ruined


def told(*lines: tuple[str, int, int | None, int, object]) -> list[str]:
    """Problems of a history of one key: kind, begin, end, position and value of each operation."""
    made = []
    for kind, begin, end, lsn, value in lines:
        one = Operation(0, kind, b"k", begin, value, None, end, OK if end else UNKNOWN, lsn, lsn, None, 1)  # type: ignore[arg-type]
        made.append(one)
    return [found[:2] for found in problems(made)]


def test_examples_by_hand() -> None:
    assert told(("put", 1, 2, 1, b"a"), ("get", 3, 4, 1, b"a")) == []
    assert "H4" in told(("put", 1, 2, 1, b"a"), ("put", 3, 4, 2, b"b"), ("get", 5, 6, 1, b"a"))
    assert told(("put", 1, 2, 1, b"a"), ("put", 3, 7, 2, b"b"), ("get", 5, 6, 1, b"a")) == []  # beside the write, either is right
    assert told(("put", 1, None, 0, b"a"), ("get", 3, 4, 1, b"a")) == []  # nobody knew, and it was done
    assert "H2" in told(("get", 3, 4, 1, b"a"))
    assert "H2" in told(("get", 1, 2, 1, b"a"), ("put", 3, None, 0, b"a"))  # seen before it was asked for
