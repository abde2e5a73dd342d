"""What must happen? Records, keys, computations, timers, watermarks, the step, the graph.

    record, typed, arrivals        what comes in
    record_runs                    records for computations that loop over them themselves
    keys, time                     by which key, and when
    computation, visit             user code, one key at a time, and what it asks for
    step, operator_step, outcome   one epoch of one computation on one shard, and what comes of it
    statekind, mapstate            the state of a key
    links                          steps without state
    expiry                         rows that nothing has come to for a time
    keyspace, timer_index          how it lies in a shard, and which of its timers is the earliest
    topology, route_keys           the graph, which of its edges store, and the keys of its routes
    watermark                      how far event time is complete where records come in: `ms.watermarks`
    authority                      how far it is complete for each computation
    dedup, guards                  ids that are held; the switches of exactly-once
    backfill                       views that are filled anew beside what they show
    membership                     who takes part in an epoch of a resident run

Pure. It must not know Spark, files, sockets or the clock: time and storage come in as arguments.
"""
