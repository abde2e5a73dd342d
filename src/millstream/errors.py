"""Every exception of Millstream, in one tree. The class says who must act.

::

    MillstreamError
    ├── DefinitionError        the author of the pipeline: the graph, a key, a name is wrong. Found before any record is read
    │   └── MissingExtra           whoever installed Millstream: an optional part is not there. Says how to get it
    ├── CheckpointError        the operator: the checkpoint does not belong to this pipeline, or cannot go on
    │   ├── DamageError        the operator: an object in the checkpoint is missing or its bytes changed
    │   ├── Overtaken          whoever reads old state: the epoch has been collected meanwhile; read a newer one
    │   └── Fenced             nobody: another driver owns the checkpoint now, this one stopped
    ├── InputError             whoever feeds the stream: a null key, a corrupt file, a value that does not fit
    ├── HookError              the author of the computation: a hook raised, a value cannot be encoded
    ├── StorageError           the operator: the disk is full, the store refuses
    ├── NetworkError           the operator: a port is taken, or an address is not this machine's
    ├── SinkError              the operator of the sink
    │   └── SinkRefused            the same: the sink is there and says no. `reason` says whether to come back helps
    ├── ProtocolError          whoever wrote one end of a connection of the connector
    │   ├── LocalProtocolError     our end: it was asked to say something that the protocol does not allow at this point
    │   └── RemoteProtocolError    the other end: what it sent is no message, or not one that it may send at this point
    ├── ServiceError           whoever asks the state service; `reason` is the word of service.proto
    │   ├── BadNode                the client: another node, or several, have the keys. `owners` says who
    │   ├── NotReady               the operator: the partition does not serve yet, or takes no writes any more
    │   ├── Busy                   whoever asks: come back after `retry_after` seconds
    │   ├── TooLarge               whoever asks: send less at once
    │   ├── Conflict               whoever asks: a version is not the expected one. `versions` says which they are
    │   ├── Stale                  whoever asks: nothing is as new as asked for
    │   ├── SessionExpired         whoever asks: whether the write was done cannot be told any more; it was not done now
    │   ├── Unauthenticated        whoever asks: no cookie, or a wrong one
    │   ├── FencedRun              nobody: a newer run writes under this label; the old one stopped
    │   ├── RefusedRequest         whoever asks: the request makes no sense, or a filter or a function said no
    │   ├── Unreachable            whoever asks: nobody answers there. A write was certainly not done
    │   └── UnknownOutcome         whoever asks: it may have been done. Ask again with the same session and seq
    ├── ClusterError           the operator of the cluster: tasks of a resident run do not come, or are lost again and again. Says which
    │   └── TaskLost               nobody: a task of a resident run is gone; the epoch is run again
    └── EpochAbandoned         nobody: attempts of an epoch did not fit together; it is run again

An epoch that ends in any of these was not committed, and nothing already committed is touched.

`exit_code` is what the command `millstream` ends with, for a supervisor that starts it again (docs/operations.md): 1, somebody has to change something first;
3, user code or data; 4, another driver owns the checkpoint, and starting this one again would take it away; 5, something around it failed, and may work later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class MillstreamError(Exception):
    """Base of all errors that Millstream raises on purpose. `culprits`: the computations whose task failed, if that is known."""

    culprits: tuple[str, ...] | None = None
    exit_code = 1


class DefinitionError(MillstreamError):
    """The pipeline cannot be built as it is written."""


class MissingExtra(DefinitionError):
    """An optional part of Millstream is not installed."""


class CheckpointError(MillstreamError):
    """The checkpoint and the pipeline do not fit together."""


class DamageError(CheckpointError):
    """An object of the checkpoint is missing or damaged. `object`: its name, where a manifest names it."""

    object: str | None = None


class Overtaken(CheckpointError):
    """An epoch that somebody reads has been collected meanwhile. Nothing is damaged: read a newer one."""


class Fenced(CheckpointError):
    """Another driver has taken over the checkpoint; this one must stop."""

    exit_code = 4


class InputError(MillstreamError):
    """A record or a file of an injected stream cannot be used."""

    exit_code = 3


class HookError(MillstreamError):
    """User code raised, or gave the system something it cannot keep."""

    exit_code = 3


class StorageError(MillstreamError):
    """The checkpoint's or the sink's storage refused an operation."""

    exit_code = 5


class NetworkError(MillstreamError):
    """A server cannot listen where it is to."""

    exit_code = 5


class ClusterError(MillstreamError):
    """Tasks of a resident run do not come, or are lost again and again. It says which, and never blames a computation."""

    exit_code = 5


class TaskLost(ClusterError):
    """A task of a resident run is gone: its process, its host or the way there. The epoch is run again."""


class SinkError(MillstreamError):
    """A sink could not take or publish an epoch's rows."""

    exit_code = 5


