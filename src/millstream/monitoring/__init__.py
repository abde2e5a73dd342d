"""What do people and programs see of a pipeline from outside? A page, metrics, traces, a log record per epoch.

    history                        the last minutes: points in time, and bars of epochs
    graph_data, page_data          what the page shows, as data: pure
    observer                       looks at a run in this process, or at a checkpoint
    browsing, web_server           rows that somebody looks for; the server of the page, whose files are in static/
    prometheus                     metrics
    addresses                      where page and metrics listen
    epoch_feed                     each epoch, for a histogram, traces and logs

Nothing here is on the path of an epoch: the engine notes its figures (`engine/metrics.py`), and whoever is here looks at them, at most once a second.
"""

from millstream.monitoring.epoch_feed import JsonFormatter

__all__ = ["JsonFormatter"]
