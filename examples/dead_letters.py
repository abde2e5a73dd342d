"""Dead letters: what to do with input that cannot be processed? Put it aside, with the reason, and go on.

    python examples/dead_letters.py

runs it on local Spark, and shows what came out. The same from the command line, where `--help` shows what else can be said:

    millstream run examples/dead_letters.py --available-now --checkpoint example-output/dead-letters/checkpoint

It makes some payments of its own, if there are none; four of them are broken. Everything is in example-output/dead-letters: the payments,
the totals, the dead letters, the checkpoint.

With `on_error=ms.DEAD_LETTER`, a payment that makes a hook raise is undone as if it had not come, and goes to a stream of its own. So does one
that no hook can be called with: without an account, or in a line that cannot be read. Without it, the run would stop at the first of them,
with nothing lost, and wait for somebody to fix it.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

import millstream as ms

FOLDER = Path("example-output/dead-letters")
DAY = 86_400_000

PAYMENTS = """\
{"account": "ann", "amount": "12.50", "at": 1767258000000, "id": "p1"}
{"account": "bob", "amount": "8.00", "at": 1767258060000, "id": "p2"}
{"account": "ann", "amount": "twelve", "at": 1767258120000, "id": "p3"}
{"account": "ann", "amount": "7.25", "at": 1767258180000, "id": "p4"}
{"account": null, "amount": "3.00", "at": 1767258240000, "id": "p5"}
{"account": "bob", "amount": "-1.00", "at": 1767258300000, "id": "p6"}
{"account": "bob", "amount": "4.
{"account": "ann", "amount": "0.25", "at": 1767348000000, "id": "p8"}
"""


class DailyTotal(ms.Computation):
    """What an account has paid in a day, in cents, told when the day has ended."""

    State = dict

    def process_record(self, record: ms.Record) -> None:
        day = record.timestamp - record.timestamp % DAY
        cents = round(float(record.value["amount"]) * 100)
        self.state[day] = self.state.get(day, 0) + cents
        self.set_timer("day", day + DAY)
        if cents <= 0:
            raise ValueError(f"a payment of {record.value['amount']}")  # the total and the timer above are undone

    def process_timer(self, timer: ms.Timer) -> None:
        self.produce({"day": timer.time - DAY, "cents": self.state.pop(timer.time - DAY)})


if not (FOLDER / "payments").exists():
    (FOLDER / "payments").mkdir(parents=True)
    (FOLDER / "payments" / "payments.json").write_text(PAYMENTS)

pipeline = ms.Pipeline("dead-letters")
source = ms.sources.files(FOLDER / "payments", schema="account string, amount string, at long, id string")
payments = pipeline.inject("payments", source, timestamp="at", id="id", watermark=ms.watermarks.bounded("1h"))
totals = pipeline.compute(DailyTotal, payments, key="account", produces="totals", on_error=ms.DEAD_LETTER)
pipeline.emit(totals, ms.sinks.files(FOLDER / "totals"))
pipeline.emit(pipeline.dead_letters("DailyTotal"), ms.sinks.files(FOLDER / "dead"))


def rows(folder: Path) -> list[dict]:
    """The rows of a sink."""
    return [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]


if __name__ == "__main__":
    pipeline.run(checkpoint=FOLDER / "checkpoint", available_now=True).await_termination()
    for row in sorted(rows(FOLDER / "totals"), key=lambda row: (row["timestamp"], row["key"])):
        day = datetime.fromtimestamp(row["value"]["day"] / 1_000, UTC).date()
        print(f"{row['key']} paid {row['value']['cents'] / 100:.2f} on {day}")
    for row in sorted(rows(FOLDER / "dead"), key=lambda row: row["timestamp"]):
        print(f"put aside: {row['value']['value']}\n    because of {row['value']['error'].splitlines()[0]}")
    print(f"Totals are in {FOLDER / 'totals'}, dead letters in {FOLDER / 'dead'}.")
