"""The executor: a stateless process that carries the runs of the partitions it owns. `loop.py` is the place to begin."""
