"""How a pipeline is tried without Spark. Nothing here runs in production; users reach it through `millstream.testing`.

    local        one process, dictionaries, a hand-moved clock: the oracle
    cluster      the production protocol and tasks over storage in memory, under a schedule of faults
    resident     the same for resident runs: planned epochs, tasks that are lost and come back
    slots        those tasks, and the network between them
    oracle       the undisturbed run of the same plan on the local engine, and how the two are compared
    readings     what tables and views hold after an epoch, and whether a recomputation gives the same
    inputs       rows of injected streams as Python dictionaries, for both
    models       what the cluster only models: a sink, workers, processes that die
    schedules    plans and schedules from a seed, and the shortest one that fails
    cuts, instances, findings, differences, refined    the same records in other epochs and on other instances, and what to say if results differ

It may know the engine and the state. It must not know Spark, and nobody below it may know it.
"""
