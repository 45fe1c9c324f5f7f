"""The transcript: what the model has seen and said, in the order it will see it again.

Entries are values; a state holds a list of them and a rolling digest, so that one more entry costs the same on turn
200 as on turn 1. Every reply with calls is followed by one entry with exactly one result for each call, in call order:
that is the order rule of every model API, and `check_order` says so for any list.

Ids of calls on the wire to the model are minted from turn and position. The provider's own ids repeat, are empty or
too long often enough that nothing may hang on them.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from runfold.events.text import sanitised
from runfold.events.types import BlobRef, Item


@dataclass(slots=True, kw_only=True)
class UserMessage:
    """Something a person or program said: the task's input, or a message from the mailbox."""

    text: str = ""
    parts: str | None = None
    ref: BlobRef | None = None


@dataclass(slots=True, kw_only=True)
class Reply:
    """One reply of the model."""

    model_call: str
    turn: int
    items: list[Item]


@dataclass(slots=True, kw_only=True)
class Result:
    """What came of one call, as the model sees it."""

    position: int
    name: str
    output: str
    outcome: str


@dataclass(slots=True, kw_only=True)
class Results:
    """The results of one reply's calls, in call order."""

    model_call: str
    turn: int
    results: list[Result]


Entry = UserMessage | Reply | Results


def call_id(turn: int, position: int) -> str:
    """The id of a call on the wire to the model: unique in the run, the same after every restart."""
    return f"call_{turn}_{position}"


def text_of(items: Iterable[Item]) -> str:
    """The text of a reply, or its refusal."""
    return "".join(item.text for item in items if item.kind in ("text", "refusal"))


def calls_of(items: Iterable[Item]) -> list[Item]:
    return [item for item in items if item.kind == "call"]


def size_of(entry: Entry) -> int:
    """Characters of an entry, roughly what a tokenizer would see."""
    match entry:
        case UserMessage(text=text, parts=parts, ref=ref):
            return len(text) + len(parts or "") + (ref.size_bytes if ref else 0)
        case Reply(items=items):
            return sum(len(item.text) + len(item.name) + len(item.arguments) for item in items)
        case Results(results=results):
            return sum(len(result.output) for result in results)


def extended_digest(digest: str, entry: Entry) -> str:
    """The digest of a transcript with one more entry."""
    match entry:
        case UserMessage(text=text, parts=parts, ref=ref):
            line = f"{digest}\0user\0{text}\0{parts}\0{ref.sha256 if ref else ''}"
        case Reply(items=items):
            said = "\0".join(f"{i.kind}\1{i.text}\1{i.name}\1{i.arguments}\1{i.extra}" for i in items)
            line = f"{digest}\0reply\0{said}"
        case Results(results=results):
            line = f"{digest}\0results\0" + "\0".join(f"{r.position}\1{r.output}" for r in results)
    return hashlib.sha256(line.encode()).hexdigest()


def check_order(transcript: Sequence[Entry]) -> str | None:
    """What breaks the order rules of a history that may be sent to a model, or None."""
    for index, entry in enumerate(transcript):
        if isinstance(entry, Results):
            before = transcript[index - 1] if index else None
            if not isinstance(before, Reply) or before.model_call != entry.model_call:
                return f"entry {index}: results without their reply"
        if isinstance(entry, Reply):
            wanted = list(range(len(calls_of(entry.items))))
            after = transcript[index + 1] if index + 1 < len(transcript) else None
            given = [r.position for r in after.results] if isinstance(after, Results) else []
            if wanted != given:
                return f"entry {index}: calls {wanted}, results {given}"
    return None


@lru_cache(maxsize=512)  # each is asked three times in a row: by two folds and one decision
def parse_arguments(text: str) -> tuple[str, dict[str, Any] | None, str]:
    """A call's arguments as models write them: (JSON text to use, the object, what is wrong).

    Empty and null mean no arguments; a string that holds JSON is unwrapped once; anything but an object is refused.
    A problem gives `{}` as the text, which is what the history may repeat: servers parse it again.
    """
    try:
        value = _loads(text) if text.strip() else {}
        if isinstance(value, str):
            text = sanitised(value)  # what was escaped inside the JSON was not seen where the reply came in
            value = _loads(text) if text.strip() else {}
        if value is None or value == {}:
            return "{}", {}, ""
    except (ValueError, RecursionError) as error:
        return "{}", None, f"the arguments are not valid JSON: {error}"
    if not isinstance(value, dict):
        return "{}", None, f"the arguments must be a JSON object, not {type(value).__name__}"
    return text, value, ""


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_loads = json.JSONDecoder(parse_constant=_refused).decode
