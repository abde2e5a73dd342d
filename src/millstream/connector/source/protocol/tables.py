"""The source protocol as tables: what may be said when messages are pushed into a pipeline, by whom, and where it leads.

A program outside (the client) pushes numbered messages on named streams. The server takes them and acknowledges what is committed.
A connection has a state at each end; so has each stream on it, which the client numbers.

The server's states                              The client's states
    INITIAL   nothing was said yet                   INITIAL    nothing was said yet
    READY     the peer is known                      AWAIT_OK   HELLO is sent
    CLOSED    over                                   READY      the server is willing
                                                     CLOSED     over

A stream, for the server                         A stream, for the client
    ABSENT    not announced, or released             ABSENT     not announced, refused, or ended
    OPEN      messages may come                      ASKED      NOTIFY is sent
    ENDING    EOS has come; not all is committed     OPEN       messages may be sent
                                                     ENDING     EOS is sent; not all is acknowledged

Rules
1. A cell is state, message, what it came to, next state. What has no cell is a mistake. The server answers one with ERROR and closes; the
   client closes. A mistake costs its own connection and nothing else.
2. The state of the connection is looked up first, then that of the stream which the message names.
3. ERROR is a last word, and never answered. RESTART is the server's last word: come back, here or elsewhere. Both ends then close.
4. A commit is no message, but leads from state to state like one: `COMMITTED` says what happens to a stream when an epoch is committed.
5. An ACK may arrive for a stream that has just ended, or is being announced again: it says nothing new.
6. Whoever announces a stream that the same connection is still ending is told to try again (NOTIFY_ACK false), as if it were active elsewhere.
"""

from __future__ import annotations

import enum

from millstream.connector.wire import messages as m


class Server(enum.Enum):
    INITIAL = "Initial"
    READY = "Ready"
    CLOSED = "Closed"


class ServerStream(enum.Enum):
    ABSENT = "Absent"
    OPEN = "Open"
    ENDING = "Ending"


class PushState(enum.Enum):
    INITIAL = "Initial"
    AWAIT_OK = "AwaitOk"
    READY = "Ready"
    CLOSED = "Closed"


class ClientStream(enum.Enum):
    ABSENT = "Absent"
    ASKED = "Asked"
    OPEN = "Open"
    ENDING = "Ending"


# ---- the server's end: what it hears

SERVER: dict[Server, dict[type[m.Frame], dict[str, Server]]] = {
    Server.INITIAL: {
        m.Hello: {"welcome": Server.READY},
        m.Error: {"over": Server.CLOSED},
    },
    Server.READY: {
        m.Notify: {"answered": Server.READY},
        m.Message: {"taken": Server.READY},
        m.Eos: {"taken": Server.READY},
        m.Error: {"over": Server.CLOSED},
    },
    Server.CLOSED: {},
}

SERVER_STREAM: dict[ServerStream, dict[type[m.Frame], dict[str, ServerStream]]] = {
    ServerStream.ABSENT: {
        m.Notify: {"accepted": ServerStream.OPEN, "active elsewhere": ServerStream.ABSENT},
    },
    ServerStream.OPEN: {
        m.Message: {"new": ServerStream.OPEN, "seen before": ServerStream.OPEN, "declared": ServerStream.OPEN},
        m.Eos: {"nothing follows": ServerStream.ENDING},
    },
    ServerStream.ENDING: {
        m.Notify: {"still ending": ServerStream.ENDING},
    },
}

COMMITTED: dict[ServerStream, dict[str, ServerStream]] = {
    ServerStream.ABSENT: {},
    ServerStream.OPEN: {"some": ServerStream.OPEN},
    ServerStream.ENDING: {"some": ServerStream.ENDING, "all": ServerStream.ABSENT},
}

# ---- the client's end: what it says, and what it hears

CLIENT_SENT: dict[PushState, dict[type[m.Frame], dict[str, PushState]]] = {
    PushState.INITIAL: {m.Hello: {"greeted": PushState.AWAIT_OK}},
    PushState.AWAIT_OK: {m.Error: {"over": PushState.CLOSED}},
    PushState.READY: {
        m.Notify: {"asked": PushState.READY},
        m.Message: {"pushed": PushState.READY},
        m.Eos: {"ended": PushState.READY},
        m.Error: {"over": PushState.CLOSED},
    },
    PushState.CLOSED: {},
}

_LAST_WORDS: dict[type[m.Frame], dict[str, PushState]] = {m.Error: {"over": PushState.CLOSED}, m.Restart: {"over": PushState.CLOSED}}

CLIENT_RECEIVED: dict[PushState, dict[type[m.Frame], dict[str, PushState]]] = {
    PushState.INITIAL: {},
    PushState.AWAIT_OK: {m.Ok: {"welcome": PushState.READY}, **_LAST_WORDS},
    PushState.READY: {m.NotifyAck: {"answered": PushState.READY}, m.Ack: {"acknowledged": PushState.READY}, **_LAST_WORDS},
    PushState.CLOSED: {},
}

CLIENT_STREAM_SENT: dict[ClientStream, dict[type[m.Frame], dict[str, ClientStream]]] = {
    ClientStream.ABSENT: {m.Notify: {"asked": ClientStream.ASKED}},
    ClientStream.ASKED: {},
    ClientStream.OPEN: {
        m.Message: {"pushed": ClientStream.OPEN},
        m.Eos: {"some are on the way": ClientStream.ENDING, "all is acknowledged": ClientStream.ABSENT},
    },
    ClientStream.ENDING: {},
}

CLIENT_STREAM_RECEIVED: dict[ClientStream, dict[type[m.Frame], dict[str, ClientStream]]] = {
    ClientStream.ABSENT: {m.Ack: {"known already": ClientStream.ABSENT}},
    ClientStream.ASKED: {
        m.NotifyAck: {"accepted": ClientStream.OPEN, "active elsewhere": ClientStream.ABSENT},
        m.Ack: {"known already": ClientStream.ASKED},
    },
    ClientStream.OPEN: {m.Ack: {"acknowledged": ClientStream.OPEN}},
    ClientStream.ENDING: {m.Ack: {"some": ClientStream.ENDING, "all": ClientStream.ABSENT}},
}
