"""Where do records come from? Descriptions of sources, which are read when a run starts.

    base                      the contract: who calls what, and how often
    files                     files of a directory
    rate                      numbered rows, for trying things
    data_source               Python data sources of PySpark's
    pushed, pushed_reading    messages that other programs push over TCP: the source, and its reader
    kafka, kafka_reading      topics of Kafka: the source with its plans, and how tasks read
    postgres, pgoutput, postgres_stream, postgres_values
                              a table of PostgreSQL with its changes: the source with its plans, messages, the connection, and columns
    splits                    the contract of sources whose epochs Millstream plans itself
    schema                    columns that can be told without Spark, and those that a pipeline names
    filereading/              how the file source is read without Spark

Nothing here knows an epoch. Any streaming DataFrame, or a function that makes one of the session, may stand in the place of a source.
"""

from millstream.sources.base import FrameSource, SessionSource, Source
from millstream.sources.data_source import PythonSource, data_source
from millstream.sources.files import FileSource, files
from millstream.sources.kafka import KafkaSource, kafka
from millstream.sources.postgres import PostgresSource, postgres
from millstream.sources.pushed import PushedSource, connector
from millstream.sources.rate import Rate, rate
from millstream.sources.splits import PlannedReader, SplitPlan

__all__ = [
    "FileSource",
    "FrameSource",
    "KafkaSource",
    "PlannedReader",
    "PostgresSource",
    "PushedSource",
    "PythonSource",
    "Rate",
    "SessionSource",
    "Source",
    "SplitPlan",
    "connector",
    "data_source",
    "files",
    "kafka",
    "postgres",
    "rate",
]
