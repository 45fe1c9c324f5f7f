"""What each route does, by its name in the table."""

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import unquote

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from runfold.core.limits import INLINE_BYTES_MAX
from runfold.events.types import (
    PARTS_ELSEWHERE,
    ApprovalDecided,
    BlobRef,
    CancelRequested,
    CloseRequested,
    MessageReceived,
    PauseRequested,
    QuestionAnswered,
    ResumeRequested,
    ToolReported,
)
from runfold.gateway.act import act
from runfold.gateway.bodies import body_of
from runfold.gateway.commands import Command
from runfold.gateway.gateway import Gateway, in_thread
from runfold.gateway.models import (
    AnswerBody,
    ApprovalBody,
    CancelBody,
    CommandBody,
    Health,
    MessageBody,
    ReportBody,
    Task,
    Token,
    Transcript,
)
from runfold.gateway.openapi import document
from runfold.gateway.problems import Refused, unknown_run
from runfold.gateway.results import result
from runfold.gateway.routes import EVENT_STREAM, WAIT_S_MAX
from runfold.gateway.sse import open_stream
from runfold.gateway.story import Story
from runfold.gateway.submit import json_text, submit
from runfold.gateway.tokens import dispatch_token
from runfold.gateway.tracked import Place
from runfold.gateway.views import run_view
from runfold.intake.requests import traceparent_of

SOURCE = "external"
OFFSET_MAX = (1 << 63) - 1


def answer(model: BaseModel, status: int = 200) -> Response:
    return Response(model.model_dump_json(), status, media_type="application/json")


def run_id_of(request: Request) -> str:
    """Paths are routed as they came, so that an id may hold a slash."""
    return unquote(request.path_params["run_id"])


# ---- tasks and runs


async def _submit(gateway: Gateway, request: Request) -> Response:
    task = await body_of(request, Task)
    traceparent = traceparent_of([("traceparent", request.headers.get("traceparent", "").encode("latin-1"))])
    try:
        status, submitted = await submit(gateway, task, _wait_s(request), traceparent)
    except RecursionError as error:
        raise Refused(422, "the task is nested too deeply") from error
    return answer(submitted, status)


async def _run(gateway: Gateway, request: Request) -> Response:
    return answer(await gateway.look(run_id_of(request), run_view))


async def _result(gateway: Gateway, request: Request) -> Response:
    status, found = await result(gateway, run_id_of(request), _wait_s(request) or 0)
    return answer(found, status)


async def _transcript(gateway: Gateway, request: Request) -> Response:
    run_id = run_id_of(request)
    await gateway.look(run_id, lambda tracked, _: tracked.run_id)
    return answer(await in_thread(partial(_told, gateway, run_id)))


def _told(gateway: Gateway, run_id: str) -> Transcript:
    found = gateway.reading.story(run_id)
    if found is None:
        raise unknown_run(run_id)
    span, position = found
    story: Story | None = None
    for tracked, record, taken in gateway.reading.refold(run_id, span):
        story = story or Story(tracked)
        story.take(record, taken)
    if story is None:
        raise unknown_run(run_id)
    return story.transcript(position)


async def _events(gateway: Gateway, request: Request) -> Response:
    text = request.headers.get("last-event-id") or request.query_params.get("after") or "-1"
    after = int(text) if text.removeprefix("-").isdecimal() and len(text) < 20 else None
    if after is None or not -1 <= after <= OFFSET_MAX:
        raise Refused(422, "Last-Event-ID and after are offsets: the id of the last event that was seen")
    stream = await open_stream(gateway, run_id_of(request), after)
    if stream is None:
        return Response(status_code=204)  # a browser does not come back for more
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(stream, media_type=EVENT_STREAM, headers=headers)


def _wait_s(request: Request) -> float | None:
    text = request.query_params.get("wait")
    if text is None:
        return None
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = math.nan
    if not 0 <= wait_s <= WAIT_S_MAX:
        raise Refused(422, f"wait is {text!r}: give seconds, at most {WAIT_S_MAX:g}")
    return wait_s


# ---- commands

Handler = Callable[[Gateway, Request], Awaitable[Response]]


def _command(model: type[Any], made: Callable[[Any, dict[str, str]], Command]) -> Handler:
    """A handler that makes a fact of its body: `made` gets the body, and what every command has."""

    async def handle(gateway: Gateway, request: Request) -> Response:
        body: CommandBody = await body_of(request, model)
        command_id = body.command_id or gateway.new_id()
        event = made(body, {"command_id": command_id, "sender": body.sender})
        return answer(await act(gateway, run_id_of(request), event, command_id))

    return handle


async def _message(gateway: Gateway, request: Request) -> Response:
    body = await body_of(request, MessageBody)
    if (body.parts is None) == (not body.text.strip()):
        raise Refused(422, "give text or parts: exactly one of the two")
    if body.parts is not None and not all(isinstance(part.get("type"), str) for part in body.parts):
        raise Refused(422, "parts must be objects, each with a type")
    command_id = body.command_id or gateway.new_id()
    parts = json_text(body.parts)
    ref = await _put_away(gateway, body.text if parts is None else parts)
    event = MessageReceived(
        command_id=command_id,
        text=body.text if ref is None else "",
        parts=parts if ref is None or parts is None else PARTS_ELSEWHERE,
        ref=ref,
        sender=body.sender,
    )
    return answer(await act(gateway, run_id_of(request), event, command_id))


