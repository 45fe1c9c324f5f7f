"""Checks a call's arguments against its tool's JSON Schema. The only user of fastjsonschema.

Each schema is compiled once; jsonschema, which interprets it at every call, took a hundred times as long (measured).
"""

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import fastjsonschema

from runfold.events.types import ToolSpec

OPEN = '{"type":"object"}'


class BadSchema(ValueError):
    """This schema cannot be used. Found when a tool is registered, not when it is called."""


@lru_cache(maxsize=1024)
def compiled(parameters: str) -> Callable[[Any], Any]:
    """The check for a schema (JSON text). Raises BadSchema."""
    try:
        schema = json.loads(parameters)
        if not isinstance(schema, dict):
            raise BadSchema("a schema is a JSON object")
        check: Callable[[Any], Any] = fastjsonschema.compile(schema, use_default=False)
    except (ValueError, TypeError, fastjsonschema.JsonSchemaDefinitionException) as error:
        raise BadSchema(str(error)) from error
    return check


def argument_problem(spec: ToolSpec, arguments: dict[str, Any]) -> str | None:
    """Why these arguments break the schema, in words a model can act on; None if they do not."""
    if spec.parameters == OPEN:
        return None
    try:
        compiled(spec.parameters)(arguments)
    except fastjsonschema.JsonSchemaValueException as error:
        return str(error.message).replace("data.", "", 1).replace("data ", "the arguments ", 1)
    return None
