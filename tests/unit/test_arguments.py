"""Arguments against schemas: what a model is told, and that nothing it sends breaks more than its own call."""

import json
from typing import Any

import pytest

from runfold.adapters.arguments import OPEN, BadSchema, argument_problem, compiled
from runfold.events.types import ToolSpec

COUNT = {"type": "integer", "minimum": 1}
UNIT = {"enum": ["celsius", "fahrenheit"]}
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": UNIT,
        "days": {"anyOf": [COUNT, {"type": "null"}]},
        "stops": {"type": "array", "items": {"type": "object", "properties": {"n": COUNT}, "required": ["n"]}},
        "step": {"type": "number", "multipleOf": 0.5},
    },
    "required": ["city"],
    "additionalProperties": False,
}


def problem(schema: Any, arguments: dict[str, Any]) -> str | None:
    text = json.dumps(schema, separators=(",", ":"))
    return argument_problem(
        ToolSpec(name="t", description="", parameters=text, tool_class="inline", time_limit_ms=0, changes_state=False),
        arguments,
    )


@pytest.mark.requirement("R17")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "'city' is missing"),
        ({"city": 5}, "city must be string, and is 5"),
        (
            {"city": "Bonn", "town": 1, "land": 2},
            "'town', 'land' are not known; known: city, unit, days, stops, step",
        ),
        ({"city": "Bonn", "unit": "kelvin"}, "unit must be one of ['celsius', 'fahrenheit'], and is \"kelvin\""),
        (
            {"city": "Bonn", "days": 0},
            'days must fit {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}, and is 0',
        ),
        ({"city": "Bonn", "stops": [{"n": 1}, {"n": "x"}]}, 'stops[1].n must be integer, and is "x"'),
        ({"city": "Bonn", "stops": [{}]}, "'n' is missing in stops[0]"),
        ({"city": "Bonn", "stops": [{"n": 0}]}, "stops[0].n must be bigger than or equal to 1, and is 0"),
        ({"city": "Bonn", "step": json.loads("1e999")}, "a number in the arguments is too large"),
        ({"city": "Bonn", "step": 10**400}, "a number in the arguments is too large"),
    ],
)
def test_the_model_is_told_which_parameter_and_what_was_expected(arguments: dict[str, Any], words: str) -> None:
    """A message that the model can act on, without having seen the schema again."""
    assert problem(WEATHER, arguments) == words


def test_good_arguments_have_no_problem_and_stay_as_they_are() -> None:
    """The check fills in no defaults: the function's own hold."""
    arguments = {"city": "Bonn", "unit": "celsius", "days": None, "stops": [{"n": 1}], "step": 1.5}
    kept = json.dumps(arguments)
    defaulted = {**WEATHER, "properties": {**WEATHER["properties"], "more": {"default": 1}}}  # type: ignore[dict-item]
    assert problem(defaulted, arguments) is None
    assert json.dumps(arguments) == kept


def test_an_open_schema_takes_anything() -> None:
    """Tools that replay a recording have no schema of their own."""
    assert problem({"type": "object"}, {"what": ["ever"]}) is None
    assert json.dumps({"type": "object"}, separators=(",", ":")) == OPEN


@pytest.mark.requirement("R17")
def test_a_message_can_always_be_written() -> None:
    """Lone surrogates in names and values of the model's making cannot poison the record that carries the message."""
    half = json.loads('"\\ud800"')
    numbers = {"type": "object", "additionalProperties": {"type": "integer"}}
    for schema, arguments in ((WEATHER, {"city": "Bonn", half: half}), (numbers, {half: half})):
        told = problem(schema, arguments)
        assert told is not None
        told.encode()


@pytest.mark.requirement("R17")
def test_a_message_is_short_whatever_was_sent() -> None:
    """The value is shown as far as it helps."""
    told = problem(WEATHER, {"city": ["x" * 100_000]})
    assert told is not None
    assert len(told) < 400
    told = problem(WEATHER, {"city": "Bonn", "k" * 100_000: 1})
    assert told is not None
    assert told.endswith("known: city, unit, days, stops, step")


@pytest.mark.requirement("R17")
def test_nesting_beyond_the_stack_is_a_message() -> None:
    """A recursive schema walks the arguments: their depth is the model's choice."""
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"n": deep}
    recursive = {"type": "object", "properties": {"n": {"$ref": "#"}}}
    assert problem(recursive, deep) == "the arguments are nested too deeply"
    assert problem(WEATHER, {"city": deep}) == "the arguments are nested too deeply"
    while deep:  # taken apart level by level: freeing it in one go would need the stack again
        deep = deep.pop("n")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"type": "object", "properties": 5},
        {"properties": {"x": {"type": "string", "pattern": "("}}},
        {"properties": {"x": {"$ref": "#/$defs/missing"}}},
        {"properties": {"x": {"$ref": "http://127.0.0.1:1/x"}}},
        {"properties": {"x": {"$ref": "file:///etc/hostname"}}},
        {"required": 7},
        ["object"],
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_used_is_refused(schema: Any) -> None:
    """Said when it is compiled, without reading anything from anywhere."""
    with pytest.raises(BadSchema):
        compiled(json.dumps(schema))


def test_a_schema_is_compiled_once() -> None:
    """By its text: the same text is the same check."""
    text = json.dumps(WEATHER)
    assert compiled(text) is compiled(json.dumps(WEATHER))
