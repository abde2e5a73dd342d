"""The Spark engine: reads sources, shuffles, runs the step in tasks, commits epochs.

session: a local session that is set up well. rows: from source columns to keyed rows, in the JVM; and from Arrow to arrivals. task: what one
task does. epoch: what the driver does for one epoch. query: from `run` to a handle. folds: maintenance beside the epochs. Only this package imports pyspark.
"""
