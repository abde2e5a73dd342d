"""How is an epoch run? Everything here ships; what tests it is in `simulation/`.

    program                        a pipeline made ready to run, and what can be refused before Spark is started
    evolution                      a checkpoint that a changed pipeline must fit
    plan, next_manifest            pure: what an epoch will do, and what its manifest says
    epochs                         the seven numbered steps between the two, on the driver
    source_planner, trigger        what the next epoch reads, and when it begins
    ownership                      who owns the checkpoint
    publishing                     what sinks are told, and when garbage is collected
    compaction_orders              chains that are due for compaction, and those that were compacted
    metrics, hints                 the last epochs and their phases; input that looks wrong
    task, routing                  one shard of one group in one epoch, lettered; where its productions go
    staging, receipts              what it makes durable; what it tells the driver
    worker_process                 what a worker process keeps between tasks
    repair                         views that differ from their documents
    columns/                       rows as Arrow columns
    resident/                      tasks that stay
    spark/                         all that knows Spark

It must not know people (`status/`, `handle.py`, `cli/`), nor how it is tested.
"""
