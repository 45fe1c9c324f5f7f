"""Python functions that the tests run in processes of their own."""

import dataclasses
import enum
import os
import time
from typing import Any

from runfold.adapters.toolbox import ToolContext, tool


class Color(enum.StrEnum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int


@tool(tool_class="process", secrets=["A_SECRET"])
def shows(color: Color, number: int, context: ToolContext) -> dict[str, Any]:
    """Shows what it was given."""
    print("this is not the result")
    return {
        "color": type(color).__name__,
        "number": number,
        "call": [context.run_id, context.dispatch, context.attempt, context.idempotency_key],
        "secret": os.environ.get("A_SECRET"),
        "others": sorted(name for name in os.environ if not name.startswith("RUNFOLD_")),
        "pid": os.getpid(),
        "point": Point(1),
    }


@tool(tool_class="process")
def raises() -> None:
    """Raises."""
    raise LookupError("nothing of that name")


@tool(tool_class="process")
def vanishes() -> None:
    """Ends its process."""
    os._exit(0)


@tool(tool_class="process")
async def waits() -> str:
    """A coroutine."""
    return "waited"


@tool(tool_class="process")
def nothing() -> None:
    """Returns nothing."""


@tool(tool_class="process", time_limit_s=1)
def sleeps() -> str:
    """Runs until it is ended."""
    while True:
        time.sleep(1)


TOOLS = [shows, raises, vanishes, waits, nothing, sleeps]
