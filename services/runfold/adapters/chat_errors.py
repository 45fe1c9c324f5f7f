"""Says what a failed model call was: what kind of failure, and whether the same call may be made again.

Pure, except that an HTTP date in Retry-After is compared with the wall clock. The kinds:

- `rate_limited`, `transient`, `broken_stream`, `timed_out`: the world may recover, so the attempt may be repeated.
- `malformed_call`: the server could not parse the call that its model made; asking again may help.
- `no_money`, `context_exhausted`, `bad_request`, `refused`, `auth`, `not_found`: the same request fails again.
- `stopped`: nobody waits for it any more.

Providers disagree about status, code, type and text, so each sign is looked for in all of them, the sharpest first.
"""

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum

from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError

from runfold.adapters.chat_assembler import IncompleteReply, ProviderError
from runfold.events.text import sanitised
from runfold.ports import Transient

MESSAGE_CHARS_MAX = 2_000

RETRYABLE = frozenset({"rate_limited", "transient", "broken_stream", "timed_out", "malformed_call"})

TOO_LONG = (
    "context_length_exceeded", "exceed_context_size_error", "maximum context length", "context window",
    "context length", "prompt is too long", "input is too long", "exceeds the available context size",
    "maximum prompt length", "reduce the length of the messages", "input token count", "string_above_max_length",
)  # fmt: skip
NO_MONEY = ("insufficient_quota", "credit_balance", "credit balance", "billing_hard_limit", "insufficient balance")
MALFORMED_CALL = ("tool_use_failed", "failed to parse tool call", "failed_generation")
REFUSED = ("content_filter", "content_policy", "responsibleaipolicy", "content management policy")
RATE_LIMITED = ("rate_limit", "slow_down", "server_is_overloaded", "too_many_requests", "resource_exhausted")
NOT_FOUND = ("model_not_found", "not_found_error", "deploymentnotfound")
AUTH = ("invalid_api_key", "authentication_error", "permission_error", "permission_denied")
BAD_REQUEST = ("invalid_request", "invalid_argument", "badrequest", "bad_request")

STATUS = re.compile(r"[45][0-9]{2}")
WAIT_IN_TEXT = re.compile(r"(?:try again|retry) in (?:(\d+)m(?!s))?\s*(?:(\d+(?:\.\d+)?)\s*(ms|s))?")


class Stage(Enum):
    """How far an attempt had come."""

    PREPARING = "preparing"
    SENT = "sent"
    READING = "reading"


@dataclass(slots=True, kw_only=True)
class Failure:
    """What went wrong with one attempt."""

    kind: str
    message: str
    retryable: bool
    retry_after_ms: int | None = None
    status: int | None = None
    request_id: str | None = None


def failure_of(error: BaseException, stage: Stage) -> Failure:
    """The failure behind an exception, and behind the stage in which it came."""
    match error:
        case asyncio.CancelledError():
            return _failure("stopped", "the call was stopped")
        case TimeoutError():
            return _failure("timed_out", "the reply was not whole within the time limit of the attempt")
        case APITimeoutError():
            return _failure("timed_out", "the provider sent nothing for too long")
        case APIStatusError(status_code=status, body=body, response=response):
            return failure_of_body(body, status=status, headers=response.headers, fallback=str(error))
        case APIConnectionError():
            cause = error.__cause__ or error
            kind, what = ("broken_stream", "the reply was cut") if stage is Stage.READING else ("transient", "no reply")
            return _failure(kind, f"{what}: {type(cause).__name__}: {cause}")
        case APIError(body=body):
            return failure_of_body(body, fallback=str(error))
        case ProviderError(body=body):
            return failure_of_body(body, fallback=str(error))
        case IncompleteReply():
            return _failure("broken_stream", str(error))
        case Transient():
            return _failure("transient", str(error))
    if stage is Stage.PREPARING:
        return _failure("bad_request", f"the request cannot be sent: {type(error).__name__}: {error}")
    return _failure("broken_stream", f"the reply cannot be read: {type(error).__name__}: {error}")


