"""What the source and the sink of Kafka have in common: settings of librdkafka, and what its errors say."""

from __future__ import annotations

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


def said(error: Exception) -> str:
    told = error.args[0] if error.args else error
    return told.str() if hasattr(told, "str") else str(told)
