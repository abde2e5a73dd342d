"""The connector: how bytes leave a pipeline for a program outside it, exactly once, over TCP and in two phases.

The wire protocol is that of Wallaroo's connectors, version 3, byte for byte.

Pure (no sockets, files, threads or clock; tested without either end being there):
    messages          what can be said
    codec             how it looks in bytes
    ledger            points of reference: what fits, what is missing, who may commit
    sink_session      the sink's end: its table of states, messages in, effects out
    worker_session    the worker's end: its tables of states
    txnlog            the log of transactions: typed records, torn or damaged
    names             what a worker may be called, and what its files are called

Sockets, files and threads:
    connection, lane, server    the sink server: bytes, one worker's thread, all workers
    output, files, postgres    where a worker's bytes end up
    worker                the client of a sink
    credentials           cookies, certificates, addresses
    commands              `millstream sink` and `millstream sink-read`
"""

from millstream.connector.credentials import Tls
from millstream.connector.files import Files
from millstream.connector.ledger import Open, Standing
from millstream.connector.output import Memory, Output
from millstream.connector.postgres import Postgres
from millstream.connector.server import SinkServer
from millstream.connector.worker import WorkerClient

__all__ = ["Files", "Memory", "Open", "Output", "Postgres", "SinkServer", "Standing", "Tls", "WorkerClient"]
