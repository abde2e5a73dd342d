"""How does a task get rows as Arrow columns, and how are they keyed where Spark does not read?

    arrow_rows    what came to a task, as the task wants it: keyed rows to arrivals, and what must be rejected taken out
    batches       records of a table, as Python values when somebody asks
    hashing       hashes of columns
    casts         the texts and times that Spark makes of columns, and what is said of columns that cannot be a key, a time, an id
    folding       partial results of operators, before the exchange
    keying        source columns to keyed rows: what `spark/keyed_rows.py` does in the JVM

It must not know pyspark, sockets or epochs.
"""
