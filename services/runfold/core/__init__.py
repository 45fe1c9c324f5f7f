"""The rules of a run. Pure: no clock, no I/O, no logging, no randomness; imports `runfold.events` and nothing else of ours."""
