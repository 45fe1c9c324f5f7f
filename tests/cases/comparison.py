"""Compares what became of a replayed run with its recording. Imports nothing of Runfold: it may not share its mistakes.

Both sides are items as `recordings.py` describes them. Texts are compared to the byte, after the one change that is
documented: NUL and halves of surrogate pairs become U+FFFD. Arguments are compared as parsed JSON. An empty output is
sent to a model as a placeholder, since some servers refuse empty content.
"""

import json
from typing import Any

Item = dict[str, Any]
Message = dict[str, Any]

NO_OUTPUT = "(no output)"
CALL_ID_CHARS_MAX = 64
SHOWN_CHARS = 120


def clean(text: str) -> str:
    """The documented sanitising."""
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return joined.replace("\0", "\N{REPLACEMENT CHARACTER}")


def differences(recorded: list[Item], found: list[Item]) -> list[str]:
    """Where `found` is not the recording, item by item."""
    wanted, given = [_plain(item) for item in recorded], [_plain(item) for item in found]
    problems = [
        f"item {number}: recorded is {_shown(mine, yours)}, found was {_shown(yours, mine)}"
        for number, (mine, yours) in enumerate(zip(wanted, given, strict=False))
        if mine != yours
    ]
    if len(wanted) != len(given):
        problems.append(f"{len(wanted)} items are recorded, {len(given)} were found")
    return problems


def sent_differences(recorded: list[Item], messages: list[Message]) -> list[str]:
    """Where a history, as it was sent to the model, is not the beginning of the recording."""
    placed = [item | {"output": item["output"] or NO_OUTPUT} if item["role"] == "tool" else item for item in recorded]
    return differences(placed[: len(messages)], [_from_wire(message) for message in messages])


def order_problem(messages: list[Message]) -> str | None:
    """What a strict server would refuse in a history: each call answered once, at once, in call order; the rest alike."""
    ids: set[str] = set()
    waiting: list[str] = []
    for number, message in enumerate(messages):
        problem = _content_problem(message, number)
        if problem is None and message["role"] == "tool":
            if waiting[:1] != [message.get("tool_call_id")]:
                problem = f"result of {message.get('tool_call_id')!r}, waiting are {waiting}"
            waiting = waiting[1:]
        elif problem is None and waiting:
            problem = f"{message['role']} before the results of {waiting}"
        if problem is None and message.get("tool_calls"):
            problem = _call_problem(message["tool_calls"], ids)
            waiting = [call["id"] for call in message["tool_calls"]]
        if problem is not None:
            return f"message {number}: {problem}"
    return f"no results of {waiting}" if waiting else None


def _content_problem(message: Message, number: int) -> str | None:
    role, content = message["role"], message.get("content")
    if role not in ("system", "user", "assistant", "tool") or (role == "system" and number):
        return f"{role} may not stand here"
    if role == "assistant" and message.get("tool_calls"):
        return None if content is None or isinstance(content, str) else "content is not text"
    return None if isinstance(content, str) and content else f"{role} with content {content!r}"


def _call_problem(calls: list[dict[str, Any]], ids: set[str]) -> str | None:
    for call in calls:
        if not call["id"] or len(call["id"]) > CALL_ID_CHARS_MAX or call["id"] in ids:
            return f"call id {call['id']!r} is empty, too long or was there before"
        ids.add(call["id"])
        try:
            arguments = json.loads(call["function"]["arguments"])
        except (ValueError, TypeError):
            return f"arguments of {call['id']} are not JSON"
        if not isinstance(arguments, dict):
            return f"arguments of {call['id']} are not an object"
    return None


def _from_wire(message: Message) -> Item:
    if message["role"] == "tool":
        return {"role": "tool", "output": message["content"]}
    if message["role"] == "assistant":
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        return {"role": "assistant", "text": message["content"] or "", "calls": calls}
    return {"role": message["role"], "text": message["content"]}


def _plain(item: Item) -> tuple[Any, ...]:
    """What is compared of an item."""
    match item["role"]:
        case "tool":
            return ("tool", clean(item["output"]))
        case "assistant":
            calls = [(call["name"], _parsed(call["arguments"])) for call in item["calls"]]
            return ("assistant", clean(item["text"]), calls)
        case role:
            return (role, clean(item["text"]))


def _parsed(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return f"not JSON: {arguments}"


def _shown(plain: tuple[Any, ...], other: tuple[Any, ...]) -> str:
    """The role, and the text around the first place where they differ."""
    text, others = repr(plain), repr(other)
    differing = (at for at, (mine, yours) in enumerate(zip(text, others, strict=False)) if mine != yours)
    start = max(0, next(differing, len(others)) - SHOWN_CHARS // 2)
    return f"{plain[0]} …{text[start : start + SHOWN_CHARS]}… (of {len(text)} characters)"
