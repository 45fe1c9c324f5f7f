"""Every route of the gateway, in one table: the application serves it, and the OpenAPI document describes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from runfold.gateway import models

OPEN, BEARER, DISPATCH = "", "bearer", "dispatch"  # who may ask: anybody, the service's token, a dispatch's token
WAIT_S_MAX = 300.0
EVENT_STREAM = "text/event-stream"
REFUSALS = {
    401: "no token, or a wrong one", 404: "no such run", 409: "it changes nothing, and why", 413: "too large",
    415: "not application/json", 422: "what is wrong with the body", 503: "Kafka does not answer: ask again",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    place: str  # query or header
    schema: Mapping[str, Any]
    description: str


WAIT = Parameter(
    "wait", "query", {"type": "number", "minimum": 0, "maximum": WAIT_S_MAX}, "seconds to wait for the end of the run"
)
AFTER = Parameter("after", "query", {"type": "integer", "minimum": -1}, "only events behind this offset")
LAST_EVENT_ID = Parameter("Last-Event-ID", "header", {"type": "string"}, "as `after`; wins over it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    method: str
    path: str
    name: str  # of the handler
    summary: str
    answers: Mapping[int, type[BaseModel] | str | None]  # a text: a media type without a schema; None: no body
    body: type[BaseModel] | None = None
    auth: str = BEARER
    parameters: tuple[Parameter, ...] = ()
    refusals: tuple[int, ...] = field(default=(401, 404, 503))


def _command(name: str, body: type[models.CommandBody], summary: str) -> Route:
    return Route(
        method="POST",
        path=f"/runs/{{run_id}}/{name}",
        name=name,
        summary=summary,
        body=body,
        answers={200: models.Accepted},
        refusals=tuple(REFUSALS),
    )


def _get(path: str, name: str, summary: str, answers: Mapping[int, type[BaseModel] | str | None], **more: Any) -> Route:
    return Route(method="GET", path=path, name=name, summary=summary, answers=answers, **more)


ROUTES = (
    Route(
        method="POST",
        path="/tasks",
        name="submit",
        summary="Ask for a task to be done. The same id with the same body starts nothing new.",
        body=models.Task,
        answers={201: models.Submitted, 200: models.Submitted, 202: models.Submitted},
        parameters=(WAIT,),
        refusals=(401, 409, 413, 415, 422, 503),
    ),
    _get("/runs/{run_id}", "run", "How a run stands.", {200: models.Run}),
    _get(
        "/runs/{run_id}/result", "result", "The completion of a run; 202 if it goes on.",
        {200: models.Completion, 202: models.NotYet}, parameters=(WAIT,), refusals=(401, 404, 422, 503),
    ),
    _get("/runs/{run_id}/transcript", "transcript", "What was said and done, call and result in one row.", {200: models.Transcript}),
    _get(
        "/runs/{run_id}/events", "events",
        "Accepted events as they come, each with its offset as id; `text` and `output` for eyes only; ends with the run.",
        {200: EVENT_STREAM, 204: None}, parameters=(AFTER, LAST_EVENT_ID), refusals=(401, 404, 422, 503),
    ),
    _command("message", models.MessageBody, "Say something to a run; the model sees it at the next turn."),
    _command("answer", models.AnswerBody, "Answer a call that asks a person."),
    _command("approve", models.ApprovalBody, "Say yes to one call, exactly as it was shown."),
    _command("deny", models.ApprovalBody, "Say no to one call."),
    _command("cancel", models.CancelBody, "Stop a run at the next boundary."),
    _command("pause", models.CommandBody, "Let a run start nothing new."),
    _command("resume", models.CommandBody, "Let a paused run go on."),
    _command("close", models.CommandBody, "End an interactive run once it has answered what was said before."),
    Route(
        method="POST",
        path="/runs/{run_id}/calls/{dispatch}/report",
        name="report",
        summary="The outcome of a call of an external tool, by whoever has the dispatch's own token.",
        body=models.ReportBody,
        answers={200: models.Accepted},
        auth=DISPATCH,
        refusals=tuple(REFUSALS),
    ),
    _get(
        "/runs/{run_id}/calls/{dispatch}/token", "dispatch_token", "The token with which one dispatch may be reported.",
        {200: models.Token}, refusals=(401, 404, 409, 503),
    ),
    _get("/healthz", "healthz", "The process lives.", {200: models.Health}, auth=OPEN, refusals=()),
    _get("/readyz", "readyz", "The log was read to the end that was there at the start.", {200: models.Health, 503: models.Health}, auth=OPEN, refusals=()),
    _get("/openapi.json", "openapi", "This document.", {200: "application/json"}, auth=OPEN, refusals=()),
)  # fmt: skip
