"""What may a worker and a sink say to each other, and what does it come to? Pure as a whole.

    session           the sink's end: its table of states, messages in, effects out
    worker_session    the worker's end: its tables of states
    ledger            points of reference: what fits, what is missing, who may commit
    txnlog            the log of transactions: typed records, torn or damaged

It must not know sockets, files, threads or the clock. Whoever has those carries out the effects; the duties are numbered in `session`.
"""
