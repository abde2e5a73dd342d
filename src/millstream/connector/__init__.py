"""How do bytes leave a pipeline for a program outside it, and messages come in, exactly once, over TCP?

The wire protocol is that of Wallaroo's connectors, version 3, byte for byte.

    wire/      what is said, and how it looks in bytes; pure
    sink/      out of a pipeline: the sink server, its outputs, and the worker that talks to it; its `protocol/` is pure
    intake/    what was pushed and is not committed yet: a durable log; its `format/` is pure
    source/    into a pipeline: the source's server, and the client that pushes; its `protocol/` is pure

Imports go down this list or to the left: `sink` and `source` know `wire`, `source` knows `intake`, and the two sides do not know each other.
What is pure has no sockets, files, threads or clock, and is tested without either end being there. Nothing here knows pipelines, epochs or Spark.
"""

from millstream.connector.sink.outputs.base import Output
from millstream.connector.sink.outputs.files import Files
from millstream.connector.sink.outputs.memory import Memory
from millstream.connector.sink.outputs.postgres import Postgres
from millstream.connector.sink.protocol.ledger import Open, Standing
from millstream.connector.sink.protocol.stats import SinkStats
from millstream.connector.sink.server import SinkServer
from millstream.connector.sink.worker import WorkerClient
from millstream.connector.source.push import PushClient
from millstream.connector.source.server import SourceServer
from millstream.network import Tls

__all__ = [
    "Files",
    "Memory",
    "Open",
    "Output",
    "Postgres",
    "PushClient",
    "SinkServer",
    "SinkStats",
    "SourceServer",
    "Standing",
    "Tls",
    "WorkerClient",
]
