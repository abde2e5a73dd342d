"""Joins by key and by foreign key: every kind of change on either side, with no epoch in which a row is missing or there twice."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import millstream as ms

USERS = ms.sources.files("users/", schema="id long, country string, gone boolean, ts long")
ORDERS = ms.sources.files("orders/", schema="id long, buyer long, amount long, gone boolean, ts long")


def shop(how: str) -> ms.Pipeline:
    pipeline = ms.Pipeline("shop")
    users = pipeline.table("users", USERS, key="id", version="ts", deleted="gone")
    orders = pipeline.table("orders", ORDERS, key="id", version="ts", deleted="gone")
    sold = orders.by("buyer").join(users, how=how, name="sold")
    sold.by(country_of).reduce(ms.sum(lambda row: row["left"]["amount"]), name="revenue")
    pipeline.publish(sold, ms.sinks.files("sold/"))
    return pipeline


def country_of(row: Any) -> str:
    return str((row.value["right"] or {"country": "nowhere"})["country"])


class Shop:
    """The pipeline, and what it must show."""

    def __init__(self, how: str, shards: int = 3) -> None:
        self.how = how
        self.runner = ms.testing.LocalRunner(shop(how), shards=shards)
        self.users: dict[int, str] = {}
        self.orders: dict[int, tuple[int, int]] = {}
        self.clock = 0

    def user(self, id: int, country: str | None) -> None:
        self.clock += 1
        self.runner.push("users", {"id": id, "country": country, "gone": country is None, "ts": self.clock})
        self.users.pop(id, None)
        if country is not None:
            self.users[id] = country

    def order(self, id: int, buyer: int | None, amount: int = 10) -> None:
        self.clock += 1
        self.runner.push("orders", {"id": id, "buyer": buyer or 0, "amount": amount, "gone": buyer is None, "ts": self.clock})
        self.orders.pop(id, None)
        if buyer is not None:
            self.orders[id] = (buyer, amount)

    def check(self) -> None:
        """One epoch, after which everything is as SQL would have it."""
        self.runner.epoch()
        revenue: dict[str, int] = {}
        rows: dict[int, str | None] = {}
        for id, (buyer, amount) in self.orders.items():
            if buyer in self.users or self.how == "left":
                country = self.users.get(buyer)
                revenue[country or "nowhere"] = revenue.get(country or "nowhere", 0) + amount
                rows[id] = country
        assert self.runner.view("revenue") == revenue
        joined = {id: (row["right"] or {"country": None})["country"] for id, row in self.runner.view("sold").items()}
        assert joined == rows
        published: dict[int, Any] = {}
        for id, change, _ in self.runner.output("sold.rows~changelog"):
            assert published.get(id) == change["prev"] != change["next"]
            published[id] = change["next"]
        assert {id: row for id, row in published.items() if row is not None} == self.runner.view("sold.rows")
        assert {id: row["left"]["buyer"] for id, row in self.runner.view("sold.rows").items()} == {id: self.orders[id][0] for id in rows}
        self.runner.check()


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_right_document_comes_changes_and_goes(how: str) -> None:
    s = Shop(how)
    s.order(1, 7)
    s.order(2, 7, 5)
    s.order(3, 8)
    s.check()  # nobody is there
    s.user(7, "Peru")
    s.check()  # insertion
    s.user(7, "Chile")
    s.check()  # change
    s.user(8, "Peru")
    s.user(7, None)
    s.check()  # deletion, while another comes
    s.user(7, "Ghana")
    s.check()  # back again


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_left_document_goes_from_one_right_one_to_another(how: str) -> None:
    s = Shop(how)
    for buyer, country in ((7, "Peru"), (8, "Chile")):
        s.user(buyer, country)
    for id in range(20):
        s.order(id, 7)
    s.check()
    for id in range(20):
        s.order(id, 8 if id % 2 else 9)
    s.check()  # half of them to 8, half to somebody who is not there
    s.user(9, "Peru")
    s.order(3, None)
    s.order(5, 7, 99)
    s.check()  # both sides in one epoch


@pytest.mark.parametrize("how", ["inner", "left"])
def test_the_key_of_a_right_document_changes_with_its_orders(how: str) -> None:
    """User 7 becomes user 70: the one goes, the other comes, and the orders follow, in any order of epochs."""
    moves = ["gone", "come", "orders"]
    for order in itertools.permutations(moves):
        for cut in range(4):
            s = Shop(how)
            s.user(7, "Peru")
            s.order(1, 7)
            s.order(2, 7)
            s.check()
            for at, move in enumerate(order):
                if move == "gone":
                    s.user(7, None)
                elif move == "come":
                    s.user(70, "Peru")
                else:
                    s.order(1, 70)
                    s.order(2, 70)
                if at >= cut:
                    s.check()
            s.check()


def test_many_left_documents_leave_the_row_and_come_back() -> None:
    s = Shop("left")
    for id in range(200):
        s.order(id, 7)
    s.check()
    assert s.runner.state("sold", 7).beside
    s.user(7, "Peru")
    s.check()
    for id in range(195):
        s.order(id, None)
    s.check()
    assert not s.runner.state("sold", 7).beside


def test_a_join_on_equal_keys_and_on_a_view() -> None:
    pipeline = ms.Pipeline("shop")
    users = pipeline.table("users", USERS, key="id", version="ts", deleted="gone")
    orders = pipeline.table("orders", ORDERS, key="id", version="ts", deleted="gone")
    spent = orders.by("buyer").reduce(ms.sum("amount"), name="spent")
    users.join(spent, how="left", name="accounts").by(lambda row: row.value["left"]["country"]).reduce(
        ms.sum(lambda row: row["right"]), name="by_country"
    )
    runner = ms.testing.LocalRunner(pipeline)
    runner.push("users", {"id": 7, "country": "Peru", "gone": False, "ts": 1}, {"id": 8, "country": "Peru", "gone": False, "ts": 1})
    runner.push(
        "orders", {"id": 1, "buyer": 7, "amount": 10, "gone": False, "ts": 1}, {"id": 2, "buyer": 8, "amount": 5, "gone": False, "ts": 1}
    )
    runner.epoch()
    assert runner.view("by_country") == {"Peru": 15}
    runner.push("orders", {"id": 2, "buyer": 7, "amount": 5, "gone": False, "ts": 2})
    runner.push("users", {"id": 8, "country": "Chile", "gone": False, "ts": 2})
    runner.epoch()
    assert runner.view("by_country") == {"Peru": 15, "Chile": None}
    runner.check()
