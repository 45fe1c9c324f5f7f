"""The program that runs one tool call: standard library only, so that it works in any image with a Python."""
