"""Tools for which nothing runs: the run itself waits, for a person, a time, or a task of its own.

They need no process that could die: the wait is in the log, and whoever owns the run ends it. Name them in
RUNFOLD_TOOLS as `runfold.adapters.waiting_tools:TOOLS`, or one by one.
"""

from typing import Any

from runfold.adapters.toolbox import Tool

WAIT_S_MAX = 3_600  # what takes longer is a task of its own, with a time to begin


def _tool(name: str, waits_for: str, description: str, required: dict[str, Any], **optional: Any) -> Tool:
    parameters = {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }
    return Tool(
        name=name,
        description=description,
        parameters=parameters,
        function=_never,
        takes_dict=True,
        waits_for=waits_for,
    )


def _never(arguments: dict[str, Any]) -> str:
    """Nothing runs for these tools."""
    raise NotImplementedError("a tool that waits is not called: the run waits")


ask_person = _tool(
    "ask_person",
    "person",
    "Ask a person a question and wait for the answer. Use it when you cannot go on without knowing.",
    {"question": {"type": "string", "minLength": 1, "description": "what you want to know, with all that is needed"}},
)
wait = _tool(
    "wait",
    "time",
    "Wait for some time, for instance until something outside has happened.",
    {"seconds": {"type": "number", "minimum": 0, "maximum": WAIT_S_MAX}},
)
delegate = _tool(
    "delegate",
    "child",
    "Give a task to another agent and wait for its answer. It sees nothing of this conversation.",
    {"task": {"type": "string", "minLength": 1, "description": "the whole task, with everything it needs to know"}},
    agent={"type": "string", "description": "name of the agent; left out: the same as yours"},
)
TOOLS = [ask_person, wait, delegate]
