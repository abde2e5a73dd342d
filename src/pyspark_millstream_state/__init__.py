"""Spark looks through modules whose names begin with `pyspark_` for data sources: this one gives it `spark.read.format("millstream-state")`."""

from millstream.engine.spark.state_format import StateDataSource as DefaultSource

__all__ = ["DefaultSource"]
