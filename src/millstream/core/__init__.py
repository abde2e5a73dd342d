"""What must happen: records, keys, computations, timers, watermarks, the step, the graph.

Pure: nothing here knows Spark, files, sockets or the clock. Time and storage come in as arguments.
"""