async def _put_away(gateway: Gateway, text: str) -> BlobRef | None:
    """The ticket of a content that is too large for an event; stored before anything mentions it."""
    payload = text.encode()
    if len(payload) <= INLINE_BYTES_MAX:
        return None
    try:
        return await in_thread(lambda: gateway.blobs.put(payload))
    except OSError as error:
        raise Refused(503, f"the content could not be stored: {error}", headers={"Retry-After": "5"}) from error


def _approval(body: ApprovalBody, common: dict[str, str], *, approved: bool) -> ApprovalDecided:
    return ApprovalDecided(
        approval=body.approval,
        arguments_sha256=body.arguments_sha256,
        approved=approved,
        reason=body.reason,
        **common,
    )


def _question(body: AnswerBody, common: dict[str, str]) -> QuestionAnswered:
    if len(body.text.encode()) > INLINE_BYTES_MAX:
        raise Refused(413, f"an answer has at most {INLINE_BYTES_MAX:,} bytes")
    return QuestionAnswered(model_call=body.model_call, position=body.position, text=body.text, **common)


def _cancel(body: CancelBody, common: dict[str, str]) -> CancelRequested:
    return CancelRequested(reason=body.reason, **common)


# ---- external tools


async def _report(gateway: Gateway, request: Request) -> Response:
    run_id, dispatch = run_id_of(request), unquote(request.path_params["dispatch"])
    body = await body_of(request, ReportBody)
    place = await _place_of(gateway, run_id, dispatch)
    ref = await _put_away(gateway, body.output)
    event = ToolReported(
        model_call=place[0],
        position=place[1],
        dispatch=dispatch,
        source=SOURCE,
        outcome=body.outcome,
        output=gateway.shorten(body.output, INLINE_BYTES_MAX),
        output_ref=ref,
        output_bytes=len(body.output.encode()),
        exit_code=body.exit_code,
        duration_ms=body.duration_ms,
    )
    return answer(await act(gateway, run_id, event, dispatch))


async def _dispatch_token(gateway: Gateway, request: Request) -> Response:
    run_id, dispatch = run_id_of(request), unquote(request.path_params["dispatch"])
    if not gateway.secret:
        raise Refused(503, "this gateway signs no tokens: set RUNFOLD_DISPATCH_SECRET")
    place = await _place_of(gateway, run_id, dispatch)
    call = await gateway.look(run_id, lambda tracked, _: (tracked.call_at(*place),))
    if call[0] is None or call[0].outcome:
        raise Refused(409, "the call is closed: there is nothing to report")
    return answer(Token(dispatch=dispatch, token=dispatch_token(gateway.secret, run_id, dispatch)))


async def _place_of(gateway: Gateway, run_id: str, dispatch: str) -> Place:
    """Of the call of an external tool, by its dispatch."""
    place = await gateway.look(run_id, lambda tracked, _: (tracked.external.get(dispatch),))
    if place[0] is None:
        await gateway.catch_up(run_id)
        place = await gateway.look(run_id, lambda tracked, _: (tracked.external.get(dispatch),))
    if place[0] is None:
        raise Refused(404, f"this run has no dispatch {dispatch!r} of an external tool")
    return place[0]


# ---- the service itself


def _health(gateway: Gateway, status: str, detail: str) -> Health:
    reading = gateway.reading
    return Health(
        status=status,
        detail=detail,
        runs_active=len(reading.active),
        runs_ended=len(reading.ended),
        records_skipped=reading.records_skipped,
    )


async def _healthz(gateway: Gateway, request: Request) -> Response:
    return answer(_health(gateway, "ok", ""))


async def _readyz(gateway: Gateway, request: Request) -> Response:
    if gateway.reading.is_ready():
        return answer(_health(gateway, "ready", ""))
    return answer(_health(gateway, "not ready", "the log is still being read"), 503)


async def _openapi(gateway: Gateway, request: Request) -> Response:
    text = json_text(document(gateway.version))
    return Response(text, media_type="application/json")


HANDLERS: dict[str, Handler] = {
    "submit": _submit,
    "run": _run,
    "result": _result,
    "transcript": _transcript,
    "events": _events,
    "message": _message,
    "answer": _command(AnswerBody, _question),
    "approve": _command(ApprovalBody, partial(_approval, approved=True)),
    "deny": _command(ApprovalBody, partial(_approval, approved=False)),
    "cancel": _command(CancelBody, _cancel),
    "pause": _command(CommandBody, lambda body, common: PauseRequested(**common)),
    "resume": _command(CommandBody, lambda body, common: ResumeRequested(**common)),
    "close": _command(CommandBody, lambda body, common: CloseRequested(**common)),
    "report": _report,
    "dispatch_token": _dispatch_token,
    "healthz": _healthz,
    "readyz": _readyz,
    "openapi": _openapi,
}
