"""Who keeps state that can be queried? The state service: tables in partitions, on two planes, and the live state of a pipeline.

A partition is a state machine over a log. The log decides: the store, the watchers and the next owner follow it. In the order of a request's life:

    messages           requests, replies, log records, descriptors
    table              what a table is made of
    node               a process: its life, its partitions, its servers
    grpc_servers       the gRPC servers of the data plane and the control plane
    limits             how much may be asked, and long replies in pages
    table_backend      the calls of both planes, over the partitions of a node
    range_map          from a key to its partition, by ranges
    partition          inbox, turn, log, store, reply: the life of a request
    dispatch           in which order requests get their turn
    state_machine      the turn: what a request does
    dedup_sessions     every write counts once
    staged_txns        staged rows, for sinks that write in two phases
    transforms         filters, enrichers and sanitizers for everything that enters or leaves a table
    functions          functions that tables often need
    watchers           who watches a partition
    logs/              how a write is made durable: disk, none, objects
    stores/            where entries are kept: memory, counters, lmdb; snapshots
    snapshotting       from the log into a store; snapshots beside the log and for operators, and restores
    desired_state      which partitions are desired, and the steps from what is there
    registry           where that is kept
    manager            carries the plan out
    client             a client for asyncio
    client_session     its writes: numbers, retries, batches, back-off
    route_cache        which node it asks
    channel            one connection to a node
    blocking           for programs without asyncio: a client, and servers in threads
    conformance        the contracts of logs and stores, as checks for your own
    live/              the live state of a pipeline
    proto/             service.proto

Only this package imports gRPC, and only when something of it is used. It must not know how pipelines are run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.core.keys import key_bytes as live_key
from millstream.service import functions, logs, stores
from millstream.service.dispatch import Dispatcher, PendingCall, linear, split
from millstream.service.logs.log_contract import Log, LogKind
from millstream.service.messages import Level
from millstream.service.range_map import HASH, KEY
from millstream.service.state_machine import Turn, TurnView
from millstream.service.stores.store_contract import KeyStore, StoreKind
from millstream.service.table import Table
from millstream.service.transforms import drop_fields, enrich, hide_fields, keep_if

if TYPE_CHECKING:
    from millstream.service.blocking import Client
    from millstream.service.client import AsyncClient, KeyResult, WatchEvent
    from millstream.service.node import Node

__all__ = [
    "HASH",
    "KEY",
    "AsyncClient",
    "Client",
    "Dispatcher",
    "KeyResult",
    "KeyStore",
    "Level",
    "Log",
    "LogKind",
    "Node",
    "PendingCall",
    "StoreKind",
    "Table",
    "Turn",
    "TurnView",
    "WatchEvent",
    "drop_fields",
    "enrich",
    "functions",
    "hide_fields",
    "keep_if",
    "linear",
    "live_key",
    "logs",
    "split",
    "stores",
]


def __getattr__(name: str) -> Any:
    """What needs gRPC is imported when it is used."""
    if name not in ("AsyncClient", "Client", "KeyResult", "Node", "WatchEvent"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from millstream.service import blocking, client, node

    return getattr(blocking if name == "Client" else node if name == "Node" else client, name)
