"""What may a pusher and a source say to each other, and what does it come to? Pure as a whole.

    streams         what was received of each stream, what is committed, who pushes it, how far its event time is complete
    session         the source's end: its tables of states, messages in, effects out
    outgoing        a stream as its pusher keeps it, over any number of connections
    push_session    the pusher's end: its tables of states

It must not know sockets, files, threads or the clock. Whoever has those carries out the effects; the duties are numbered in `session`.
"""
