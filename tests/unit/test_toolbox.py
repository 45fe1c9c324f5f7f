"""Tools from Python functions: what the model is shown, what the function gets, what is refused at the start."""

import enum
import json
import warnings
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from runfold.adapters import sandbox_tools
from runfold.adapters.arguments import argument_problem
from runfold.adapters.toolbox import Tool, Toolbox, ToolContext, tool
from runfold.ports import Permanent


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


class Place(BaseModel):
    name: str
    since: date | None = None


class Size(TypedDict):
    wide: int


@tool(changes_state=True, idempotent=True, time_limit_s=2.5)
def book(
    place: Place,
    points: list[Point],
    color: Color,
    size: Size,
    speed: Literal["slow", "fast"],
    context: ToolContext,
    price: Annotated[float, Field(description="in euros", ge=0)] = 10.0,
    note: Annotated[str | None, "shown to the guest"] = None,
) -> str:
    """Book a place."""
    return context.run_id


ARGUMENTS: dict[str, Any] = {
    "place": {"name": "Bonn", "since": "2020-01-31"},
    "points": [{"x": 1}],
    "color": "red",
    "size": {"wide": 2},
    "speed": "slow",
}


@pytest.mark.requirement("R18")
def test_the_model_gets_a_schema_of_every_hint() -> None:
    """Models, dataclasses, enums, typed dicts, choices, unions and defaults; the context is not the model's business."""
    properties = book.parameters["properties"]
    assert list(properties) == ["place", "points", "color", "size", "speed", "price", "note"]
    assert book.parameters["required"] == ["place", "points", "color", "size", "speed"]
    assert book.parameters["additionalProperties"] is False
    assert properties["price"] == {"type": "number", "description": "in euros", "minimum": 0, "default": 10.0}
    assert properties["note"]["description"] == "shown to the guest"
    assert properties["note"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert properties["speed"]["enum"] == ["slow", "fast"]
    assert book.parameters["$defs"]["Color"]["enum"] == ["red", "blue"]
    assert book.parameters["$defs"]["Point"]["required"] == ["x"]


@pytest.mark.requirement("R18")
def test_a_tool_says_all_that_a_run_must_know() -> None:
    """Name, description, class, time limit, whether it changes state, whether it may be started again."""
    spec = book.spec()
    assert (spec.name, spec.description, spec.tool_class) == ("book", "Book a place.", "inline")
    assert (spec.time_limit_ms, spec.changes_state, spec.idempotent) == (2_500, True, True)
    assert json.loads(spec.parameters) == book.parameters


@pytest.mark.requirement("R18")
def test_the_order_of_tools_never_changes() -> None:
    """Prompt caches depend on it."""
    boxes = (
        Toolbox([tool(name="b")(len_of), tool(name="a")(len_of)]),
        Toolbox([tool(name="a")(len_of), tool(name="b")(len_of)]),
    )
    assert [[spec.name for spec in box.specs()] for box in boxes] == [["a", "b"]] * 2
    assert boxes[0].specs() == boxes[1].specs()


def len_of(text: str) -> int:
    """Characters of a text."""
    return len(text)


def test_the_schema_accepts_what_the_function_accepts() -> None:
    """One and the same contract, said to the model and kept for the function."""
    assert argument_problem(book.spec(), ARGUMENTS) is None
    assert argument_problem(book.spec(), {**ARGUMENTS, "color": "green"}) == (
        "color must be one of ['red', 'blue'], and is \"green\""
    )
    assert argument_problem(book.spec(), {**ARGUMENTS, "price": -1}) == (
        "price must be bigger than or equal to 0, and is -1"
    )


def test_arguments_become_what_the_hints_say() -> None:
    """Parameters that were not given are left to the function's own defaults."""
    read = book.read(json.dumps(ARGUMENTS))
    assert read == {
        "place": Place(name="Bonn", since=date(2020, 1, 31)),
        "points": [Point(1)],
        "color": Color.RED,
        "size": {"wide": 2},
        "speed": "slow",
    }


def test_plain_arguments_become_the_numbers_that_the_hints_say() -> None:
    """JSON Schema counts 3.0 as an integer, and JSON has no floats of its own."""

    @tool
    def measure(n: int, x: float, on: bool, tags: list[str], more: dict[str, Any] | None = None) -> str:
        """Measure."""
        return ""

    read = measure.read('{"n": 3.0, "x": 2, "on": true, "tags": ["a"]}')
    assert [type(value) for value in read.values()] == [int, float, bool, list]
    assert measure.read('{"n": 3.5}') == {"n": 3.5}  # not silently another number


def test_what_does_not_fit_is_said_in_one_line() -> None:
    """A tool may have been deployed anew since the run was given its schema."""
    with pytest.raises(ValueError, match=r"^the arguments do not fit: place\.name: Field required; points: .*$"):
        book.read(json.dumps({**ARGUMENTS, "place": {}, "points": 1}))


def test_parameters_may_be_called_as_they_like() -> None:
    """Neither the methods of pydantic's models nor Python's reserved words are in the way."""

    @tool
    def odd(
        schema: str,
        json: Point,
        model_config: int,
        copy: str,
        _hidden: str,
        title: str,
        from_: Annotated[str, Field(alias="from")],
    ) -> None:
        """Odd."""

    given = {"schema": "s", "json": {"x": 1}, "model_config": 1, "copy": "c", "_hidden": "h", "title": "t", "from": "f"}
    assert set(odd.parameters["properties"]) == set(given)
    assert odd.read(json.dumps(given)) == {
        "schema": "s", "json": Point(1), "model_config": 1, "copy": "c", "_hidden": "h", "title": "t", "from_": "f",
    }  # fmt: skip


def test_defaults_that_json_cannot_say_are_no_trouble() -> None:
    """They are the function's business."""

    @tool
    def weigh(x: Decimal = Decimal("1.5"), things: Any = object) -> str:
        """Weigh."""
        return str(x)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert weigh.parameters["properties"]["things"] == {}
    assert weigh.read('{"x": "2.50"}') == {"x": Decimal("2.50")}


def test_a_tool_is_still_a_function() -> None:
    """Called by other Python code, and by the tests of those who wrote it."""
    assert tool(len_of)("four") == 4


def test_a_tool_may_bring_its_own_schema() -> None:
    """As replayed recordings do: the function gets the arguments as one dict."""
    replay = Tool(
        name="replay", description="", parameters={"type": "object"}, function=lambda given: given, takes_dict=True
    )
    assert Toolbox([replay]).specs()[0].parameters == '{"type":"object"}'


def test_making_a_tool_registers_nothing() -> None:
    """Nothing works by being imported."""
    assert Toolbox([]).specs() == []


@pytest.mark.parametrize("name", ["", "two words", "x" * 65, "line\n", "ü", "a.b"])
def test_a_name_that_model_apis_refuse_is_refused(name: str) -> None:
    """At the start, not by the model's server in the middle of a run."""
    with pytest.raises(Permanent, match="a name has 1 to 64 letters"):
        Toolbox([Tool(name=name, description="", parameters={"type": "object"}, function=len_of)])


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({}, '"type": "object"'),
        ({"type": "array"}, '"type": "object"'),
        ({"type": "object", "properties": {"x": {"type": "nonsense"}}}, "cannot be used: Unknown type"),
        ({"type": "object", "properties": {"x": {"enum": {1}}}}, "cannot be used"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(parameters: dict[str, Any], words: str) -> None:
    """When the toolbox is built, not when the tool is called."""
    with pytest.raises(Permanent, match=words):
        Toolbox([Tool(name="t", description="", parameters=parameters, function=len_of)])


def test_two_tools_of_one_name_are_refused() -> None:
    """Which one would run?"""
    with pytest.raises(Permanent, match="'len_of' is there twice"):
        Toolbox([tool(len_of), tool(len_of)])


@pytest.mark.parametrize("time_limit_s", [-1, float("inf"), float("nan")])
def test_a_time_limit_is_a_number_of_seconds(time_limit_s: float) -> None:
    """There is no word for ever."""
    with pytest.raises(Permanent, match="time_limit_s"):
        Toolbox([tool(time_limit_s=time_limit_s)(len_of)])


def unhinted(x): ...  # type: ignore[no-untyped-def]
def starred(*x: str) -> None: ...
def keyed(**x: str) -> None: ...
def positional(x: str, /) -> None: ...
def unknown(x: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def lasting(x: memoryview) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (unhinted, "'unhinted': parameter 'x' needs a type hint"),
        (starred, "'starred': .*cannot be given by name"),
        (keyed, "'keyed': .*cannot be given by name"),
        (positional, "'positional': .*cannot be given by name"),
        (unknown, "'unknown': a type hint cannot be found: .*Nowhere"),
        (lasting, "'lasting': no JSON Schema can be made of its type hints"),
        (5, "a tool is a function, not 5"),
        (Place, "a tool is a function"),
    ],
    ids=str,
)
def test_a_function_that_cannot_be_a_tool_is_refused(function: Any, words: str) -> None:
    """With the name of the function and of what is wrong with it."""
    with pytest.raises(Permanent, match=words):
        tool(function)


def test_a_coroutine_function_cannot_be_immediate() -> None:
    """It waits for something, and the executor's thread must not."""

    async def fetch(url: str) -> str:
        return url

    assert tool(fetch)(url="here") == "here"
    with pytest.raises(Permanent, match="cannot be immediate"):
        tool(immediate=True)(fetch)


@pytest.mark.requirement("R23")
def test_nothing_is_repeated_that_the_host_cannot_contain() -> None:
    """Where sandboxed tools see the network, a repetition could do again what should be done once."""
    assert {spec.workspace for spec in Toolbox(sandbox_tools.TOOLS).specs()} == {True}
    assert {spec.workspace for spec in Toolbox(sandbox_tools.TOOLS, is_contained=False).specs()} == {False}
