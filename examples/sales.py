"""Sales: which five products of every category sold most in the last minute, every ten seconds?

    python examples/sales.py

runs it on local Spark, and shows what came out. The same from the command line, where `--help` shows what else can be said:

    millstream run examples/sales.py --available-now --checkpoint example-output/sales/checkpoint

It makes some sales of its own, if there are none. Everything is in example-output/sales: the sales, the best five, the checkpoint.

There are two windows. The first adds up what was sold of each product; the second reads its results, in the window that they came from. A result has the last
moment of its window as its timestamp, so both windows close in the same epoch. A sale is added to one pane of ten seconds, and a window is the sum of six.
"""

import json
import random
from pathlib import Path

import millstream as ms

FOLDER = Path("example-output/sales")
PRODUCTS = {"tea": ["assam", "darjeeling", "oolong", "sencha", "yunnan", "rooibos", "ceylon"], "jazz": ["bop", "cool", "free", "swing"]}


def make_sales(folder: Path) -> None:
    """Five minutes of sales, in order of arrival: at most three seconds after their time."""
    dice = random.Random(1)
    sales = []
    for number in range(600):
        category = dice.choice(list(PRODUCTS))
        sale = {"category": category, "product": dice.choice(PRODUCTS[category]), "quantity": dice.randrange(1, 5)}
        sales.append({**sale, "at": 1_767_258_000_000 + number * 500, "id": f"s{number}"})
    sales.sort(key=lambda sale: sale["at"] + dice.randrange(3_000))
    folder.mkdir(parents=True)
    (folder / "sales.json").write_text("".join(json.dumps(sale) + "\n" for sale in sales))


if not (FOLDER / "sales").exists():
    make_sales(FOLDER / "sales")

pipeline = ms.Pipeline("sales")
source = ms.sources.files(FOLDER / "sales", schema="category string, product string, quantity long, at long, id string")
sales = pipeline.inject("sales", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("5s"))

last_minute = ms.windows.hopping("1m", every="10s")
sold = sales.by("category", "product").window(last_minute).reduce(sold=ms.sum("quantity"), name="sold")
best = sold.by("category").window(ms.windows.same()).reduce(best=ms.top(5, by="sold"), name="best")
shown = best.map(lambda r: {**r.value, "best": [[one["product"], one["sold"]] for one in r.value["best"]]})
pipeline.emit(shown, ms.sinks.files(FOLDER / "best"))

if __name__ == "__main__":
    pipeline.run(checkpoint=FOLDER / "checkpoint", available_now=True).await_termination()
    rows = [json.loads(line)["value"] for file in (FOLDER / "best").glob("*.jsonl") for line in file.read_text().splitlines()]
    for category in PRODUCTS:
        mine = [row for row in rows if row["category"] == category]
        middle = sorted(mine, key=lambda row: row["end"])[len(mine) // 2]
        print(f"{category}, in the middle: {', '.join(f'{product} {sold}' for product, sold in middle['best'])}")
    print(f"All {len(rows)} of them are in {FOLDER / 'best'}.")
