"""What does the log hold, and how does it lie in the files? Pure as a whole.

    entries    what is kept: entries, and marks that sum them up
    batch      batches of entries and beginnings of segments, in bytes

It must not know files: it is given bytes, and gives bytes.
"""
