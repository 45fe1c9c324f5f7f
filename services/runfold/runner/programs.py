"""What a tool's process becomes: a command, the host of a Python function, or one of the built-in tools."""

import errno
import json
import os
from collections.abc import Callable
from typing import NoReturn

from runfold.runner import files
from runfold.runner.contract import Plan
from runfold.runner.launch import CannotStart

FUNCTION_HOST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "function.py")
SUFFIXES = {"python": ".py", "bash": ".sh", "javascript": ".js"}


def program(plan: Plan) -> Callable[[], int]:
    """Called in the tool's own process, when everything else is done."""
    name = plan.target[0]
    match plan.kind:
        case "command":
            return lambda: _execute(plan.target)
        case "function":
            paths = json.dumps(plan.python_path)
            return lambda: _execute([plan.python, "-I", "-B", FUNCTION_HOST, name, paths])
        case _:
            return lambda: _built_in(name, json.loads(plan.arguments), plan.python)


def needed(plan: Plan) -> tuple[str, ...]:
    """What must be readable for it, beside what is on every system."""
    match plan.kind:
        case "command":
            return tuple(each for each in plan.target if each.startswith("/"))
        case "function":
            return (plan.python, FUNCTION_HOST, *plan.python_path)
        case _:
            return ()


def _execute(command: list[str]) -> NoReturn:
    try:
        os.execve(_found(command[0]), command, os.environ)
    except OSError as error:
        raise CannotStart(command[0], error) from error


def _found(name: str) -> str:
    """Where a command is; folders on the path that this user may not enter hold nothing for it."""
    if "/" in name:
        return name
    for folder in os.environ.get("PATH", "").split(":"):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _built_in(name: str, arguments: dict[str, str], python: str) -> int:
    if name != "execute_code":
        return files.run(name, arguments)
    language = arguments["language"]
    path = os.path.join(os.environ["TMPDIR"], f"code{SUFFIXES[language]}")
    with open(path, "w", encoding="utf-8", errors="replace") as file:
        file.write(arguments["code"])
    os.environ.update(PYTHONPATH=os.getcwd(), NODE_PATH=os.getcwd())  # what write_file wrote can be imported
    command = {"python": [python, "-u", "-B"], "bash": ["bash"], "javascript": ["node"]}[language]
    _execute([*command, path])
