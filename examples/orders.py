"""Orders: which of them are not paid within thirty minutes? It is told as soon as it is certain, and not before.

    python examples/orders.py

runs it on local Spark, and shows what came out. The same from the command line, where `--help` shows what else can be said:

    millstream run examples/orders.py --available-now --checkpoint example-output/orders/checkpoint

It makes some orders and payments of its own, if there are none. Everything is in example-output/orders: the input, what was paid and what was not, the
checkpoint.

A left join has a row with None for an order without a payment. It comes when the low watermark has passed the order by thirty minutes: then no payment can
come any more, so no such row is ever taken back. It needs no further record of that order, but time that goes on: at the end of a bounded run it does.
"""

import json
import random
from pathlib import Path

import millstream as ms

FOLDER = Path("example-output/orders")
MINUTE = 60_000


def make_rows() -> dict[str, list[dict]]:
    """Two hours of orders, and payments for four of five of them, some too late."""
    dice = random.Random(1)
    orders, payments = [], []
    for number in range(120):
        at = 1_767_258_000_000 + number * MINUTE
        orders.append({"id": f"o{number}", "amount": dice.randrange(5, 200), "at": at})
        if number % 5:
            waits = dice.randrange(35, 50) if number % 11 == 0 else dice.randrange(1, 31)
            payments.append({"order_id": f"o{number}", "paid": orders[-1]["amount"], "at": at + waits * MINUTE})
    payments.sort(key=lambda row: row["at"] + dice.randrange(MINUTE))
    return {"orders": orders, "payments": payments}


if not FOLDER.exists():
    for name, rows in make_rows().items():
        (FOLDER / name).mkdir(parents=True)
        (FOLDER / name / "rows.json").write_text("".join(json.dumps(row) + "\n" for row in rows))

pipeline = ms.Pipeline("orders")
order_files = ms.sources.files(FOLDER / "orders", schema="id string, amount long, at long")
payment_files = ms.sources.files(FOLDER / "payments", schema="order_id string, paid long, at long")
orders = pipeline.inject("orders", order_files, timestamp="at", watermark=ms.watermarks.bounded("1m"))
payments = pipeline.inject("payments", payment_files, timestamp="at", watermark=ms.watermarks.bounded("1m"))

joined = orders.by("id").join(payments.by("order_id"), after="30m", how="left", name="joined")
paid, unpaid = joined.branch(lambda r: r.value["right"] is not None)

pipeline.emit(paid, ms.sinks.files(FOLDER / "paid"))
pipeline.emit(unpaid.map(lambda r: r.value["left"]), ms.sinks.files(FOLDER / "unpaid"))

if __name__ == "__main__":
    pipeline.run(checkpoint=FOLDER / "checkpoint", available_now=True).await_termination()
    rows = [json.loads(line) for file in (FOLDER / "unpaid").glob("*.jsonl") for line in file.read_text().splitlines()]
    for row in sorted(rows, key=lambda row: row["timestamp"])[:5]:
        print(f"{row['key']}: {row['value']['amount']} not paid, told {(row['timestamp'] - row['value']['at']) // MINUTE} minutes later")
    print(f"{len(rows)} orders were not paid in time. All of them are in {FOLDER / 'unpaid'}.")
