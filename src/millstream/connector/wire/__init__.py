"""What does the connector say, and how does it look in bytes? Pure as a whole.

    messages    what can be said, as values, and why one end refuses the other
    codec       one message to bytes and back
    decoder     a stream of bytes to messages, one by one or in runs

It must not know who speaks: no session, no state, no socket. Who may say what, and when, is decided by the sessions of `sink` and `source`.
"""