class SinkRefused(SinkError):
    """A sink answered and said no. `reason` is the word for it in `millstream.connector.wire.refusals`."""

    def __init__(self, text: str, reason: str = "other") -> None:
        super().__init__(text)
        self.reason = reason
        if reason == "fence":
            self.exit_code = Fenced.exit_code


class ProtocolError(MillstreamError):
    """One end of a connection did not keep to the connector protocol."""


class LocalProtocolError(ProtocolError):
    """Our end was asked to say something that the protocol does not allow at this point."""


class RemoteProtocolError(ProtocolError):
    """The other end sent bytes that are no message, or a message that it may not send at this point."""


class ServiceError(MillstreamError):
    """The state service said no, or could not be asked. `reason` is the word for it in service.proto. counted: it is a session's answer to a write."""

    reason = "NONE"
    counted = False


class BadNode(ServiceError):
    """The keys belong to another node, or to several partitions. `owners`: their descriptors, as far as they are known."""

    reason = "BAD_NODE"

    def __init__(self, text: str, owners: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.owners = list(owners)


class NotReady(ServiceError):
    """The partition does not serve yet, or takes no writes any more."""

    reason = "NOT_READY"


class Busy(ServiceError):
    """Too much is waiting already. `retry_after`: seconds."""

    reason = "BUSY"

    def __init__(self, text: str, retry_after: float = 0.05) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class TooLarge(ServiceError):
    """The request is larger than one may be."""

    reason = "TOO_LARGE"


class Conflict(ServiceError):
    """A version is not the expected one. `versions`: those that the keys have, 0 for one that is not there."""

    reason = "CONFLICT"

    def __init__(self, text: str, versions: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.versions = list(versions)


class Stale(ServiceError):
    """Nothing here is as new as asked for, or the epoch is no longer kept."""

    reason = "STALE"


class SessionExpired(ServiceError):
    """Whether the write was done can no longer be told; it was not done now. `known_after`: sessions that began later are known, if they were used."""

    reason = "SESSION_EXPIRED"

    def __init__(self, text: str, known_after: int = 0) -> None:
        super().__init__(text)
        self.known_after = known_after


class Unauthenticated(ServiceError):
    """The cookie is missing or wrong."""

    reason = "UNAUTHENTICATED"


class FencedRun(ServiceError):
    """A newer run writes under this label now. Whoever is told so must stop."""

    reason = "FENCED"


class RefusedRequest(ServiceError):
    """The request makes no sense, or a filter or a function said no."""

    reason = "REFUSED"


class UnknownOutcome(ServiceError):
    """A write that may have been done. The same session and seq ask what became of it."""

    reason = "UNKNOWN_OUTCOME"


class Unreachable(ServiceError):
    """Nobody answered in time. `sent`: what was asked may have arrived. A write that may have been done is an `UnknownOutcome` instead."""

    reason = "UNREACHABLE"

    def __init__(self, text: str, sent: bool = True) -> None:
        super().__init__(text)
        self.sent = sent


class EpochAbandoned(MillstreamError):
    """The attempts that made up an epoch do not fit together. Raised inside the engine, which runs the epoch again."""


#: How a failure travels from a task to the driver: by the name of its class.
BY_NAME: dict[str, type[MillstreamError]] = {
    cls.__name__: cls
    for cls in (
        DefinitionError,
        CheckpointError,
        DamageError,
        Overtaken,
        Fenced,
        InputError,
        HookError,
        StorageError,
        NetworkError,
        SinkError,
        SinkRefused,
        ServiceError,
        LocalProtocolError,
        RemoteProtocolError,
    )
}


def travelling_name(error: MillstreamError) -> str:
    """The name under which an error travels: its own, or that of the nearest class above it that the driver knows.

    >>> class Special(HookError): ...
    >>> travelling_name(Special("no"))
    'HookError'
    """
    return next((cls.__name__ for cls in type(error).__mro__ if cls.__name__ in BY_NAME), MillstreamError.__name__)


#: The errors of the state service, by the reason that travels.
BY_REASON: dict[str, type[ServiceError]] = {
    cls.reason: cls
    for cls in (
        BadNode,
        NotReady,
        Busy,
        TooLarge,
        Conflict,
        Stale,
        SessionExpired,
        Unauthenticated,
        FencedRun,
        RefusedRequest,
        UnknownOutcome,
    )
}


class InputWarning(UserWarning):
    """Not an error: what a test's `LocalRunner` says of input that looks wrong. A run says the same in its log."""
