"""How do epochs run in tasks that stay? One long Spark job keeps them alive; the driver runs epochs over sockets.

    wire       frames, and the handshake that comes before them
    messages   what driver and tasks say to each other
    cluster    the driver's end: who is there, who is lost, whose answers count
    epochs     the seven steps, with resident tasks in the place of Spark's jobs
    folds      folding inside the tasks
    worker     a task's end: waits for orders, reads, steps, answers
    exchange   rows from task to task
    tables     keyed rows split by owner, and Arrow tables as bytes
    certificates
               a certificate per run, where there is more than one host

Generations and attempts are `core/membership.py`. It must not know pyspark: Spark's part is `engine/spark/resident_job.py`.
"""
