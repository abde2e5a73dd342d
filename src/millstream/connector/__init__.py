"""The connector: how bytes leave a pipeline for a program outside it, and messages come in, exactly once, over TCP.

The wire protocol is that of Wallaroo's connectors, version 3, byte for byte.

Pure (no sockets, files, threads or clock; tested without either end being there):
    messages          what can be said
    codec             how it looks in bytes
    ledger            points of reference: what fits, what is missing, who may commit
    sink_session      the sink's end: its table of states, messages in, effects out
    worker_session    the worker's end: its tables of states
    txnlog            the log of transactions: typed records, torn or damaged
    names             what a worker may be called, and what its files are called
    sink_stats        what a sink counts
    source_tables, source_streams, source_session, push_session    the source's end and the pusher's: tables, ids and watermarks, sessions
    source_frames, intake_batch    runs of messages, and how they lie in the log

Sockets, files and threads:
    connection, lane, seats, server    the sink server: bytes, one worker's thread, who has a name, all workers
    output, files, postgres    where a worker's bytes end up
    worker                the client of a sink
    credentials           cookies, certificates, addresses
    commands, narrator    `millstream sink` and `millstream sink-read`, and what the sink says while it runs
    source_server, intake, intake_reader    the injector's server, its durable log, and who reads it
    push, push_command, push_signs    the pushing side: the client, `millstream push`, and what it says while it waits
"""

from millstream.connector.credentials import Tls
from millstream.connector.files import Files
from millstream.connector.ledger import Open, Standing
from millstream.connector.output import Memory, Output
from millstream.connector.postgres import Postgres
from millstream.connector.push import PushClient
from millstream.connector.server import SinkServer
from millstream.connector.sink_stats import SinkStats
from millstream.connector.source_server import SourceServer
from millstream.connector.worker import WorkerClient

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
