"""A request's body: bounded, JSON, of the right shape, and safe for every reader after us. Raises Refused."""

import json
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from runfold.events.text import sanitised_tree
from runfold.gateway.problems import Refused

BODY_BYTES_MAX = 8 * 1024 * 1024  # a task of 4 MiB, escaped as JSON escapes
DRAINED_BYTES_MAX = 8 * BODY_BYTES_MAX
B = TypeVar("B", bound=BaseModel)


async def body_of(request: Request, model: type[B]) -> B:
    payload = await _read(request)
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":  # which no page of another site can send without being asked first
        raise Refused(415, f"send application/json, not {media or 'a body without a content-type'}")
    try:
        found = json.loads(payload or b"{}", parse_constant=_refused)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError, and integers of thousands of digits, too
        raise Refused(400, f"the body is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise Refused(422, "the body must be a JSON object")
    try:
        return model.model_validate(sanitised_tree(found))
    except ValidationError as error:
        raise Refused(422, _said(error)) from error
    except RecursionError as error:
        raise Refused(422, "the body is nested too deeply") from error


async def _read(request: Request) -> bytes:
    """The body. One that is too large is read to its end and thrown away: who is still sending hears no answer."""
    declared = request.headers.get("content-length", "0")
    too_large = Refused(413, f"a body has at most {BODY_BYTES_MAX:,} bytes")
    if declared.isdecimal() and int(declared) > DRAINED_BYTES_MAX:
        raise too_large
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > DRAINED_BYTES_MAX:
                raise too_large
            if size > BODY_BYTES_MAX:
                pieces.clear()
            else:
                pieces.append(piece)
    except ClientDisconnect as error:
        raise Refused(400, "the body ended before it was whole") from error
    if size > BODY_BYTES_MAX:
        raise too_large
    return b"".join(pieces)


def _refused(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def _said(error: ValidationError) -> str:
    """Fields and what is wrong with them, without what was sent."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(": ".join(filter(None, (".".join(map(str, p["loc"])), p["msg"]))) for p in problems[:5])
