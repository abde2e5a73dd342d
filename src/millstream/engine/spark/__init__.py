"""How do epochs run on Spark? Only this package imports pyspark (and the command line, to quiet its loggers).

    start             from `pipeline.run` to a run that can be started: checks, and the streaming query where only Spark can read a source
    run_builder       what a run is asked for; and runs whose epochs Millstream plans: as micro-batches, or resident
    run               a run that is begun, watched and explained
    session, jvm      a local session that is set up well, and a JVM that starts fast
    job_runner        the tasks of an epoch as one Spark job, and what it reads as one DataFrame
    keyed_rows        in the JVM: from source columns to keyed rows
    task_function     in the task: bytes unpacked, the task run, Arrow laid out
    background_jobs   jobs beside the epochs: compactions, the long job that resident tasks live in, a batch job to check views
    spark_planner     where Spark plans: what its own log says of a batch
    spark_folder      where Spark keeps its own log of a checkpoint in an object store
    pickling          programs by value
    error_text        Spark's errors in words
    data_sources      Python data sources of PySpark's, planned by Millstream
    intake_source     the connector's intake as a Spark data source
    state_format      what a computation keeps, for `spark.read.format("millstream-state")`
    published_format  what ms.sinks.files has published, for `spark.read` and `spark.readStream.format("millstream")`
    versions          what differs between the versions of Spark

It must not know people: what a run shows is the handle's business.
"""

from millstream.extras import needed

with needed("running on Spark"):
    import pyspark  # noqa: F401
