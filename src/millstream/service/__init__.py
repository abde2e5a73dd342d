"""Who keeps state that can be asked? The state service: partitions, two planes, and the live state of a pipeline."""
