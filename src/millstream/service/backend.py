"""What stands behind the data plane: a node's tables, or the live state of a pipeline. Each answers the same calls.

Rules
1. A backend takes and gives the messages of service.proto, and raises `ServiceError`s (and `DamageError`); `grpc_servers.py` makes gRPC of them.
2. All calls come from one event loop. What takes longer than a turn is done beside it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from millstream.service.proto import service_pb2 as pb


class DataBackend(Protocol):
    """The data plane's calls."""

    def tables(self) -> list[str]:
        """The names that can be asked for; health is told by table."""

    async def upsert(self, request: pb.UpsertRequest) -> pb.WriteReply: ...

    async def remove(self, request: pb.RemoveRequest) -> pb.WriteReply: ...

    async def get(self, request: pb.GetRequest) -> pb.GetReply: ...

    async def call(self, request: pb.CallRequest) -> pb.CallReply: ...

    async def decide(self, request: pb.DecideRequest) -> pb.DecideReply: ...

    def scan(self, request: pb.ScanRequest) -> AsyncIterator[pb.ScanReply]: ...

    def watch(self, request: pb.WatchRequest) -> AsyncIterator[pb.WatchReply]: ...

    async def route(self, request: pb.RouteRequest) -> pb.PartitionList: ...

    async def close(self) -> None:
        """The process ends."""


class ControlBackend(Protocol):
    """The control plane's calls."""

    async def add_partition(self, request: pb.AddPartitionRequest) -> pb.Partition: ...

    async def remove_partition(self, request: pb.RemovePartitionRequest) -> pb.Partition: ...

    async def list_partitions(self, request: pb.ListPartitionsRequest) -> pb.PartitionList: ...

    async def snapshot(self, request: pb.SnapshotRequest) -> pb.SnapshotReply: ...

    async def restore(self, request: pb.RestoreRequest) -> pb.RestoreReply: ...
