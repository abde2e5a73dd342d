"""What must happen? Records, keys, computations, timers, watermarks, the step, the graph.

    record, arrivals, rejected, keys, time    what comes in, by which key and when
    computation, visit, step, outcome         user code, one key at a time, and what comes of it
    statekind, mapstate, subkeys, keyspace    how state lies in a shard
    topology, delivery, adaptive              the graph, the ways through it, and which of them store
    watermark, authority                      how far event time is complete
    dedup, guards                             ids that are held; the switches of exactly-once
    codec                                     what is asked of a codec

Pure: nothing here knows Spark, files, sockets or the clock. Time and storage come in as arguments.
"""
