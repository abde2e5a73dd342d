"""What was pushed into a pipeline and is not yet committed? A durable log, written by one process and read by Spark's.

    format     pure: entries and marks, and how they lie in the log
    writer     appends, recovers after a crash, acknowledges and collects
    reader     what is between two positions, from any process

It must not know sockets or sessions: it is given entries, and keeps them.
"""
