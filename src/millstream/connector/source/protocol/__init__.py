"""What may a pusher and a source say to each other, and what does it come to? Pure as a whole.

    tables          both ends as tables: states of connections and of streams
    streams         what was received of each stream, what is committed, who pushes it, how far its event time is complete
    session         the source's end: messages in, effects out
    outgoing        a stream as its pusher keeps it, over any number of connections
    push_session    the pusher's end

It must not know sockets, files, threads or the clock. Whoever has those carries out the effects; the duties are numbered in `session`.
"""
