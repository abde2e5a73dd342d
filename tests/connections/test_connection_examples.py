"""The examples with servers, as a user runs them: as programs, against real servers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafkakit
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "connections"


def run(name: str, here: Path, *given: str, **env: str) -> str:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *given]
    ran = subprocess.run(command, cwd=here, env={**os.environ, **env}, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Any]:
    found = kafkakit.start(tmp_path / "kafka")
    yield found
    found.kill()


@pytest.mark.spark
def test_kafka_to_kafka(broker: Any, tmp_path: Path) -> None:
    assert "The counts are in topic 'counts'" in run("kafka_counts", tmp_path, "4", KAFKA=broker.address)
    sent = [json.loads(message.value()) for message in kafkakit.read(broker.address, "clicks")]
    seconds = Counter((click["page"], click["at"] // 1000 * 1000) for click in sent)
    told = [(message.key().decode(), json.loads(message.value())) for message in kafkakit.read(broker.address, "counts")]
    assert {(page, one["start"]): one["clicks"] for page, one in told} == dict(seconds) and len(told) == len(seconds)


@pytest.mark.spark
def test_a_new_project_of_topics(broker: Any, tmp_path: Path) -> None:
    def millstream(here: Path, *words: str) -> None:
        environment = {**os.environ, "KAFKA": broker.address}
        ran = subprocess.run(
            [sys.executable, "-m", "millstream.cli", *words], cwd=here, env=environment, capture_output=True, text=True, timeout=120
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    millstream(tmp_path, "new", "shop", "--kafka")
    for topic in ("clicks", "counts"):
        kafkakit.create(broker.address, topic)
    clicks = [("tea", 1_000), ("tea", 59_999), ("rum", 2_000), ("tea", 60_000)]
    kafkakit.send(broker.address, "clicks", [json.dumps({"page": page, "at": at}).encode() for page, at in clicks])
    millstream(tmp_path / "shop", "run", "pipeline.py", "--resident", "--available-now")
    told = [json.loads(message.value()) for message in kafkakit.read(broker.address, "counts")]
    assert sorted((one["page"], one["start"], one["clicks"]) for one in told) == [("rum", 0, 1), ("tea", 0, 2), ("tea", 60_000, 1)]


@pytest.mark.spark
def test_postgres_to_a_view_in_postgres(postgres: str, tmp_path: Path) -> None:
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(postgres, autocommit=True) as session:
        try:
            for change in ("select 1", "delete from orders where id % 2 = 0"):
                if change != "select 1":
                    session.execute(change)
                assert "the checkpoint is in" in run("postgres_view", tmp_path, "8", DSN=postgres)
                expected = session.execute("select shop, count(*), sum(cents) from orders group by shop order by shop").fetchall()
                assert session.execute("select * from shops order by shop").fetchall() == expected != []
        finally:
            session.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots where not active")
            session.execute("drop publication if exists millstream_orders; drop table if exists orders, shops, millstream_epochs")


@pytest.mark.spark
def test_bronze_to_silver(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    for _ in range(2):
        assert "6,000 readings are in example-output/lake/bronze, and 100 minutes in example-output/lake/silver." in run("lake", tmp_path)


@pytest.mark.crash
def test_redis(tmp_path: Path) -> None:
    pytest.importorskip("redis", reason="redis is not installed")
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server")
    socket = tmp_path / "redis.sock"
    with subprocess.Popen(
        ["redis-server", "--port", "0", "--unixsocket", str(socket), "--dir", str(tmp_path), "--save", ""], stdout=subprocess.DEVNULL
    ) as server:
        deadline = time.monotonic() + 20
        while not socket.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        try:
            assert "lost, repeated and reordered nothing" in run("redis_sink", tmp_path, f"unix://{socket}")
        finally:
            server.kill()
