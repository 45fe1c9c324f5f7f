"""Hosts one Python function that is a tool: arguments on standard input, its result on descriptor 3.

Run by its path in a process of its own, with the interpreter and the import path of the executor:
`python -I -B function.py package.module:function '["import", "path"]'`. What the function prints is not its result.
The answer begins with = for a result, with ! for an error: without either, the function was cut short.
"""

import asyncio
import dataclasses
import importlib
import inspect
import json
import os
import sys
from typing import Any, NoReturn

ANSWER = 3


def main(target: str, paths: list[str]) -> NoReturn:
    sys.path[:] = dict.fromkeys([*paths, *sys.path])
    os.set_inheritable(ANSWER, False)
    try:
        said, status = f"={as_text(call(target, sys.stdin.read()))}", 0
    except BaseException as error:  # noqa: BLE001  whatever a tool raises, SystemExit too, is its outcome
        words = str(error)
        said, status = f"!{type(error).__name__}: {words}" if words else f"!{type(error).__name__}", 1
    with open(ANSWER, "wb") as answer:
        answer.write(said.encode("utf-8", "surrogatepass"))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)  # threads it left do not keep the call open


def call(target: str, arguments: str) -> Any:
    """`run_alone` is what a tool of the toolbox offers: it knows the parameters' types, and gives the context."""
    module, _, name = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if hasattr(found, "run_alone"):
        return found.run_alone(arguments, os.environ)
    result = found(**json.loads(arguments))
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def as_text(value: Any) -> str:
    """The result as the model reads it."""
    match value:
        case None:
            return ""
        case str():
            return str.__str__(value)
        case bytes():
            return value.decode("utf-8", "replace")
        case _:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_jsonable)


def _jsonable(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, set | frozenset):
        return list(value)
    return str(value) if not hasattr(value, "isoformat") else value.isoformat()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
