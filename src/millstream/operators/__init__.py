"""How do records become results, in columns?

    buffer            records of a key that wait
    interval_join     two streams, by the distance of their timestamps
    asof              each left record with the newest right one not after it
    in_order          the records of a key in order of time
    first             the first record of a key within a time

They are computations like those that users write, and know nothing below the core.
"""
