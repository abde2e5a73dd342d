"""PostgreSQL to PostgreSQL: a table of orders, and beside it a table that always has the number and the sum of every shop's orders. Exactly once.

    createdb shop                                      # on a server with wal_level=logical
    python examples/connections/postgres_view.py

DSN says where the server is (dbname=shop). The tables `orders` and `shops` are made if they are not there. It runs until it is interrupted, or for as many
seconds as it is given: change orders meanwhile with psql, and look at shops. Start it again, and it goes on where it was. The checkpoint is in
example-output/postgres.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import millstream as ms

FOLDER = Path("example-output/postgres")
DSN = os.environ.get("DSN", "dbname=shop")
TABLES = """
create table if not exists orders (id bigint primary key generated always as identity, shop text not null, cents bigint not null);
create table if not exists shops (shop text primary key, orders bigint not null, cents bigint not null)
"""

pipeline = ms.Pipeline("shops")
orders = pipeline.table("orders", ms.sources.postgres(DSN, "orders", schema="id long, shop string, cents long"), key="id")
shops = orders.by("shop").reduce(orders=ms.count(), cents=ms.sum("cents"), name="shops")
pipeline.publish(shops, ms.sinks.postgres(DSN, "shops", mode="upsert"), mode="latest")


def make_tables() -> None:
    import psycopg

    with psycopg.connect(DSN) as session:
        session.execute(TABLES)
        if session.execute("select count(*) from orders").fetchone() == (0,):
            session.execute(
                "insert into orders (shop, cents) select (array['tea', 'rum', 'ale'])[1 + n % 3], n from generate_series(1, 300) n"
            )


if __name__ == "__main__":
    make_tables()
    handle = pipeline.run(checkpoint=FOLDER / "checkpoint", resident=True)
    try:
        handle.await_termination(float(sys.argv[1]) if len(sys.argv) > 1 else None)
    finally:
        handle.stop()
        print(
            f"Table shops of {DSN!r} is what `select shop, count(*), sum(cents) from orders group by shop` gives; the checkpoint is in {FOLDER / 'checkpoint'}."
        )
