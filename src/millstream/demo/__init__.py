"""Zeitgeist: spikes and dips in search traffic, MillWheel's own example, on made-up traffic with known anomalies.

    traffic     the generator: queries out of order, with spikes and dips injected at known times
    model       one term's model: predicts the next bucket, judges it, learns from it
    zeitgeist   the computations and the pipeline
    report      what was found against what was injected: precision, recall, delay
    picture     actual and predicted traffic of some terms, with both kinds of marks
    run         all of it, from nothing to the picture

A day runs in a minute here, so that ten days of traffic pass in ten minutes of event time. Generator and model know that much of
the world in common, and no more.
"""

BUCKET = 1_000
"""The length of a bucket in milliseconds of event time."""

DAY = 60_000
"""The length of a day in milliseconds of event time."""
