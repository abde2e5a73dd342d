"""Every exception of Millstream, in one tree. The first words of a class say who must act; docs/operations.md has them as a table.

An epoch that ends in any of these was not committed, and nothing already committed is touched.

`exit_code` is what the command `millstream` ends with, for a supervisor that starts it again: 1, somebody has to change something first; 3, user code or data;
4, another driver owns the checkpoint, and starting this one again would take it away; 5, something around it failed, and may work later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


class MillstreamError(Exception):
    """Base of all errors that Millstream raises on purpose. `culprits`: the computations whose task failed, if that is known."""

    culprits: tuple[str, ...] | None = None
    exit_code = 1


class DefinitionError(MillstreamError):
    """The author of the pipeline: the graph, a key or a name is wrong. Found before any record is read."""


class MissingExtra(DefinitionError):
    """Whoever installed Millstream: an optional part is not there. It says how to get it."""


class CheckpointError(MillstreamError):
    """The operator: the checkpoint does not belong to this pipeline, or cannot go on."""


class DamageError(CheckpointError):
    """The operator: an object of the checkpoint is missing, or its bytes changed. `object`: its name, where a manifest names it."""

    object: str | None = None


class Overtaken(CheckpointError):
    """Whoever reads old state: the epoch has been collected meanwhile. Nothing is damaged: read a newer one."""


class Fenced(CheckpointError):
    """Nobody: another driver owns the checkpoint now, and this one stopped."""

    exit_code = 4


class InputError(MillstreamError):
    """Whoever feeds the stream: a null key, a corrupt file, a value that does not fit."""

    exit_code = 3


class HookError(MillstreamError):
    """The author of the computation: a hook raised, or gave something that cannot be encoded."""

    exit_code = 3


class StorageError(MillstreamError):
    """The operator: the disk is full, or the checkpoint's or a sink's store refuses."""

    exit_code = 5


class NetworkError(MillstreamError):
    """The operator: a port is taken, or an address is not this machine's."""

    exit_code = 5


class ClusterError(MillstreamError):
    """The operator of the cluster: tasks of a resident run do not come, or are lost again and again. It says which, and never blames a computation."""

    exit_code = 5


class TaskLost(ClusterError):
    """Nobody: a task of a resident run is gone, its process, its host or the way there. The epoch is run again."""


class SinkError(MillstreamError):
    """The operator of the sink: it could not take or publish an epoch's rows."""

    exit_code = 5


class SinkRefused(SinkError):
    """The operator of the sink: it answered, and said no. `reason` is the word for it in `millstream.connector.wire.messages`."""

    def __init__(self, text: str, reason: str = "other") -> None:
        super().__init__(text)
        self.reason = reason
        if reason == "fence":
            self.exit_code = Fenced.exit_code


class ProtocolError(MillstreamError):
    """Whoever wrote one end of a connection: it did not keep to the connector protocol."""


class LocalProtocolError(ProtocolError):
    """Our end was asked to say something that the protocol does not allow at this point."""


class RemoteProtocolError(ProtocolError):
    """The other end sent bytes that are no message, or a message that it may not send at this point."""


class EpochAbandoned(MillstreamError):
    """Nobody: the attempts that made up an epoch do not fit together. The engine runs the epoch again."""


# --- the state service


class ServiceError(MillstreamError):
    """Whoever asks the state service: it said no, or could not be asked. `reason` is the word for it in service.proto. counted: it is a session's answer to
    a write."""

    reason = "NONE"
    counted = False


class BadNode(ServiceError):
    """The client: the keys belong to another node, or to several partitions. `owners`: their descriptors, as far as they are known."""

    reason = "BAD_NODE"

    def __init__(self, text: str, owners: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.owners = list(owners)


class NotReady(ServiceError):
    """The operator: the partition does not serve yet, or takes no writes any more."""

    reason = "NOT_READY"


class Busy(ServiceError):
    """Whoever asks: too much is waiting already. Come back after `retry_after` seconds."""

    reason = "BUSY"

    def __init__(self, text: str, retry_after: float = 0.05) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class TooLarge(ServiceError):
    """Whoever asks: the request is larger than one may be. Send less at once."""

    reason = "TOO_LARGE"


class Conflict(ServiceError):
    """Whoever asks: a version is not the expected one. `versions`: those that the keys have, 0 for one that is not there."""

    reason = "CONFLICT"

    def __init__(self, text: str, versions: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.versions = list(versions)


class Stale(ServiceError):
    """Whoever asks: nothing here is as new as asked for, or the epoch is no longer kept."""

    reason = "STALE"


class SessionExpired(ServiceError):
    """Whoever asks: whether the write was done can no longer be told; it was not done now. `known_after`: sessions that began later are known, if they were
    used."""

    reason = "SESSION_EXPIRED"

    def __init__(self, text: str, known_after: int = 0) -> None:
        super().__init__(text)
        self.known_after = known_after


class Unauthenticated(ServiceError):
    """Whoever asks: the cookie is missing or wrong."""

    reason = "UNAUTHENTICATED"


class FencedRun(ServiceError):
    """Nobody: a newer run writes under this label now, and the old one must stop."""

    reason = "FENCED"


class RefusedRequest(ServiceError):
    """Whoever asks: the request makes no sense, or a filter or a function said no."""

    reason = "REFUSED"


class UnknownOutcome(ServiceError):
    """Whoever asks: the write may have been done. The same session and seq ask what became of it."""

    reason = "UNKNOWN_OUTCOME"


class Unreachable(ServiceError):
    """Whoever asks: nobody answered in time. `sent`: what was asked may have arrived. A write that may have been done is an `UnknownOutcome` instead."""

    reason = "UNREACHABLE"

    def __init__(self, text: str, sent: bool = True) -> None:
        super().__init__(text)
        self.sent = sent


def _below(cls: type[Any]) -> Iterator[type[Any]]:
    for one in cls.__subclasses__():
        yield one
        yield from _below(one)


#: The errors of the state service, by the reason that travels.
BY_REASON: dict[str, type[ServiceError]] = {cls.reason: cls for cls in _below(ServiceError)}

#: How a failure travels from a task to the driver: by the name of its class. What is the engine's own affair does not.
BY_NAME: dict[str, type[MillstreamError]] = {
    cls.__name__: cls for cls in _below(MillstreamError) if not issubclass(cls, (ClusterError, EpochAbandoned, *BY_REASON.values()))
}


def travelling_name(error: MillstreamError) -> str:
    """The name under which an error travels: its own, or that of the nearest class above it that the driver knows.

    >>> class Special(HookError): ...
    >>> travelling_name(Special("no"))
    'HookError'
    """
    return next((cls.__name__ for cls in type(error).__mro__ if cls.__name__ in BY_NAME), MillstreamError.__name__)


class InputWarning(UserWarning):
    """Not an error: what a test's `LocalRunner` says of input that looks wrong. A run says the same in its log."""
