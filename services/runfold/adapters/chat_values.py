"""Reads the values of Chat Completions bodies, whatever shape a server gave them. Knows nothing of replies or calls.

Pure. What is not of the expected type counts as absent: a strange field must never cost the reply around it.
"""

import json
from typing import Any

from runfold.events.text import sanitised


def string(value: object) -> str:
    """The value if it is text, else nothing."""
    return value if isinstance(value, str) else ""


def contents(content: object) -> tuple[str, str, str]:
    """Content as a text or as parts: (text, reasoning, refusal)."""
    if isinstance(content, str):
        return content, "", ""
    text, thinking, refusal = "", "", ""
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            text += part
        elif isinstance(part, dict):
            thinking += contents(part.get("thinking"))[0]
            text += string(part.get("text"))
            refusal += string(part.get("refusal"))
    return text, thinking, refusal


def joined_details(details: list[Any]) -> list[Any]:
    """Neighbours that are pieces of one entry (OpenRouter streams them so), joined."""
    joined: list[Any] = []
    for detail in details:
        last = joined[-1] if joined else None
        if isinstance(detail, dict) and isinstance(last, dict) and "index" in detail and _place(detail) == _place(last):
            texts = {k: string(last.get(k)) + detail[k] for k in ("text", "summary", "data") if string(detail.get(k))}
            joined[-1] = last | {k: v for k, v in detail.items() if v is not None} | texts
        else:
            joined.append(detail)
    return joined


def _place(detail: dict[str, Any]) -> tuple[object, object]:
    return detail.get("type"), detail.get("index")


def counts(usage: object) -> dict[str, int]:
    """The token counts that a usage object really holds."""
    if not isinstance(usage, dict):
        return {}
    prompt, completion = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    prompt, completion = [d if isinstance(d, dict) else {} for d in (prompt, completion)]
    cached = (prompt.get("cached_tokens"), usage.get("prompt_cache_hit_tokens"), usage.get("cached_tokens"))
    said = {
        "input_tokens": usage.get("prompt_tokens"),
        "output_tokens": usage.get("completion_tokens"),
        "total_tokens": usage.get("total_tokens"),
        "cached_tokens": next((c for c in cached if c is not None), None),
        "reasoning_tokens": completion.get("reasoning_tokens"),
    }
    return {name: count for name, value in said.items() if (count := _count(value)) is not None}


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        count = int(value)
    except (ValueError, OverflowError):
        return None
    return count if 0 <= count < 2**53 else None


def extra_json(extra: dict[str, Any]) -> str | None:
    """What `Item.extra` holds."""
    return json.dumps(cleaned(extra), ensure_ascii=False, separators=(",", ":")) if extra else None


def cleaned(value: Any) -> Any:
    """JSON without what later readers refuse: lone surrogates, NUL, NaN and infinities."""
    match value:
        case str():
            return sanitised(value)
        case list():
            return [cleaned(entry) for entry in value]
        case dict():
            return {sanitised(key): cleaned(entry) for key, entry in value.items()}
        case float() if value - value != 0:
            return None
    return value
