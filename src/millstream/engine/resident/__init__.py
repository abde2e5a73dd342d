"""How do epochs run in tasks that stay? One long Spark job keeps them alive; the driver runs epochs over sockets.

    runner           the tasks of an epoch: an order to each task, its receipts back, and again if one was lost; and a resident run, put together
    coordinator      the driver's end: who is there, who is lost, whose answers count; the jobs that tasks live in, begun again as long as the run lasts
    worker           a task's end: waits for orders, and drives rounds
    round            one attempt of a task at one epoch, without sockets
    exchange         rows from task to task
    partitioning     keyed rows as Arrow tables, split by owner, and as bytes
    wire             frames, the handshake that comes before them, and TLS below where there is more than one host
    messages         what driver and tasks say to each other

Generations and attempts are `core/membership.py`. It must not know pyspark: Spark's part is `engine/spark/background_jobs.py`.
"""
