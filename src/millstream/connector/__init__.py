"""How do bytes leave a pipeline for a program outside it, and messages come in, exactly once, over TCP?

The wire protocol is that of Wallaroo's connectors, version 3, byte for byte.

    wire/      what is said, and how it looks in bytes; pure
    sink/      out of a pipeline: the sink server, its outputs, and the worker that talks to it; its `protocol/` is pure
    intake/    what was pushed and is not committed yet: a durable log; its `format` is pure
    source/    into a pipeline: the source's server, and the client that pushes; its `protocol/` is pure

Imports go one way: `sink` and `source` know `wire`, `source` knows `intake`, and the two sides do not know each other.
What is pure has no sockets, files, threads or clock, and is tested without either end being there. Nothing here knows pipelines, epochs or Spark.

Public are the servers and clients, what they count, and the outputs with what an own one needs. Whoever writes an end of the protocol finds its parts in
`wire` and in `protocol/` of each side (`examples/own_sink.py`).
"""

from __future__ import annotations

from millstream.connector.sink.outputs.base import Output
from millstream.connector.sink.outputs.files import FileOutputs
from millstream.connector.sink.outputs.memory import MemoryOutputs
from millstream.connector.sink.outputs.postgres import PostgresOutputs
from millstream.connector.sink.protocol.ledger import Open, Recovered
from millstream.connector.sink.server import SinkServer, SinkStats
from millstream.connector.sink.worker import WorkerClient, WorkerStats
from millstream.connector.source.push import PushClient
from millstream.connector.source.server import SourceServer, SourceStats
from millstream.network import Tls

__all__ = [
    "FileOutputs",
    "MemoryOutputs",
    "Open",
    "Output",
    "PostgresOutputs",
    "PushClient",
    "Recovered",
    "SinkServer",
    "SinkStats",
    "SourceServer",
    "SourceStats",
    "Tls",
    "WorkerClient",
    "WorkerStats",
]
