"""How do rows look to people? Committed rows made readable, without the code that made them.

    listing      rows of a computation: state, MapStates, timers and holds, as JSON can say them
    open_windows the panes that a window operator has open
    relations    tables, views and joins: what they show, and what each document gives
    shard_rows   what one shard keeps, as flat rows for a table of another program's
    columns      values of any kind as columns of Arrow

Who prints, serves or draws them is above. It must not know where the rows come from: a `Reader` (`state/queries.py`) gives them.
"""
