"""How do records become results, in columns?

    streams         what users write: map, filter, by, window, reduce, join
    windows         which windows a time falls into: `ms.windows`
    window_spec     what a window operator is to do, as plain data
    spread          windows with hot keys: partial results per key and salt, joined behind
    rows            what an operator reads
    vectors         reducers on columns
    partials        partial results, one row per window and key, and their bytes
    merging         partial results of the same panes and keys become one, and are shown
    panes           the window operator, on a store of panes
    changing_panes  windows that change: early and late results
    changing_sessions  sessions that change
    pane_rows       what it keeps, as rows: for whoever reads its state
    results         what operators produce, as columns
    pairs           what a join of streams produces
    chain           steps without state: map, filter, flat_map
    functions       what stands in the place of a function: SQL texts, and what `ms.col` makes
    session         the session operator, on a store of stretches
    spans           stretches of sessions in columns, and their bytes
    interval_join   two streams, by the distance of their timestamps
    waiting         records of a side of it that wait, in chunks of columns
    waiting_rows    what it keeps, as rows: for whoever reads its state
    asof            each left record with the newest right one not after it
    in_order        the records of a key in order of time
    first           the first record of a key within a time
    buffer          records of a key that wait
    waking          a computation that looks at a key when there may be something to do
    expressions     what users write of columns: names, SQL texts, ms.col; as a value of one record, as an Arrow column, as SQL for Spark
    record_keys     keys of internal streams that are expressions
    sql_text        SQL texts to expressions: a small part of Spark's SQL, and what is said of the rest
    row_values      what every operation of an expression gives for the values of one record, and which types it takes
    column_values   what it gives for Arrow columns

Pure: value in, value out. It knows the core and the reducers, not pyspark, epochs or files. Columns are pyarrow's and numpy's.
"""
