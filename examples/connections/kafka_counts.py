"""Kafka to Kafka: how often was each page clicked, per second of event time? Exactly once, for readers of committed records.

    make kafka && python scripts/kafka_broker.py start /tmp/kafka 9092      # or a broker of your own
    python examples/connections/kafka_counts.py

KAFKA says where the broker is (localhost:9092). The topics `clicks` and `counts` are made if they are not there, and clicks come from this program. It runs
until it is interrupted, or for as many seconds as it is given; start it again, and it goes on where it was. The checkpoint is in example-output/kafka.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from pathlib import Path

import millstream as ms

FOLDER = Path("example-output/kafka")
SERVERS = os.environ.get("KAFKA", "localhost:9092")

pipeline = ms.Pipeline("clicks")
source = ms.sources.kafka(SERVERS, "clicks", schema="page string, at long", metadata=["id"])
clicks = pipeline.inject(
    "clicks", source, timestamp="at", id="kafka_id", watermark=ms.watermarks.partitions(ms.watermarks.bounded("2s", onward="5s"))
)
counts = clicks.by("page").window(ms.windows.tumbling("1s")).reduce(clicks=ms.count(), name="counts")
pipeline.emit(counts, ms.sinks.kafka(SERVERS, "counts"))


def make_topics() -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    client = AdminClient({"bootstrap.servers": SERVERS})
    there = client.list_topics(timeout=10).topics
    for name in {"clicks", "counts"} - there.keys():
        client.create_topics([NewTopic(name, 3, 1)])[name].result(10)


def click(seconds: float) -> None:
    """Sends a hundred clicks a second."""
    from confluent_kafka import Producer

    producer, until = Producer({"bootstrap.servers": SERVERS, "enable.idempotence": True}), time.time() + seconds
    while time.time() < until:
        page = random.choice(["home", "tea", "rum"])
        producer.produce("clicks", key=page.encode(), value=json.dumps({"page": page, "at": int(time.time() * 1000)}).encode())
        producer.poll(0.01)
    producer.flush(10)


if __name__ == "__main__":
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1e6
    make_topics()
    threading.Thread(target=click, args=[seconds], daemon=True).start()
    handle = pipeline.run(checkpoint=FOLDER / "checkpoint", resident=True)
    try:
        handle.await_termination(seconds + 8)  # by then the last second has been told
    finally:
        handle.stop()
        print(f"The counts are in topic 'counts' at {SERVERS}; the checkpoint is in {FOLDER / 'checkpoint'}.")
