"""Writes a transcript as Chat Completions messages, and tools as their definitions.

Pure, and the same transcript always gives the same bytes: prompt caches match prefixes. A payload that is not here yet
stands in its message as `Elsewhere`; `load_payloads` puts it in.

The order rules are those of every server, the strictest first: each call is answered exactly once, at once, in call
order; ids are unique in the request and minted by us; arguments are JSON objects; no content is empty. A history that
breaks one is refused by the server for ever, so `history_problem` is asked before each request.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from runfold.adapters.chat_values import cleaned
from runfold.core.transcript import Entry, Reply, Results, UserMessage, call_id, calls_of, parse_arguments, text_of
from runfold.events.text import decoded, sanitised
from runfold.events.types import BlobRef, Item, ToolSpec

NO_OUTPUT = "(no output)"
NO_TEXT = "(empty message)"
CALL_ID_CHARS_MAX = 64
NAME_CHARS_MAX = 64
ILLEGAL_IN_NAME = re.compile(r"[^a-zA-Z0-9_-]")
REASONING_TEXTS = ("reasoning_content", "reasoning")

Message = dict[str, Any]


@dataclass(slots=True, frozen=True)
class Elsewhere:
    """Content that is in the blob store."""

    ref: BlobRef
    is_parts: bool  # the event says so: a text may look like parts


@dataclass(slots=True, frozen=True, kw_only=True)
class HistoryStyle:
    """Where servers differ in what they accept."""

    null_content: bool = False  # of a reply with calls and no text: null (OpenAI), or "" (Ollama refuses null)
    instructions_role: Literal["system", "developer"] = "system"
    # DeepSeek wants reasoning back beside calls, and once refused it elsewhere.
    send_reasoning: Literal["always", "with_calls", "never"] = "with_calls"


def chat_messages(instructions: str, transcript: Sequence[Entry], style: HistoryStyle) -> list[Message]:
    """The messages of a request."""
    messages: list[Message] = []
    if instructions:
        messages.append({"role": style.instructions_role, "content": instructions})
    for entry in transcript:
        match entry:
            case UserMessage():
                messages.append({"role": "user", "content": _user_content(entry)})
            case Reply():
                messages.extend(_assistant(entry, style))
            case Results():
                messages.extend(_tool_messages(entry))
    return messages


def chat_tools(tools: Sequence[ToolSpec]) -> list[Message]:
    """The definitions of tools, in their order."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": json_value(tool.parameters)},
        }
        for tool in tools
    ]


@lru_cache(maxsize=1024)  # tools and schemas are the same in every request of an agent
def json_value(text: str) -> Any:
    """JSON text as a value that can be sent. Shared: not to be changed."""
    return cleaned(json.loads(text)) if text else {"type": "object", "properties": {}}


def unloaded(messages: Sequence[Message]) -> list[Message]:
    """The messages whose payload is still elsewhere."""
    return [message for message in messages if isinstance(message["content"], Elsewhere)]


def load_payloads(messages: Sequence[Message], load: Callable[[BlobRef], bytes]) -> None:
    """Put the payloads in. Raises what `load` raises."""
    for message in unloaded(messages):
        content: Elsewhere = message["content"]
        text = decoded(load(content.ref))
        message["content"] = (_parts(text) if content.is_parts else None) or text or NO_TEXT


def encoded(body: Message) -> bytes:
    """A request body. Raises ValueError for what no server would take: lone surrogates, NaN."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def history_problem(messages: Sequence[Message]) -> str | None:
    """What a strict server would refuse in these messages, or None."""
    seen: set[str] = set()
    open_ids: list[str] = []
    for number, message in enumerate(messages):
        problem = _content_problem(message) or _order_problem(message, number, open_ids)
        if problem is None and message["role"] == "assistant":
            open_ids = [call["id"] for call in message.get("tool_calls", ())]
            problem = _calls_problem(message, seen)
        if problem is not None:
            return f"message {number}: {problem}"
    return f"calls without a result: {open_ids}" if open_ids else None


def _user_content(entry: UserMessage) -> object:
    if entry.ref is not None:
        return Elsewhere(entry.ref, is_parts=entry.parts is not None)
    if entry.parts:
        return _parts(entry.parts) or entry.parts
    return entry.text or NO_TEXT


def _parts(text: str) -> list[Any] | None:
    """The text as content parts, if that is what it is."""
    if not text.lstrip().startswith("["):
        return None
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(parts, list) and parts and all(isinstance(p, dict) and isinstance(p.get("type"), str) for p in parts):
        return list(cleaned(parts))
    return None


def _assistant(reply: Reply, style: HistoryStyle) -> Iterator[Message]:
    """The reply as a message; nothing for one that said nothing."""
    text, calls = text_of(reply.items), calls_of(reply.items)
    if not text and not calls:
        return
    message: Message = {"role": "assistant", "content": None if not text and style.null_content else text}
    for item in reply.items:
        if item.kind == "reasoning":
            message |= _reasoning(item, style, has_calls=bool(calls))
    if calls:
        message["tool_calls"] = [_call(call, reply.turn, position) for position, call in enumerate(calls)]
    yield message


def _reasoning(item: Item, style: HistoryStyle, *, has_calls: bool) -> Message:
    """The fields that the provider wants back. Null stands for the item's text."""
    is_sent = style.send_reasoning == "always" or (style.send_reasoning == "with_calls" and has_calls)
    fields = _extra(item).items()
    return {k: item.text if v is None else v for k, v in fields if is_sent or k not in REASONING_TEXTS}


def _call(item: Item, turn: int, position: int) -> Message:
    arguments, _, _ = parse_arguments(item.arguments)
    # Models invent names that servers refuse in a history; a double-encoded text may hold half a surrogate pair.
    name = ILLEGAL_IN_NAME.sub("_", item.name)[:NAME_CHARS_MAX] or "unnamed"
    function = {"name": name, "arguments": sanitised(arguments)}
    return {**_extra(item), "id": call_id(turn, position), "type": "function", "function": function}


def _extra(item: Item) -> Message:
    value = json.loads(item.extra) if item.extra else {}
    return value if isinstance(value, dict) else {}


def _tool_messages(entry: Results) -> Iterator[Message]:
    for result in entry.results:
        id_ = call_id(entry.turn, result.position)
        yield {"role": "tool", "tool_call_id": id_, "content": result.output or NO_OUTPUT}


def _content_problem(message: Message) -> str | None:
    content, role = message["content"], message["role"]
    if role == "tool" and not isinstance(content, str):
        return "a result that is not text"
    if not content and not message.get("tool_calls"):
        return f"{role} message without content"
    return None


def _order_problem(message: Message, number: int, open_ids: list[str]) -> str | None:
    """Whether the message may stand here. A result closes its call."""
    if message["role"] == "tool":
        if not open_ids or open_ids[0] != message["tool_call_id"]:
            return f"result of {message['tool_call_id']}, where {open_ids[:1] or 'none'} should stand"
        del open_ids[0]
    elif open_ids:
        return f"{message['role']} message before the results of {open_ids}"
    elif message["role"] in ("system", "developer") and number:
        return "instructions that are not first"
    return None


def _calls_problem(message: Message, seen: set[str]) -> str | None:
    for call in message.get("tool_calls", ()):
        id_ = call["id"]
        if not id_ or len(id_) > CALL_ID_CHARS_MAX or id_ in seen:
            return f"call id {id_!r} is empty, too long or used before"
        seen.add(id_)
        try:
            is_object = isinstance(json.loads(call["function"]["arguments"]), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            return f"arguments of {id_} are not a JSON object"
    return None
