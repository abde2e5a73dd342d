"""Who keeps state that can be asked? The state service: tables in partitions, on two planes, and the live state of a pipeline.

A partition is a state machine over a log. The log decides: store, watchers and whoever takes over follow it. Read it in the order of a request's life:

    messages     the words: requests, answers, log records, descriptors
    table        what a table is made of
    node         a process: finds the partition of a request
    partition    inbox, turn, log, store, answer: the life of a request
    points       its crash points, for tests
    dispatch     in which order requests get their turn
    turn         the state machine: what a request does
    elders       writes that came too early
    sessions     every write counts once
    ledger       staged rows, for sinks that write in two phases
    transforms   the gate: filters, enrichers, sanitizers, for all that enters and leaves
    functions    functions that tables often need
    clock        a time that never goes back
    window       the line monitor: order over asynchronous parts
    watching     who watches a partition
    replay       how a store follows its log
    logs/        how a write is made durable: disk, none, objects
    stores/      where entries are kept: memory, counters, lmdb, cached; snapshots
    replay       from the log into a store
    saving       snapshots beside the log, for operators, and restores
    registries/  which partitions are desired
    plan         from what is there to what is desired
    manager      carries that out
    control      the control plane's calls
    limits       how much may be asked
    backend      what stands behind a plane
    planes       the gRPC servers
    wire         from our words to the proto's
    routes       from a key to its partition
    calls        how a client speaks
    client       a client for asyncio
    ways         which node it asks
    writing      its numbers, batches and pauses
    found        what it is answered
    blocking     a client for everybody else
    checks       the contracts of logs and stores, to run against your own
    upload       copies snapshots elsewhere
    trial        a node for tests
    live/        the live state of a pipeline
    proto/       service.proto

Only here gRPC is imported, and only when something of it is used. It must not know how pipelines are run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.core.keys import key_bytes as live_key
from millstream.service import functions, logs, stores
from millstream.service.dispatch import Dispatcher, linear, split
from millstream.service.logs.base import Log, LogKind
from millstream.service.messages import Level, Request
from millstream.service.routes import HASH, KEY
from millstream.service.stores.base import KeyStore, StoreKind
from millstream.service.table import Table
from millstream.service.transforms import drop_fields, enrich, hide_fields, keep_if
from millstream.service.turn import Turn, TurnView

if TYPE_CHECKING:
    from millstream.service.blocking import Client
    from millstream.service.client import AsyncClient
    from millstream.service.found import KeyFound, WatchedChange
    from millstream.service.node import Node

__all__ = [
    "HASH",
    "KEY",
    "AsyncClient",
    "Client",
    "Dispatcher",
    "KeyFound",
    "KeyStore",
    "Level",
    "Log",
    "LogKind",
    "Node",
    "Request",
    "StoreKind",
    "Table",
    "Turn",
    "TurnView",
    "WatchedChange",
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
    if name not in ("AsyncClient", "Client", "KeyFound", "Node", "WatchedChange"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from millstream.service import blocking, client, node

    return getattr(blocking if name == "Client" else node if name == "Node" else client, name)
