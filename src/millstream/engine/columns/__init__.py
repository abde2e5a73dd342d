"""Rows as Arrow columns, without a JVM: how a task gets them, and how they are keyed where Spark does not read.

    arrow      keyed rows to arrivals, and what must be rejected taken out
    inputs     what came to a task, as the task wants it
    hashing    Spark's hashes in numpy, bit by bit
    casts      the texts and times that Spark makes of columns
    refusals   what is said of columns that cannot be a key, a time, an id
    keying     source columns to keyed rows: what `spark/rows.py` does in the JVM

It must not know pyspark, sockets or epochs.
"""
