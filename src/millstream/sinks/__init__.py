"""Where do records go? Into sinks, in two phases.

    base       the contract: who calls what, and how often
    files      files of a directory
    published  what is complete of them, for readers
    epoch_sink the base of sinks that write an epoch and a marker in one transaction of their target
    epochs     a function per epoch, or memory
    kafka      a topic of Kafka
    postgres   a table of PostgreSQL
    copy_text  what its COPY reads
    delta      a table of Delta Lake
    iceberg    a table of Apache Iceberg
    lake       what those two have in common
    row_columns  rows as the columns of a table
    two_phase  programs that speak the connector's protocol, over TCP
    service    tables of the state service

Contract of a sink
- `stage(context, rows)` runs in a task, before the commit, any number of times (retries, zombies). It makes the rows durable under a
  name of its own and returns a `Part`, which goes into the manifest. What no manifest names is never seen.
- `prepare(context, epoch, parts)` runs on the driver before the manifest, once all tasks are done: the last moment to say no.
- `commit(context, epoch, parts)` runs on the driver after the manifest, at least once, in order of epochs. It must be idempotent.
- `sweep(context, before_epoch, keep)` runs now and then: leftovers of attempts that were never committed may go.
- A part that names an object in `staged` has it kept by `sweep`; with `in_checkpoint`, by the checkpoint's collection. What only the sink understands
  stands in `own`.

A row of a sink is key, timestamp and value, and id where the stream is emitted with `ids=True`. Rows of one key stand in the order in which they were produced.
"""

from millstream.sinks.base import DriverContext, IdentifiedRow, Part, Sink, SinkRow, TaskContext
from millstream.sinks.delta import DeltaSink, delta
from millstream.sinks.epoch_sink import EpochRows, EpochSink, SinkWriter
from millstream.sinks.epochs import EachEpoch, MemorySink, each_epoch, memory
from millstream.sinks.files import FileSink, files
from millstream.sinks.iceberg import IcebergSink, iceberg
from millstream.sinks.kafka import KafkaSink, kafka
from millstream.sinks.postgres import PostgresSink, postgres
from millstream.sinks.service import ServiceSink, service
from millstream.sinks.two_phase import TwoPhaseSink, connector

__all__ = [
    "DeltaSink",
    "DriverContext",
    "EachEpoch",
    "EpochRows",
    "EpochSink",
    "FileSink",
    "IcebergSink",
    "IdentifiedRow",
    "KafkaSink",
    "MemorySink",
    "Part",
    "PostgresSink",
    "ServiceSink",
    "Sink",
    "SinkRow",
    "SinkWriter",
    "TaskContext",
    "TwoPhaseSink",
    "connector",
    "delta",
    "each_epoch",
    "files",
    "iceberg",
    "kafka",
    "memory",
    "postgres",
    "service",
]
