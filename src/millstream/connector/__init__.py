"""How do bytes leave a pipeline for a program outside it, and messages come in, exactly once, over TCP?

The wire protocol is that of Wallaroo's connectors, version 3, byte for byte.

    wire/      what is said, and how it looks in bytes; pure
    sink/      out of a pipeline: the sink server, its outputs, and the worker that talks to it; its `protocol/` is pure
    intake/    what was pushed and is not committed yet: a durable log; its `format/` is pure
    source/    into a pipeline: the source's server, and the client that pushes; its `protocol/` is pure

Imports go one way: `sink` and `source` know `wire`, `source` knows `intake`, and the two sides do not know each other.
What is pure has no sockets, files, threads or clock, and is tested without either end being there. Nothing here knows pipelines, epochs or Spark.

Public are the servers and clients, the outputs, and, for who writes an end of its own, the parts that decide: sessions, effects, messages, the
codec, the log of transactions and the intake.
"""

from __future__ import annotations

from millstream.connector.intake.writer import Intake
from millstream.connector.sink.outputs.base import Output
from millstream.connector.sink.outputs.files import FileOutputs
from millstream.connector.sink.outputs.memory import MemoryOutputs
from millstream.connector.sink.outputs.postgres import PostgresOutputs
from millstream.connector.sink.protocol import effects as sink_effects
from millstream.connector.sink.protocol import txnlog
from millstream.connector.sink.protocol.ledger import Open, Recovered
from millstream.connector.sink.protocol.session import SinkSession
from millstream.connector.sink.protocol.stats import SinkStats, WorkerStats
from millstream.connector.sink.protocol.worker_session import WorkerSession
from millstream.connector.sink.server import SinkServer
from millstream.connector.sink.worker import WorkerClient
from millstream.connector.source.protocol import effects as source_effects
from millstream.connector.source.protocol.push_session import PushSession
from millstream.connector.source.protocol.session import SourceSession
from millstream.connector.source.protocol.stats import SourceStats
from millstream.connector.source.protocol.streams import Streams
from millstream.connector.source.push import PushClient
from millstream.connector.source.server import SourceServer
from millstream.connector.wire import messages
from millstream.connector.wire.codec import decode, encode
from millstream.connector.wire.decoder import Decoder, RunDecoder
from millstream.network import Tls

__all__ = [
    "Decoder",
    "FileOutputs",
    "Intake",
    "MemoryOutputs",
    "Open",
    "Output",
    "PostgresOutputs",
    "PushClient",
    "PushSession",
    "Recovered",
    "RunDecoder",
    "SinkServer",
    "SinkSession",
    "SinkStats",
    "SourceServer",
    "SourceSession",
    "SourceStats",
    "Streams",
    "Tls",
    "WorkerClient",
    "WorkerSession",
    "WorkerStats",
    "decode",
    "encode",
    "messages",
    "sink_effects",
    "source_effects",
    "txnlog",
]
