"""Optional parts of Millstream: which extra brings a module, and what is said where it is missing.

Rule: a module that an extra brings is imported where it is used, inside `needed`. So everything else works without it, and whoever uses it reads one sentence
that can be pasted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from millstream.errors import MissingExtra

_BRINGS = {
    "cluster": ("cryptography",),
    "completion": ("shtab",),
    "demo": ("matplotlib", "duckdb"),
    "delta": ("deltalake",),
    "iceberg": ("pyiceberg", "sqlalchemy"),
    "kafka": ("confluent_kafka",),
    "metrics": ("prometheus_client",),
    "web": ("starlette", "uvicorn", "anyio"),
    "avro": ("fastavro", "httpx2", "httpx", "authlib", "cachetools"),
    "postgres": ("psycopg", "stamina"),
    "spark": ("pyspark", "py4j"),
    "service": ("grpc", "google", "grpc_health", "grpc_reflection"),
}


@contextlib.contextmanager
def needed(what: str) -> Iterator[None]:
    """Around imports. what: the part that needs them, as in "the state service"."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").split(".")[0]
        extra = next((extra for extra, modules in _BRINGS.items() if module in modules), None)
        if extra is None:
            raise
        raise MissingExtra(
            f"{what} needs the extra {extra!r}, which is not installed (there is no module {module!r}). In your clone of Millstream: pip install '.[{extra}]'"
        ) from error
