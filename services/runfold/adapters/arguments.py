"""Checks a call's arguments against its tool's JSON Schema. The only user of fastjsonschema.

Each schema is compiled once; jsonschema, which interprets it at every call, took a hundred times as long (measured).
The arguments come from a model and may be anything that JSON can say: whatever they do to the check is a message for
the model, never an exception. A message names the parameter, what it must be, and what it was.
"""

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import fastjsonschema
from fastjsonschema import JsonSchemaDefinitionException, JsonSchemaValueException

from runfold.core.limits import shortened
from runfold.events.text import sanitised
from runfold.events.types import ToolSpec

OPEN = '{"type":"object"}'
SHOWN_CHARS_MAX = 300  # of a value or a schema inside a message: enough to recognise it
# What fastjsonschema and what it generates raise for a schema that is not one.
UNUSABLE = (
    ValueError, TypeError, AttributeError, LookupError, SyntaxError, RecursionError, OverflowError, re.error,
    JsonSchemaDefinitionException,
)  # fmt: skip


class BadSchema(ValueError):
    """This schema cannot be used. Found when a tool is registered, not when it is called."""


def _stays_here(uri: str) -> Any:
    raise BadSchema(f"it refers to {uri!r}; a schema must stand on its own")


NO_FETCHING = dict.fromkeys(("http", "https", "ftp", "file"), _stays_here)  # the library would go and read them


@lru_cache(maxsize=1024)
def compiled(parameters: str) -> Callable[[Any], Any]:
    """The check for a schema (JSON text). Raises BadSchema."""
    try:
        schema = json.loads(parameters)
        if not isinstance(schema, dict):
            raise BadSchema("a schema is a JSON object")
        check: Callable[[Any], Any] = fastjsonschema.compile(schema, handlers=NO_FETCHING, use_default=False)
    except UNUSABLE as error:
        raise BadSchema(str(error)) from error
    return check


def argument_problem(spec: ToolSpec, arguments: dict[str, Any]) -> str | None:
    """Why these arguments break the schema, in words a model can act on; None if they do not."""
    if spec.parameters == OPEN:
        return None
    try:
        return _problem(compiled(spec.parameters), arguments)
    except RecursionError:
        return "the arguments are nested too deeply"
    except ArithmeticError:  # 1e999 is infinite for Python's JSON parser; multipleOf cannot divide it
        return "a number in the arguments is too large"


def _problem(check: Callable[[Any], Any], arguments: dict[str, Any]) -> str | None:
    try:
        check(arguments)
    except JsonSchemaValueException as error:
        return shortened(sanitised(_explained(error)))
    return None


def _explained(error: JsonSchemaValueException) -> str:
    name = error.name or "data"  # the library's name for the whole; a place in it is data.x[0]
    inside = name.removeprefix("data").removeprefix(".")
    where = inside or "the arguments"
    match error.rule:
        case "required":
            missing = [wanted for wanted in error.rule_definition if wanted not in error.value]
            return f"{_listed(missing)} missing{f' in {inside}' if inside else ''}"
        case "additionalProperties" if error.rule_definition is False:
            known = error.definition.get("properties", {})
            unknown = [given for given in error.value if given not in known]
            return (
                f"{_listed(unknown)} not known{f' in {inside}' if inside else ''}; known: {', '.join(known) or 'none'}"
            )
        case "anyOf" | "oneOf" | "allOf" | "not" | "const":
            return f"{where} must fit {_shown({error.rule: error.rule_definition})}, and is {_shown(error.value)}"
        case _:
            return f"{where}{error.message.removeprefix(name)}, and is {_shown(error.value)}"


def _listed(names: list[str]) -> str:
    return f"{shortened(', '.join(map(repr, names)), SHOWN_CHARS_MAX)} {'is' if len(names) == 1 else 'are'}"


def _shown(value: Any) -> str:
    return shortened(json.dumps(value), SHOWN_CHARS_MAX)
