"""Codes: which code that a bank sent to a card's owner was not confirmed within three seconds of the clock?

    python examples/codes.py

runs it on local Spark until there are alerts, and shows them. From the command line it runs until Ctrl-C; `--help` shows what else can be said:

    millstream run examples/codes.py --resident --checkpoint example-output/codes/checkpoint

It makes some codes of its own, if there are none. Everything is in example-output/codes: what was sent and confirmed, the alerts, the checkpoint.

The limit is a time on the clock, and nothing here has event time: without `timestamp=` a record has the time at which it was read, so none is late. A timer of
the wall clock fires although no record comes any more. It is stored with the state: if the run is killed, the next one fires it. The time begins when we hear
of a code, so an hour without a run makes no alerts; and `self.now` is the same if an epoch is tried again.
"""

import json
from pathlib import Path

import millstream as ms

FOLDER = Path("example-output/codes")
LIMIT = 3_000  # milliseconds
GUESSED = {"card 3", "card 7"}


class Unconfirmed(ms.Computation):
    """One code of a card: "sent", "confirmed" or "told"."""

    State = str

    def process_record(self, record: ms.Record) -> None:
        if record.value["what"] == "confirmed":
            self.cancel_timer("limit", kind=ms.WALL_CLOCK)
            self.state = "confirmed"
        elif self.state == "":  # not if the confirmation was read first
            self.set_timer("limit", self.now + LIMIT, kind=ms.WALL_CLOCK)
            self.state = "sent"

    def process_timer(self, timer: ms.Timer) -> None:
        card, code = self.key
        self.produce({"card": card, "code": code})
        self.state = "told"


def make_codes(folder: Path) -> None:
    """Ten cards with two codes each. What two of them confirm is missing."""
    lines = []
    for number in range(20):
        card, code = f"card {number % 10}", str(100_000 + 7_919 * number)
        happened = ["sent"] if card in GUESSED and number >= 10 else ["sent", "confirmed"]
        lines += [{"card": card, "code": code, "what": what, "id": f"{code}-{what}"} for what in happened]
    folder.mkdir(parents=True)
    (folder / "codes.json").write_text("".join(json.dumps(line) + "\n" for line in lines))


if not (FOLDER / "codes").exists():
    make_codes(FOLDER / "codes")

pipeline = ms.Pipeline("codes")
source = ms.sources.files(FOLDER / "codes", schema="card string, code string, what string, id string")
codes = pipeline.inject("codes", source, id="id")
alerts = pipeline.compute(Unconfirmed, codes, key=["card", "code"], produces="alerts", expire=("1h", ms.WALL_CLOCK))
pipeline.emit(alerts, ms.sinks.files(FOLDER / "alerts"))

if __name__ == "__main__":
    handle = pipeline.run(checkpoint=FOLDER / "checkpoint", resident=True)
    while len(handle.output("alerts")) < len(GUESSED) and not handle.await_termination(0.5):
        pass
    handle.stop()
    for card, code in sorted((value["card"], value["code"]) for _, value, _ in handle.output("alerts")):
        print(f"{card}: nobody has confirmed {code} within {LIMIT // 1_000} seconds")
    print(f"All alerts are in {FOLDER / 'alerts'}.")