def failure_of_body(
    body: object, *, status: int | None = None, headers: Mapping[str, str] | None = None, fallback: str = ""
) -> Failure:
    """The failure that an error body tells of: with its HTTP status, or in the middle of a stream without one."""
    error = body.get("error", body) if isinstance(body, dict) else body
    fields = error if isinstance(error, dict) else {"message": error if isinstance(error, str) else ""}
    status = _status(status, fields)
    kind = _kind(status, _signs(fields))
    headers = headers or {}
    message = _message(fields, fallback)
    retry_after_ms = _retry_after_ms(headers, message) if kind in RETRYABLE else None
    failure = _failure(kind, message, status=status, retry_after_ms=retry_after_ms)
    failure.request_id = headers.get("x-request-id")
    if headers.get("x-should-retry") == "false":  # OpenAI's servers know better than their status codes
        failure.retryable = False
    return failure


def _failure(kind: str, message: str, *, status: int | None = None, retry_after_ms: int | None = None) -> Failure:
    return Failure(
        kind=kind,
        message=sanitised(message)[:MESSAGE_CHARS_MAX],
        retryable=kind in RETRYABLE,
        retry_after_ms=retry_after_ms,
        status=status,
    )


def _status(status: int | None, fields: Mapping[str, object]) -> int | None:
    """The HTTP status; with 200 or in a stream, the one that the body holds."""
    if status is not None and status >= 400:
        return status
    for name in ("code", "status_code", "status"):
        value = str(fields.get(name))
        if STATUS.fullmatch(value):
            return int(value)
    return None


def _signs(fields: Mapping[str, object]) -> str:
    """Everything in an error that may say what it is, as one text to search."""
    inner = fields.get("innererror")
    values = [fields.get(name) for name in ("code", "type", "status", "message", "detail")]
    values.append(inner.get("code") if isinstance(inner, dict) else "")
    values.append("failed_generation" if fields.get("failed_generation") is not None else "")
    return " ".join(str(value) for value in values if value).lower()


def _kind(status: int | None, signs: str) -> str:
    def has(words: tuple[str, ...]) -> bool:
        return any(word in signs for word in words)

    if status == 402 or has(NO_MONEY):
        return "no_money"
    if status == 429:  # before the texts: "tokens per minute" errors talk about length, too
        return "rate_limited"
    if has(MALFORMED_CALL):
        return "malformed_call"
    if status == 413 or has(TOO_LONG):
        return "context_exhausted"
    if has(REFUSED) and status in (None, 400, 403, 422):
        return "refused"
    if has(RATE_LIMITED) and (status is None or status >= 500):
        return "rate_limited"
    return _kind_of_status(status) or _kind_of_code(has(NOT_FOUND), has(AUTH), has(BAD_REQUEST))


def _kind_of_status(status: int | None) -> str | None:
    if status is None:
        return None
    if status in (401, 403):
        return "auth"
    if status == 404:
        return "not_found"
    return "transient" if status in (408, 409) or status >= 500 else "bad_request"


def _kind_of_code(is_not_found: bool, is_auth: bool, is_bad_request: bool) -> str:
    """An error in the middle of a stream: no status, at best a telling code."""
    if is_not_found:
        return "not_found"
    if is_auth:
        return "auth"
    return "bad_request" if is_bad_request else "transient"


def _message(fields: Mapping[str, object], fallback: str) -> str:
    texts = [fields.get("message"), fields.get("detail"), fallback]
    text = next((str(text) for text in texts if text), "the provider gave no reason")
    param = fields.get("param")
    return f"{text} (parameter: {param})" if isinstance(param, str) and param else text


def _retry_after_ms(headers: Mapping[str, str], message: str) -> int | None:
    """What the provider asked for: a header in milliseconds, seconds or as a date, or words in the message."""
    for name, factor in (("retry-after-ms", 1), ("retry-after", 1000)):
        value = headers.get(name, "")
        try:
            wait_ms = float(value) * factor
        except ValueError:
            wait_ms = _until_ms(value) if name == "retry-after" else 0
        if 0 < wait_ms < 2**40:
            return int(wait_ms)
    found = WAIT_IN_TEXT.search(message)
    if found is None:
        return None
    minutes, number, unit = found.groups()
    wait_ms = int(minutes or 0) * 60_000 + float(number or 0) * (1 if unit == "ms" else 1000)
    return int(wait_ms) if 0 < wait_ms < 2**40 else None


def _until_ms(date: str) -> float:
    try:
        return parsedate_to_datetime(date).timestamp() * 1000 - time.time() * 1000
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0
