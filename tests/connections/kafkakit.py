"""A broker, and a client that is not ours."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import kafka_broker
import pytest


def start(folder: Path) -> Any:
    """A broker, or a skipped test that says why there is none."""
    pytest.importorskip("confluent_kafka")
    try:
        kafka_broker.fetch()
    except RuntimeError as error:
        pytest.skip(str(error))
    return kafka_broker.Broker(folder).start()


def admin(address: str) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": address, "log_level": 0})


def create(address: str, topic: str, partitions: int = 1, **settings: str) -> None:
    from confluent_kafka.admin import NewTopic

    client = admin(address)  # which must live as long as its answer is awaited
    client.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(30)


def alter(address: str, topic: str, **settings: str) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()]
    client = admin(address)
    (future,) = client.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)]).values()
    future.result(30)


def send(address: str, topic: str, values: Iterable[bytes | None], partition: int = 0, *, ends: str = "", **record: Any) -> None:
    """Messages into a partition. ends: "commit" or "abort" if they are a transaction."""
    from confluent_kafka import Producer

    id = {"transactional.id": f"kit-{time.time_ns()}"} if ends else {}
    producer = Producer({"bootstrap.servers": address, "log_level": 0, **id})
    if ends:
        producer.init_transactions(30)
        producer.begin_transaction()
    for value in values:
        producer.produce(topic, value=value, partition=partition, **record)
        producer.poll(0)
    assert producer.flush(30) == 0
    if ends == "commit":
        producer.commit_transaction(30)
    elif ends == "abort":
        producer.abort_transaction(30)


def read(address: str, topic: str, isolation: str = "read_committed") -> list[Any]:
    """All messages of a topic, those of one partition in their order."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    looking = Consumer({"bootstrap.servers": address, "group.id": "look", "isolation.level": "read_uncommitted", "log_level": 0})
    settings = {
        "bootstrap.servers": address,
        "group.id": f"look-{time.time_ns()}",
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "log_level": 0,
    }
    consumer = Consumer(settings)
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        # a transaction that has been committed is seen a moment later; one that stays open hides the rest, and whoever asks for it waits in vain
        ends = {number: looking.get_watermark_offsets(TopicPartition(topic, number), timeout=30)[1] for number in partitions}
        open_ones, found = {number for number in partitions if ends[number]}, []
        while open_ones:
            message = consumer.poll(30)
            assert message is not None
            if message.error() is None:
                found.append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF and message.offset() >= ends[message.partition()]:
                open_ones.discard(message.partition())
        return found
    finally:
        looking.close()
        consumer.close()
