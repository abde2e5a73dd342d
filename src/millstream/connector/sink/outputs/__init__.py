"""Where do a worker's bytes end up?

    base        the contract that a sink server asks an output to keep
    memory      in memory, for tests and for trying things out
    files       a file and a log for each worker
    postgres    a row for each line

It must not know connections or sessions: an output is told what to do, and says what survived.
"""
