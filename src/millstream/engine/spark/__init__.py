"""How do epochs run on Spark? Only this package imports pyspark (and the command line, to quiet its loggers).

    query, run          from `pipeline.run` to a run that is begun, watched and explained; a streaming query, where only Spark can read a source
    planning, frames    epochs that Millstream plans itself: as micro-batches of batch frames, or resident
    residents           the long job that resident tasks live in
    session, jvm        a local session that is set up well, and a JVM that starts fast
    epoch               the seven steps as one Spark job per epoch
    rows                in the JVM: from source columns to keyed rows
    task, inputs, arrow in the task: bytes unpacked, rows as the task wants them, Arrow to Python and back
    offsets             what Spark's own log says of a batch
    compactions               compaction beside the epochs
    pickling, reasons   programs by value; Spark's errors in words
    data_sources        Python data sources of PySpark's, planned by Millstream
    intake_source       the connector's intake as a Spark data source

It must not know people: what a run shows is the handle's business.
"""
