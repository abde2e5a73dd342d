"""Zeitgeist: spikes and dips in search traffic, MillWheel's own example, on made-up traffic with known anomalies.

    traffic      the generator: queries out of order, with spikes and dips injected at known times
    zeitgeist    the pipeline: a window that counts, and the detector of `ms.anomalies`
    driver       the process that runs it on Spark, and that is killed
    drivers      who starts drivers, kills them, and starts others
    processes    a child process with all that it starts
    undisturbed  the same pipeline in a process that nobody kills, without Spark; and the comparison
    look, live   what is seen of a run from outside, and what a person sees of that
    report       what was found against what was injected: precision, recall, delay
    picture      actual and predicted traffic of some terms, with both kinds of marks
    place        a demo's directory
    run          all of it, from nothing to the picture
    asked/       the same pipeline, served and asked while it runs

A day of the demo is a minute of event time, so that ten days of traffic pass in ten minutes of event time. Generator and detector know that
much of the world in common, and no more. What a person sees of time is in seconds of the demo: of event time since the traffic began.
"""

BUCKET = 1_000
"""The length of a bucket in milliseconds of event time."""

DAY = 60_000
"""The length of a day in milliseconds of event time."""
