"""What does the connector say, and how does it look in bytes? Pure as a whole.

    messages    what can be said, as values
    codec       one message to bytes and back
    refusals    why one end refuses the other, in words that both ends know
    decoder     a stream of bytes to messages, one by one or in runs

It must not know who speaks: no session, no state, no socket. Who may say what, and when, is decided by the sessions of `sink` and `source`.
"""
