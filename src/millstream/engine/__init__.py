"""How an epoch is run. Everything here ships; what tests it is in `simulation/`.

    program, checks, reconcile     a pipeline made ready, what can be refused before Spark is started, and a checkpoint that it must fit
    plan, aftermath                pure: what an epoch will do, and what its manifest says
    epochs                         the seven numbered steps between the two, on the driver
    ownership, publishing          whose the checkpoint is; what sinks are told
    declared, history, contracts   what sources say; the last epochs; what the protocol asks of those beside it
    task, departures               one shard of one group in one epoch, lettered; where its productions go
    staging, receipts              what it makes durable; what it tells the driver
    spark/                         all that knows Spark

It must not know people (`status/`, `handle.py`, `cli/`), nor how it is tested.
"""
