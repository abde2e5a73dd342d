"""Where are committed entries kept? The stores of the state service, behind one contract.

    base        the contract, S1 to S4
    memory      a dict
    counters    a dict of numbers, for counts and sums
    lmdb_store  one LMDB environment per node
    cached      a fast store over a slow one, which decides
    snapshots   a store's entries as of one position, as objects; any kind of store can be restored from them

It must not know logs, partitions or gRPC.
"""
