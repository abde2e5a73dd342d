"""A broker of Kafka in this process, with what a client may rely on and no more: producers by transactional id and number, open transactions, records that are
seen when they are committed. It stands in for the module confluent_kafka. `point` is called before and after each step of a client."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


class KafkaError(Exception):
    TOPIC_ALREADY_EXISTS, _PARTITION_EOF, _TIMED_OUT = 36, -191, -185

    def __init__(self, code: int, retriable: bool = False) -> None:
        super().__init__(code)
        self._code, self._retriable = code, retriable

    def code(self) -> int:
        return self._code

    def retriable(self) -> bool:
        return self._retriable

    def name(self) -> str:
        return f"_{self._code}"

    def str(self) -> str:
        return f"error {self._code}"


class KafkaException(Exception):
    pass


class Transaction:
    def __init__(self) -> None:
        self.state = OPEN


class Entry(SimpleNamespace):
    topic: str
    message_key: bytes | None
    message_value: bytes | None
    transaction: Transaction

    def key(self) -> bytes | None:
        return self.message_key

    def value(self) -> bytes | None:
        return self.message_value

    def error(self) -> None:
        return None


class Broker:
    def __init__(self, point: Callable[[str], None]) -> None:
        self.log: list[Entry] = []
        self.producers: dict[str, tuple[int, Transaction | None]] = {}
        self.point = point

    def committed(self, topic: str) -> list[Entry]:
        return [entry for entry in self.log if entry.topic == topic and entry.transaction.state == COMMITTED]

    def forget(self, topic: str) -> None:
        """As a topic whose records expire."""
        self.log = [entry for entry in self.log if entry.topic != topic]

    def abort_all(self) -> None:
        """Transactions whose producers are gone have been open for too long."""
        for id, (number, transaction) in self.producers.items():
            if transaction is not None and transaction.state == OPEN:
                transaction.state = ABORTED
                self.producers[id] = (number + 1, None)

    def module(self) -> Any:
        """What stands in the place of confluent_kafka."""
        broker = self

        class Producer:
            def __init__(self, settings: dict[str, Any]) -> None:
                self._id, self._number = settings["transactional.id"], -1

            def init_transactions(self, _: float) -> None:
                broker.point("init")
                number, transaction = broker.producers.get(self._id, (0, None))
                if transaction is not None and transaction.state == OPEN:
                    transaction.state = ABORTED
                self._number = number + 1
                broker.producers[self._id] = (self._number, None)
                broker.point("initialised")

            def _own(self) -> Transaction | None:
                number, transaction = broker.producers[self._id]
                if number != self._number:
                    raise KafkaException(KafkaError(90))  # fenced
                return transaction

            def begin_transaction(self) -> None:
                self._own()
                broker.producers[self._id] = (self._number, Transaction())
                broker.point("begun")

            def produce(self, topic: str, value: bytes | None, key: bytes | None, **_: Any) -> None:
                transaction = self._own()
                assert transaction is not None
                broker.log.append(Entry(topic=topic, message_key=key, message_value=value, transaction=transaction))
                broker.point("sent")

            def commit_transaction(self, _: float) -> None:
                broker.point("committing")
                transaction = self._own()
                if transaction is not None:
                    transaction.state = COMMITTED
                    broker.producers[self._id] = (self._number, None)
                broker.point("committed")

            def poll(self, _: float) -> None:
                pass

            purge = close = lambda self, *_: None

        class Consumer:
            def __init__(self, settings: dict[str, Any]) -> None:
                self._found: list[Entry | None] = []

            def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
                return 0, len([entry for entry in broker.log if entry.topic == partition.topic])

            def assign(self, partitions: Any) -> None:
                broker.point("read")
                (one,) = partitions
                entries = [entry for entry in broker.log if entry.topic == one.topic]
                self._found = [entry if entry.transaction.state == COMMITTED else None for entry in entries]
                for at, entry in enumerate(entries):
                    entry.offset = lambda at=at: at  # type: ignore[misc]

            def poll(self, _: float) -> Any:
                """The next record; where what is left was not committed, the end."""
                while self._found:
                    if (entry := self._found.pop(0)) is not None:
                        return entry
                end = SimpleNamespace(error=lambda: KafkaError(KafkaError._PARTITION_EOF), offset=lambda: 1 << 40)
                return end

            def close(self) -> None:
                pass

        return SimpleNamespace(
            Producer=Producer,
            Consumer=Consumer,
            KafkaException=KafkaException,
            KafkaError=KafkaError,
            TopicPartition=lambda topic, partition, offset=0: SimpleNamespace(topic=topic, partition=partition, offset=offset),
            OFFSET_BEGINNING=-2,
        )
