"""The scripted model server in a process of its own, noting every request: `python -m tests.cases.recording_server`.

A line of the notes is one request: the run, the messages that were new since the run's last request, and what is wrong
with the whole history. That each history goes on from the one before is checked here, since histories are long.
"""

import argparse
import json
import socket
import sys
from pathlib import Path
from typing import Any, TextIO

import uvicorn

from runfold.dev.model_server import _config
from runfold.dev.script import Script, load_script
from runfold.dev.scripted_app import Received, ScriptedApp
from tests.cases.comparison import order_problem


class NotingApp(ScriptedApp):
    """Plays like its parent, and writes down what came."""

    def __init__(self, script: Script, notes: TextIO) -> None:
        super().__init__(script, last_only=True)
        self._notes = notes
        self._before: dict[str, list[Any]] = {}

    def _record(self, received: Received) -> None:
        super()._record(received)
        messages = received.body["messages"]
        before = self._before.get(received.run, [])
        problem = order_problem(messages)
        if messages[: len(before)] != before:
            problem = f"the history does not go on from the request before; {problem or 'it is in order'}"
        self._before[received.run] = messages
        note = {"run": received.run, "position": received.position, "new": messages[len(before) :], "problem": problem}
        self._notes.write(json.dumps(note) + "\n")
        self._notes.flush()


def main(arguments: list[str]) -> int:
    """Serve until terminated; the first line says where."""
    parser = argparse.ArgumentParser()
    parser.add_argument("script", type=Path)
    parser.add_argument("notes", type=Path)
    options = parser.parse_args(arguments)
    with options.notes.open("w", encoding="utf-8") as notes, socket.create_server(("127.0.0.1", 0)) as listener:
        app = NotingApp(load_script(options.script), notes)
        print(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", flush=True)
        uvicorn.Server(_config(app)).run([listener])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
