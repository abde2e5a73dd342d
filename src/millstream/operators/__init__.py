"""How do records become results, in columns?

    windows    which windows a time falls into: `ms.windows`
    rows       what an operator reads
    vectors    reducers on columns
    partials   partial results, one row per window and key, and their bytes
    panes      the window operator, on a store of panes
    results    what operators produce, as columns
    dsl        what users write: by, window, reduce

It knows the core and the reducers, and does no input or output. Columns are pyarrow's and numpy's.
"""
