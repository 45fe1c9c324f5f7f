"""The OpenAPI 3.1 document, made of the table of routes and the types of bodies and answers."""

import re
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from runfold.gateway.models import Problem
from runfold.gateway.problems import MEDIA
from runfold.gateway.routes import BEARER, DISPATCH, OPEN, REFUSALS, ROUTES, Parameter, Route

Mode = Literal["validation", "serialization"]
REF = "#/components/schemas/{model}"
SCHEMES = {
    BEARER: {"type": "http", "scheme": "bearer", "description": "RUNFOLD_GATEWAY_TOKEN"},
    DISPATCH: {"type": "http", "scheme": "bearer", "description": "of GET /runs/{run_id}/calls/{dispatch}/token"},
}
MEANINGS = {200: "done", 201: "begun", 202: "not yet", 204: "nothing more will come", 503: "not ready"}


def document(version: str) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Runfold gateway", "version": version},
        "paths": paths,
        "components": {"schemas": _schemas(), "securitySchemes": SCHEMES},
    }


def _schemas() -> dict[str, Any]:
    """Bodies as they are read, answers as they are written."""
    bodies = dict.fromkeys(route.body for route in ROUTES if route.body is not None)
    given = [answer for route in ROUTES for answer in route.answers.values()]
    answers = dict.fromkeys(answer for answer in [*given, Problem] if isinstance(answer, type))
    wanted: list[tuple[type[BaseModel], Mode]] = [(body, "validation") for body in bodies]
    wanted += [(each, "serialization") for each in answers]
    _, found = models_json_schema(wanted, ref_template=REF)
    schemas: dict[str, Any] = found["$defs"]
    return schemas


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in _names(route.path)
            ),
            *map(_parameter, route.parameters),
        ],
        "responses": {
            **{str(status): _problem(status) for status in route.refusals},
            **{str(status): _answer(status, answer) for status, answer in route.answers.items()},
        },
        "security": [] if route.auth == OPEN else [{route.auth: []}],
    }
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(route.body)}}}
    return operation


def _names(path: str) -> list[str]:
    return re.findall(r"{(\w+)}", path)


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": False,
        "schema": dict(parameter.schema),
        "description": parameter.description,
    }


def _answer(status: int, answer: type[BaseModel] | str | None) -> dict[str, Any]:
    said: dict[str, Any] = {"description": MEANINGS[status]}
    if isinstance(answer, str):
        said["content"] = {answer: {}}
    elif answer is not None:
        said["content"] = {"application/json": {"schema": _ref(answer)}}
    return said


def _problem(status: int) -> dict[str, Any]:
    return {"description": REFUSALS[status], "content": {MEDIA: {"schema": _ref(Problem)}}}


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": REF.format(model=model.__name__)}
