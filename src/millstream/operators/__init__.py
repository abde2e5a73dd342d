"""How do records become results, in columns?

    windows    which windows a time falls into: `ms.windows`
    rows       what an operator reads
    vectors    reducers on columns
    partials   partial results, one row per window and key, and their bytes
    panes      the window operator, on a store of panes
    results    what operators produce, as columns
    dsl        what users write: by, window, reduce
    expressions    what users write of columns: names, SQL texts, ms.col; as a value of one record, as an Arrow column, as SQL for Spark
    record_keys    keys of internal streams that are expressions
    sql_text       SQL texts to expressions: a small part of Spark's SQL, and what is said of the rest
    row_values     what every operation of an expression gives for the values of one record, and which types it takes
    column_values  what it gives for Arrow columns

Pure: value in, value out. It knows the core and the reducers, not pyspark, epochs or files. Columns are pyarrow's and numpy's.
"""
