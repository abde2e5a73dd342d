"""Spark looks through modules whose names begin with `pyspark_` for data sources: this one gives it `format("millstream")`."""

from millstream.engine.spark.published_format import PublishedDataSource as DefaultSource

__all__ = ["DefaultSource"]
