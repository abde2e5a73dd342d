"""What the source and the sink of Kafka have in common: settings of librdkafka, and what its errors say.

Rule: librdkafka goes on trying for as long as somebody waits, whatever a broker says, and in the end says only that it was not heard. What brokers said is told
to a callback. So whoever begins asks `connected`, which ends at once when credentials are refused, and says so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from millstream.errors import DefinitionError

ANSWER = 30.0  # seconds: how long one answer of a broker is waited for


def settings_of(servers: str | Mapping[str, Any], who: str) -> dict[str, Any]:
    """Settings of librdkafka."""
    found = {"bootstrap.servers": servers} if isinstance(servers, str) else dict(servers)
    if not found.get("bootstrap.servers"):
        raise DefinitionError(f"{who}({servers!r}): give bootstrap servers such as 'localhost:9092', or settings with 'bootstrap.servers'")
    return found


def quiet(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without librdkafka's own lines on stderr, which would say what an error then says; and soon back with a broker that was away."""
    return {"log_level": 2, "reconnect.backoff.max.ms": 1000, **settings}


_LASTING = ("AUTH", "_SSL", "_INVALID_ARG", "_UNSUPPORTED_FEATURE", "UNSUPPORTED_VERSION")


def passes(error: Exception, *lasting: str) -> bool:
    """Whether it is worth trying again after a KafkaException: brokers that come and go have many words for it, who refuses us has few. lasting: more such."""
    return not any(word in error.args[0].name() for word in (*_LASTING, *lasting))


def connected(settings: Mapping[str, Any]) -> Any:
    """A client for questions that has reached a broker. Raises KafkaException."""
    import confluent_kafka.admin

    refusals: list[Any] = []

    def heard(error: Any) -> None:
        if "AUTH" in error.name() or "_SSL" in error.name():
            refusals.append(error)
        if "error_cb" in settings:
            settings["error_cb"](error)

    client = confluent_kafka.admin.AdminClient({**quiet(settings), "error_cb": heard})
    deadline, patience = time.monotonic() + ANSWER, 0.5
    while True:
        try:
            client.list_topics(timeout=patience)
            return client
        except confluent_kafka.KafkaException as error:
            client.poll(0)
            left = deadline - time.monotonic()
            if refusals and ("AUTH" in refusals[-1].name() or left <= 0):
                raise confluent_kafka.KafkaException(refusals[-1]) from error
            if left <= 0 or not passes(error):
                raise
            patience = min(2 * patience, max(left, 0.1))


def said(error: Exception) -> str:
    told = error.args[0] if error.args else error
    return told.str() if hasattr(told, "str") else str(told)
