"""Tools whose executors are killed under them. Each waits for a file, so that no test waits for a time."""

from tests.contracts.process_worlds import command

# Ends when somebody makes the file `go`, in the workspace; leaves a line for each time it ran.
WAITS = 'echo ran >> ran; echo begun; until [ -e go ]; do sleep 0.05; done; rm go; echo "$1"'
TOOLS = [
    command("waits", "sh", "-c", WAITS, "waits", "done", workspace=True),
    command("quick", "sh", "-c", "echo ran >> ran; echo quick", workspace=True),
]
