"""What runs a pipeline: `local` in one process under a hand-moved clock, `spark` in Spark's tasks. Both run the same step."""
