"""What application engineers write: Python functions as tools.

    @tool
    def weather(city: Annotated[str, Field(description="name of the city")]) -> str:
        "The weather in a city."

`tool` makes a value and registers nothing: a deployment names its tools by module path. The JSON Schema comes from the
type hints; a parameter typed `ToolContext` is given by Runfold and is not part of the schema.
"""

import inspect
import json
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, create_model

from runfold.adapters.arguments import BadSchema, compiled
from runfold.events.types import ToolSpec
from runfold.ports import Permanent

NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")  # what model APIs take
PLAIN = (str, int, float, bool, dict, list)


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may want to know of its call. The key is the same for every attempt of the same call."""

    run_id: str
    dispatch: str
    attempt: int
    idempotency_key: str
    cancelled: threading.Event = field(default_factory=threading.Event)  # set when nobody waits any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool as it is registered. `function` takes the arguments (and the context, if it asks for it)."""

    name: str
    description: str
    parameters: dict[str, Any]  # JSON Schema
    function: Callable[..., Any]
    arguments_model: type[BaseModel] | None = None  # converts arguments to what the hints say; None: they are plain
    context_parameter: str = ""
    takes_dict: bool = False  # the function takes the arguments as one dict
    time_limit_s: float = 0  # 0: the run's limit for tools
    changes_state: bool = False
    idempotent: bool = False
    immediate: bool = False

    def spec(self) -> ToolSpec:
        return ToolSpec(
            name=self.name,
            description=self.description,
            parameters=json.dumps(self.parameters, separators=(",", ":"), sort_keys=True),
            tool_class="inline",
            time_limit_ms=int(self.time_limit_s * 1000),
            changes_state=self.changes_state,
            idempotent=self.idempotent,
        )


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    time_limit_s: float = 0,
    changes_state: bool = False,
    idempotent: bool = False,
    immediate: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of a function.

    `immediate` declares that it returns within a millisecond and never blocks: it then runs on the executor's own
    thread, which saves a hand-over and stops every other run while it works. All others run in a thread pool.
    `idempotent` declares that it may be started again after a start without an outcome. `time_limit_s` is when the
    model is told that no result came; a Python thread cannot be stopped, and goes on.
    """
    return _made(function, **options) if function is not None else lambda made: _made(made, **options)


def _made(
    function: Callable[..., Any], *, name: str | None = None, description: str | None = None, **options: Any
) -> Tool:
    named = name or function.__name__
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    context = ""
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name)
        if hint is ToolContext:
            context = parameter.name
            continue
        if hint is None or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise Permanent(f"tool {named!r}: parameter {parameter.name!r} needs a type hint, and may not be * or **")
        fields[parameter.name] = (hint, ... if parameter.default is parameter.empty else parameter.default)
    model = create_model(named, __config__=ConfigDict(extra="forbid"), **fields)
    schema = model.model_json_schema()
    schema.pop("title", None)
    is_plain = all(hint in PLAIN for hint, _ in fields.values())
    return Tool(
        name=named,
        description=description or inspect.getdoc(function) or "",
        parameters=schema,
        function=function,
        arguments_model=None if is_plain else model,
        context_parameter=context,
        **options,
    )


class Toolbox:
    """The tools of a deployment, by name. Raises Permanent for what cannot be offered to a model."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.tools: dict[str, Tool] = {}
        for given in tools:
            if not NAME.match(given.name):
                raise Permanent(f"tool {given.name!r}: a name has 1 to 64 letters, digits, _ or -")
            if given.name in self.tools:
                raise Permanent(f"tool {given.name!r} is there twice: rename one with tool(name=...)")
            try:
                compiled(given.spec().parameters)
            except BadSchema as error:
                raise Permanent(f"tool {given.name!r}: its JSON Schema cannot be used: {error}") from error
            self.tools[given.name] = given

    def specs(self) -> list[ToolSpec]:
        """What runs see, in an order that never changes: prompt caches depend on it."""
        return [self.tools[name].spec() for name in sorted(self.tools)]
