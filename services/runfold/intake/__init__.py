"""Intake: requests of programs become the first facts of runs. `loop.py` is the place to begin."""
