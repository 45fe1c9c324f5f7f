"""The command `runfold`."""
