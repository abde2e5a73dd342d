"""How is a pipeline tried without Spark? Nothing here runs in production; users reach it through `millstream.testing`.

    local             the local engine: the oracle
    simulated_run     a run under a schedule of faults
    driver            its driver
    loop_tasks        the tasks of a simulated micro-batch
    resident_tasks    tasks that stay, and the network between them
    list_inputs       rows as lists, on their way into shards
    fakes             what is modelled: a sink, worker processes, processes that are killed
    fault             one fault, as data and as text
    schedules         plans and schedules from a seed, and the shortest schedule that fails
    comparison        the undisturbed run, and what a simulated one must have in common with it
    diff              the first difference between two runs, in words
    epoch_cuts        the same records in other epochs, shards and instances
    instance_sharing  whose instance a hook runs on, varied
    diagnosis         what kind of mistake makes runs differ
    sink_checks       whether a sink keeps its contract: called twice, by replaced runs, by drivers that are killed
    view_checks       what tables and views hold after an epoch, whether it is right, and what must be equal in other epochs

It must not know Spark, nor people: it gives values and texts.
"""
