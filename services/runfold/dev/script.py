"""The script of a model that plays: plain data, checked, and turned into what a Chat Completions server would send.

A script maps a scenario's name to its replies, in order:

    {"greeting": [{"calls": [{"name": "lookup", "arguments": {"id": 7}}]}, {"text": "Hello"}]}

A reply is made of `text`, `calls`, `reasoning`, or it repeats a recording: `chunks` (the data lines of a stream),
`chunks_file`, `sse` (a whole event stream) or `body` (with `status`). A `fault` spoils the first `times` attempts;
`until_file` holds every attempt back until somebody makes that file.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator

TEXT_CHUNK_CHARS = 32
CHARS_PER_TOKEN = 4


class ScriptError(Exception):
    """The script cannot be played. The message says where and why."""


class Part(BaseModel, frozen=True, extra="forbid"):
    """A piece of a script: a misspelt field is an error, not a surprise in a test."""


class ScriptedCall(Part, frozen=True, extra="forbid"):
    name: str
    arguments: str | dict[str, Any] = "{}"  # text is sent as it stands, also when it is no JSON
    id: str | None = None  # minted from the position if not given

    @property
    def arguments_text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments, ensure_ascii=False)


class Fault(Part, frozen=True, extra="forbid"):
    """What goes wrong, in the first `times` attempts at a reply; null means in every one."""

    times: int | None = Field(default=1, ge=1)
    status: int | None = Field(default=None, ge=400, le=599)
    retry_after: float | str | None = None
    headers: dict[str, str] = {}
    error: str | dict[str, Any] | None = None  # body of the error; one that fits the status if not given
    cut_after_chunks: int | None = Field(default=None, ge=0)  # the connection goes away in the middle of the body
    cut_after_bytes: int | None = Field(default=None, ge=0)
    no_finish: bool = False  # a clean end without finish reason and [DONE]
    trickle_ms: int | None = Field(default=None, ge=0)  # pause before every chunk
    bad_chunk: bool = False  # a data line that is not JSON, after the first chunk
    error_chunk: bool | str | dict[str, Any] = False  # an error inside a stream with status 200
    empty: bool = False  # status 200, no body
    blank: bool = False  # a whole reply that says nothing: neither text nor calls
    as_json: bool = False  # a stream was asked for, and a whole JSON body is sent


class ScriptedReply(Part, frozen=True, extra="forbid"):
    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    reasoning: str = ""
    refusal: str = ""
    finish: str | None = None  # stop or tool_calls, whichever fits, if not given
    usage: dict[str, Any] | None = None  # characters / 4 if not given
    delay_ms: int = Field(default=0, ge=0)
    until_file: Path | None = None  # nothing is sent before it exists
    fault: Fault | None = None
    chunks: tuple[str, ...] = ()
    chunks_file: Path | None = None
    send_done: bool = True  # end a stream with [DONE]
    sse: str | None = None
    body: Any = None
    status: int = 200

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        made = self.text or self.calls or self.reasoning or self.refusal
        recorded = [kind for kind in (self.chunks, self.chunks_file, self.sse, self.body) if kind]
        if len(recorded) > 1 or (made and recorded):
            raise ValueError("a reply is either made (text, calls, reasoning, refusal) or one recording")
        return self

    @property
    def finish_reason(self) -> str:
        return self.finish or ("tool_calls" if self.calls else "stop")


Script = Mapping[str, tuple[ScriptedReply, ...]]
SCRIPT: TypeAdapter[dict[str, tuple[ScriptedReply, ...]]] = TypeAdapter(dict[str, tuple[ScriptedReply, ...]])


def parse_script(data: object) -> Script:
    """A script from plain data. Raises ScriptError."""
    try:
        return SCRIPT.validate_python(data)
    except ValidationError as error:
        places = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False)]
        raise ScriptError("the script is malformed: " + "; ".join(places)) from error


def load_script(path: Path) -> Script:
    """A script from a JSON file; its `chunks_file` paths are relative to it. Raises ScriptError."""
    try:
        script = parse_script(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise ScriptError(f"{path}: {error}") from error
    return {
        name: tuple(
            reply.model_copy(update={"chunks_file": path.parent / reply.chunks_file}) if reply.chunks_file else reply
            for reply in replies
        )
        for name, replies in script.items()
    }


# ---- what goes over the wire


def events_of(reply: ScriptedReply, envelope: Mapping[str, Any], usage: Mapping[str, Any] | None) -> list[str]:
    """The data lines of a streamed reply. `envelope` holds id, model and created."""
    if reply.chunks_file is not None:
        return reply.chunks_file.read_text().splitlines()
    if reply.chunks:
        return list(reply.chunks)
    chunk = {**envelope, "object": "chat.completion.chunk"}
    lines = [_line({**chunk, "choices": [_choice(delta, None)]}) for delta in _deltas(reply)]
    lines.append(_line({**chunk, "choices": [_choice({}, reply.finish_reason)]}))
    if usage is not None:
        lines.append(_line({**chunk, "choices": [], "usage": usage}))
    return lines


def body_of(reply: ScriptedReply, envelope: Mapping[str, Any], usage: Mapping[str, Any]) -> str:
    """The body of a reply that is not streamed."""
    if reply.body is not None:
        return reply.body if isinstance(reply.body, str) else _line(reply.body)
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.refusal:
        message["refusal"] = reply.refusal
    if reply.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_text}}
            for call in reply.calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason}
    return _line({**envelope, "object": "chat.completion", "choices": [choice], "usage": usage})


def usage_of(request: Mapping[str, Any], reply: ScriptedReply) -> Mapping[str, Any]:
    """Tokens as a provider would count them: told by the script, or guessed from the characters."""
    if reply.usage is not None:
        return reply.usage
    sent = sum(_chars(message) for message in request.get("messages", ()))
    said = len(reply.text) + len(reply.reasoning) + sum(len(c.name) + len(c.arguments_text) for c in reply.calls)
    prompt, completion = sent // CHARS_PER_TOKEN, said // CHARS_PER_TOKEN
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def with_ids(reply: ScriptedReply, position: int) -> ScriptedReply:
    """The reply with an id for every call."""
    if all(call.id is not None for call in reply.calls):
        return reply
    calls = [
        call if call.id is not None else call.model_copy(update={"id": f"call_{position}_{number}"})
        for number, call in enumerate(reply.calls)
    ]
    return reply.model_copy(update={"calls": tuple(calls)})


def _deltas(reply: ScriptedReply) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for piece in _pieces(reply.reasoning):
        yield {"reasoning_content": piece}
    for piece in _pieces(reply.text):
        yield {"content": piece}
    for piece in _pieces(reply.refusal):
        yield {"refusal": piece}
    for index, call in enumerate(reply.calls):
        function = {"name": call.name, "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]}
        for piece in _pieces(call.arguments_text):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), TEXT_CHUNK_CHARS):
        yield text[start : start + TEXT_CHUNK_CHARS]


def _choice(delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish}


def _line(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _chars(message: Mapping[str, Any]) -> int:
    content = message.get("content") or ""
    size = len(content) if isinstance(content, str) else len(_line(content))
    calls = message.get("tool_calls") or ()
    return size + sum(len(call["function"]["arguments"]) + len(call["function"]["name"]) for call in calls)
