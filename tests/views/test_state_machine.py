"""A state machine over tables and views: whatever is posted, in whatever epochs, everything is what plain recomputation gives after every epoch."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from viewmodel import Users, chain, compare, encode, expected, latest, pipeline_of

import millstream as ms
from effort import some

IDS = st.integers(0, 9)
BODIES = st.fixed_dictionaries(
    {
        "name": st.sampled_from("abcd"),
        "age": st.integers(0, 9),
        "score": st.sampled_from([None, 0.1, 0.3, 1e16, -1e16]),
        "tags": st.lists(st.sampled_from("xy"), max_size=2),
    }
)


class Tables(RuleBasedStateMachine):
    """Posts pile up until an epoch; then the model and the runner must agree."""

    @initialize(origins=st.booleans(), inline=st.sampled_from([0, 60, 1024]), shards=st.integers(1, 4))
    def begin(self, origins: bool, inline: int, shards: int) -> None:
        self.origins = origins
        self.runner = ms.testing.LocalRunner(pipeline_of(origins, inline), shards=shards)
        self.users: Users = {}
        self.known: dict[int, Any] = {}
        self.said: list[dict[str, Any]] = []
        self.clock = 100
        self.is_settled = True

    def post(self, row: dict[str, Any]) -> None:
        self.runner.push("users", row)
        self.said.append(row)
        self.is_settled = False
        order = (row["ts"], row["gone"], b"" if row["gone"] else encode(row))
        if row["id"] not in self.known or order > self.known[row["id"]]:
            self.known[row["id"]] = order
            self.users.pop(row["id"], None)
            if not row["gone"]:
                self.users[row["id"]] = row

    @rule(id=IDS, body=BODIES)
    def put(self, id: int, body: dict[str, Any]) -> None:
        self.clock += 1
        self.post({"id": id, **body, "gone": False, "ts": self.clock})

    @rule(id=IDS, body=BODIES)
    def delete(self, id: int, body: dict[str, Any]) -> None:
        self.clock += 1
        self.post({"id": id, **body, "gone": True, "ts": self.clock})

    @rule(id=IDS, body=BODIES, back=st.integers(0, 40), gone=st.booleans())
    def stale_or_tie(self, id: int, body: dict[str, Any], back: int, gone: bool) -> None:
        self.post({"id": id, **body, "gone": gone, "ts": self.clock - back})

    @rule(at=st.integers(0, 50))
    def repeat(self, at: int) -> None:
        if self.said:
            self.post(dict(self.said[at % len(self.said)]))

    @rule(many=st.integers(10, 60), name=st.sampled_from("ab"))
    def many(self, many: int, name: str) -> None:
        """A group that grows large; the ids are others than those above."""
        self.clock += 1
        for id in range(100, 100 + many):
            self.post({"id": id, "name": name, "age": id % 10, "score": 0.1, "tags": [], "gone": False, "ts": self.clock})

    @rule(many=st.integers(10, 60))
    def few(self, many: int) -> None:
        self.clock += 1
        for id in range(100, 100 + many):
            self.post({"id": id, "name": "a", "age": 0, "score": None, "tags": [], "gone": True, "ts": self.clock})

    @rule(crash=st.booleans())
    def epoch(self, crash: bool) -> None:
        if crash:
            with contextlib.suppress(ms.testing.SimulatedCrash):
                self.runner.epoch(crash=True)
        self.runner.epoch()
        self.is_settled = True

    @invariant()
    def agree(self) -> None:
        if not self.is_settled:
            return
        for name, want in expected(self.users, self.origins).items():
            compare(name, self.runner.view(name), want, self.users)
        self.runner.check()
        if self.origins:
            assert chain(self.runner.output("names~changelog")) == latest(self.runner.output("names~latest")) == self.runner.view("names")


TestTables = Tables.TestCase
TestTables.settings = settings(
    max_examples=some(40), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
TestTables = pytest.mark.slow(TestTables)
