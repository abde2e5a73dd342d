"""What the two ends of a sink count.

Rules
1. A counter moves when the thing has happened: a commit is counted when the output has carried it out, a vote when it is about to be sent.
2. Each runner counts for itself, in its own thread. The server adds them up when it is asked.
3. Counters begin at 0 with the server, or the client, and never go back. Only `sessions` is a number of now.
"""

from __future__ import annotations

import msgspec


class SinkStats(msgspec.Struct):
    """How a sink server is doing, since it was started."""

    #: Connections that were accepted, whoever it was.
    connections: int = 0
    #: Workers that are connected now.
    sessions: int = 0
    #: Connections that were ended with ERROR.
    errors: int = 0
    #: Messages with bytes, and the bytes of them that outputs took. What was dropped, as a repetition or behind a gap, counts as a message only.
    messages: int = 0
    bytes: int = 0
    #: Of these messages, those that came while a transaction was open.
    messages_between_phases: int = 0
    votes_yes: int = 0
    votes_no: int = 0
    commits: int = 0
    bytes_committed: int = 0
    rollbacks: int = 0
    #: Streams that were announced once more on the same connection.
    repeated_notifies: int = 0
    #: Phase two of the transaction that was committed last, said again.
    repeated_commits: int = 0
    #: Phase two of transactions that are not known. Who rolls back twice is counted here as well: what was rolled back is forgotten.
    unknown_phase_twos: int = 0
    #: Ends of streams that were acknowledged.
    ends: int = 0
    #: Outputs that were put aside because their worker has left, and how often a worker said what another had said before it.
    archived: int = 0
    repeated_leavings: int = 0

    def add(self, other: SinkStats) -> None:
        """Adds what another has counted."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class WorkerStats(msgspec.Struct):
    """What a worker's client has done, over all of its connections."""

    connections: int = 0
    #: Bytes that were sent, and the messages that carried them. What was rolled back is counted as well.
    messages: int = 0
    bytes: int = 0
    votes_yes: int = 0
    votes_no: int = 0
    #: Phase two, as it was sent.
    commits: int = 0
    rollbacks: int = 0
