"""Puts a Chat Completions reply together: raw chunks, or one whole body, to items, finish reason and usage.

Pure, and trusts no shape: every field of every server may be missing, null, repeated or of another type. The package's
own accumulator is not used: it fails on recordings of four providers, and joins calls that are two. Complete means
that a finish reason was seen; the end of the body says nothing.

A reasoning item's `extra` holds the message's fields that the provider wants back. Null there means *the item's text*,
so that long reasoning stands in the log once.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from runfold.adapters.chat_values import contents, counts, extra_json, joined_details, string
from runfold.events.text import sanitised
from runfold.events.types import Item, Usage

REPLY_BYTES_MAX = 600 * 1024  # one reply is one record of at most 900 KiB; the rest is room for quotes and extras

REASONING_FIELDS = ("reasoning_content", "reasoning")  # the same text under two names: the first one that is there
MESSAGE_EXTRAS = ("reasoning_details", "thinking_blocks", "extra_content", "thought_signature", "reasoning_signature")
CALL_FIELDS = frozenset({"id", "index", "type", "function"})

FINISH_REASONS = {
    "stop": "stop", "end_turn": "stop", "tool_calls": "tool_calls", "function_call": "tool_calls",
    "tool_use": "tool_calls", "length": "length", "max_tokens": "length", "content_filter": "content_filter",
    "refusal": "refusal",
}  # fmt: skip
BROKEN_REASONS = frozenset({"error", "network_error"})  # OpenRouter, Z.AI: the server behind the server went away


class ProviderError(Exception):
    """The body holds an error where a reply should stand, whatever the HTTP status says."""

    def __init__(self, body: object) -> None:
        super().__init__("the provider sent an error in place of a reply")
        self.body = body


class IncompleteReply(Exception):
    """The reply ended before its finish reason."""


@dataclass(slots=True, kw_only=True)
class Assembled:
    """A whole reply."""

    items: list[Item]
    finish_reason: str
    usage: Usage | None
    model: str


@dataclass(slots=True)
class _Call:
    index: int | None
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def is_whole(self) -> bool:
        """Its arguments are a JSON object already: what follows belongs to another call."""
        text = "".join(self.arguments)
        try:
            return text.endswith("}") and isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            return False


class ChatAssembler:
    """One reply, as it comes. `feed` or `feed_whole`, then `reply`."""

    def __init__(self) -> None:
        self.is_finished = False
        self._finish = ""
        self._model = ""
        self._size = 0
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._reasoning: list[str] = []
        self._reasoning_field: str | None = None
        self._extras: dict[str, Any] = {}
        self._calls: list[_Call] = []
        self._usage: dict[str, int] = {}
        self._held = ""  # half a surrogate pair, held back from the text to show

    @property
    def has_content(self) -> bool:
        """Something of the reply has come."""
        return bool(self._size or self._calls)

    @property
    def chars(self) -> int:
        """How much of a reply has come."""
        return self._size

    @property
    def usage(self) -> Usage | None:
        """As far as the provider has said."""
        return Usage(**self._usage) if self._usage else None

    @property
    def is_too_large(self) -> bool:
        """More than a record can hold: whoever reads should stop. The reply counts as cut off."""
        return self._size > REPLY_BYTES_MAX

    def feed(self, chunk: object) -> str:
        """Take one streamed chunk. Answers the text to show: sanitised, so that the pieces join to the reply's text."""
        choice = self._choice(chunk)
        shown = self._take_message(choice.get("delta"), is_whole=False)
        self._take_finish(choice.get("finish_reason"))
        return shown

    def feed_whole(self, body: object) -> str:
        """Take a body that was not streamed."""
        choice = self._choice(body)
        if not choice:
            raise IncompleteReply("the body is not a chat completion")
        shown = self._take_message(choice.get("message"), is_whole=True)
        # The HTTP body was whole, so null is a careless server and not a cut.
        self._take_finish(choice.get("finish_reason") or "stop")
        return shown

    def reply(self) -> Assembled:
        """The reply. Raises IncompleteReply if no finish reason was seen."""
        if not self.is_finished and not self.is_too_large:
            raise IncompleteReply("the stream ended without a finish reason")
        if self._finish in BROKEN_REASONS:
            raise IncompleteReply(f"the provider broke off: {self._finish}")
        items = list(self._items())
        return Assembled(items=items, finish_reason=self._finish_reason(items), usage=self.usage, model=self._model)

    def _choice(self, body: object) -> dict[str, Any]:
        """The first choice; the fields beside the choices are taken on the way."""
        if not isinstance(body, dict):
            raise IncompleteReply(f"a {type(body).__name__} stands where an object should")
        _raise_error(body)
        if not self._model:
            self._model = sanitised(string(body.get("model")))
        choices = body.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        groq = body.get("x_groq")
        for usage in (choice.get("usage"), groq.get("usage") if isinstance(groq, dict) else None, body.get("usage")):
            self._usage.update(counts(usage))
        if choice.get("error"):
            raise ProviderError(choice["error"])
        return {} if choice.get("index") not in (0, None) else choice

    def _take_message(self, message: object, *, is_whole: bool) -> str:
        if not isinstance(message, dict):
            return ""
        text, thinking, refusal = contents(message.get("content"))
        refusal += string(message.get("refusal"))
        for name in REASONING_FIELDS:
            if said := string(message.get(name)):
                thinking += said
                self._reasoning_field = self._reasoning_field or name
                break
        self._keep(self._reasoning, thinking)
        for name in MESSAGE_EXTRAS:
            self._take_extra(name, message.get(name))
        calls = message.get("tool_calls")
        for delta in calls if isinstance(calls, list) else ():
            self._take_call(delta, is_whole=is_whole)
        if isinstance(message.get("function_call"), dict):  # the protocol before tools
            self._take_call({"index": 0, "function": message["function_call"]}, is_whole=is_whole)
        self._keep(self._text, text)
        self._keep(self._refusal, refusal)
        return self._to_show(text + refusal)

    def _take_finish(self, reason: object) -> None:
        if isinstance(reason, str) and reason and not self.is_finished:
            self.is_finished = True
            self._finish = reason

    def _take_extra(self, name: str, value: object) -> None:
        if value is None or value in ([], ""):
            return
        self._size += len(json.dumps(value))
        if isinstance(value, list):
            self._extras[name] = joined_details([*self._extras.get(name, []), *value])
        else:
            self._extras[name] = value

    def _take_call(self, delta: object, *, is_whole: bool) -> None:
        if not isinstance(delta, dict):
            return
        function = delta.get("function")
        function = function if isinstance(function, dict) else {}
        id_, name, arguments = string(delta.get("id")), string(function.get("name")), function.get("arguments")
        index = delta.get("index")
        index = index if isinstance(index, int) and not isinstance(index, bool) and not is_whole else None
        call = None if is_whole else self._call_of(index, id_, name)
        if call is None:
            if not id_ and not name and arguments in (None, ""):
                return
            call = _Call(index)
            self._calls.append(call)
        call.id = call.id or id_
        call.name = call.name or name
        if isinstance(arguments, dict | list):
            call.arguments = [json.dumps(arguments, ensure_ascii=False)]
            self._size += len(call.arguments[0])
        else:
            self._keep(call.arguments, string(arguments))
        for key, value in delta.items():
            if key not in CALL_FIELDS and value is not None:
                call.extra[key] = value

    def _call_of(self, index: int | None, id_: str, name: str) -> _Call | None:
        """The call that a delta goes on with; None if it begins another one."""
        if id_:
            known = [call for call in self._calls if call.id == id_ and (index is None or call.index == index)]
            if known:
                return known[-1]
        if index is not None:
            owners = [call for call in self._calls if call.index == index]
            return owners[-1] if owners and not (id_ and owners[-1].id) else None
        last = self._calls[-1] if self._calls else None
        if last is None or id_ or (name and (last.is_whole() or (last.name and last.name != name))):
            return None
        return last

    def _keep(self, pieces: list[str], piece: str) -> None:
        if piece:
            pieces.append(piece)
            self._size += len(piece) if piece.isascii() else len(piece.encode("utf-8", "surrogatepass"))

    def _to_show(self, piece: str) -> str:
        piece, self._held = self._held + piece, ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self._held = piece[:-1], piece[-1]
        return sanitised(piece)

    def _items(self) -> Iterator[Item]:
        thinking = sanitised("".join(self._reasoning))
        extras = dict(self._extras)
        if self._reasoning_field and thinking:
            extras[self._reasoning_field] = None
        if thinking or extras:
            yield Item(kind="reasoning", text=thinking, extra=extra_json(extras))
        if text := sanitised("".join(self._text)):
            yield Item(kind="text", text=text)
        if refusal := sanitised("".join(self._refusal)):
            yield Item(kind="refusal", text=refusal)
        for call in self._ordered_calls():
            arguments = sanitised("".join(call.arguments))
            name, id_ = sanitised(call.name), sanitised(call.id)
            yield Item(kind="call", name=name, arguments=arguments, provider_id=id_, extra=extra_json(call.extra))

    def _ordered_calls(self) -> list[_Call]:
        indexes = [call.index for call in self._calls if call.index is not None]
        if len(set(indexes)) < len(self._calls):
            return self._calls
        return sorted(self._calls, key=lambda call: call.index or 0)

    def _finish_reason(self, items: list[Item]) -> str:
        """In our words; what the reply holds counts more than what the server calls it."""
        kinds = {item.kind for item in items}
        reason = "length" if self.is_too_large else FINISH_REASONS.get(self._finish, "other")
        if reason in ("length", "content_filter"):
            return reason
        if "call" in kinds:
            return "tool_calls"
        if "refusal" in kinds:
            return "refusal"
        return "stop" if reason == "tool_calls" else reason


def _raise_error(body: dict[str, Any]) -> None:
    if body.get("error"):
        raise ProviderError(body["error"])
    is_error = body.get("object") == "error" or body.get("type") == "error"
    if is_error or (not body.get("choices") and ("message" in body or "detail" in body)):
        raise ProviderError(body)
