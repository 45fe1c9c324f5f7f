"""How scenarios write what their model says."""

import json
from typing import Any

DONE = {"text": "done"}


def call(name: str, id: str | None = None, /, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments} | ({} if id is None else {"id": id})


def calls(*made: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"calls": list(made), **more}


def raw(*made: dict[str, Any], stream: bool) -> dict[str, Any]:
    """Calls as a careless server sends them: each is what stands in `tool_calls`, to the letter."""
    if not stream:
        message = {"role": "assistant", "content": None, "tool_calls": list(made)}
        return {"body": {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}}
    deltas = [{"tool_calls": [{"index": index, **each}]} for index, each in enumerate(made)]
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    return {"chunks": [json.dumps(chunk) for chunk in chunks]}


def function(name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}
