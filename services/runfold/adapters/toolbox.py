"""What application engineers write: Python functions as tools.

    @tool
    def weather(city: Annotated[str, "name of the city"]) -> str:
        "The weather in a city."

`tool` makes a value and registers nothing: a deployment names its tools by module path. The JSON Schema comes from the
type hints, descriptions of parameters from `Annotated` (a text, or pydantic's Field); a parameter typed `ToolContext`
is given by Runfold and is not part of the schema. A tool with a schema of its own is made as
`Tool(name=..., description=..., parameters={...}, function=..., takes_dict=True)`.

With `tool(tool_class="process", ...)` the function runs in a process of its own, which can be stopped, bounded, and
outlives the executor; see `process_spec`.

What cannot work is refused when the tool is made or put into a toolbox, with Permanent; never at the first call.
"""

import asyncio
import functools
import inspect
import json
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from runfold.adapters.arguments import BadSchema, compiled
from runfold.adapters.process_spec import Process
from runfold.core.approval import approval_problem
from runfold.events.types import ToolSpec
from runfold.ports import Permanent

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what model APIs take


@dataclass(slots=True)  # not frozen: that would double what an immediate call costs
class ToolContext:
    """What a tool may want to know of its call. The key is the same for every attempt of the same call."""

    run_id: str
    dispatch: str
    attempt: int
    idempotency_key: str
    cancelled: threading.Event = field(default_factory=threading.Event)  # set when nobody waits any more


def _as_they_are(arguments: str) -> dict[str, Any]:
    if arguments == "{}":
        return {}
    read: dict[str, Any] = json.loads(arguments)
    return read


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool as it is registered. `function` takes the arguments (and the context, if it asks for it)."""

    name: str
    description: str
    parameters: dict[str, Any]  # JSON Schema
    function: Callable[..., Any]
    read: Callable[[str], dict[str, Any]] = _as_they_are  # JSON text to what the type hints say. Raises ValueError
    context_parameter: str = ""
    takes_dict: bool = False  # the function takes the arguments as one dict
    time_limit_s: float = 0  # 0: the run's limit for tools
    changes_state: bool = False
    idempotent: bool = False
    immediate: bool = False
    approval: str = ""  # always: a person is asked before every call
    approval_reason: str = ""
    process: Process | None = None  # runs in a process of its own; None: in the executor's
    is_external: bool = False  # somebody else carries it out, and reports through a gateway
    waits_for: str = ""  # time, person or child: nothing runs, the run itself waits; see `waiting_tools`

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself: a tool stays usable from Python, and testable without Runfold."""
        return self.function(*args, **kwargs)

    def run_alone(self, arguments: str, environ: Mapping[str, str]) -> Any:
        """What a process of its own calls; `environ` tells it of the call."""
        given = self.read(arguments)
        if self.takes_dict:
            return self.function(given)
        if self.context_parameter:
            given[self.context_parameter] = ToolContext(
                run_id=environ["RUNFOLD_RUN_ID"],
                dispatch=environ["RUNFOLD_DISPATCH"],
                attempt=int(environ["RUNFOLD_ATTEMPT"]),
                idempotency_key=environ["RUNFOLD_IDEMPOTENCY_KEY"],
            )
        return self.function(**given)

    def spec(self) -> ToolSpec:
        return ToolSpec(
            name=self.name,
            description=self.description,
            parameters=json.dumps(self.parameters, separators=(",", ":"), sort_keys=True),
            tool_class="external" if self.is_external else "inline" if self.process is None else "process",
            time_limit_ms=int(self.time_limit_s * 1000),
            changes_state=self.changes_state,
            idempotent=self.idempotent,
            approval=self.approval,
            approval_reason=self.approval_reason,
            waits_for=self.waits_for,
            workspace=self.process is not None and self.process.workspace and self.process.sandbox,
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
    **more: Any,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of a function.

    `immediate` declares that it returns within a millisecond and never blocks: it then runs on the executor's own
    thread, which saves a hand-over and stops every other run while it works. All others run in a thread pool.
    `idempotent` declares that it may be started again after a start without an outcome. `time_limit_s` is when the
    model is told that no result came; a Python thread cannot be stopped, and goes on. A coroutine function runs in an
    event loop of its own.

    `approval="always"` asks a person before every call, with `approval_reason`. `tool_class="process"` takes what
    `Process` takes: `secrets`, `workspace`, `sandbox`, `bounds`; the function must be found under its own name in its
    module, where the process imports it.
    """
    return _made(function, **options) if function is not None else lambda made: _made(made, **options)


def _made(
    function: Callable[..., Any], *, name: str | None = None, description: str | None = None, **options: Any
) -> Tool:
    options["process"] = _process(function, options)
    named = name or getattr(function, "__name__", "")
    if not inspect.isroutine(function) or not named:
        raise Permanent(f"a tool is a function, not {function!r}; wrap it in one")
    hints, context = _hints(named, function)
    try:
        model = _model(named, hints)
        schema = model.model_json_schema(schema_generator=_SchemaForModels)
    except (PydanticUserError, TypeError, ValueError) as error:  # what pydantic says of hints it cannot use
        raise Permanent(f"tool {named!r}: no JSON Schema can be made of its type hints: {error}") from error
    schema.pop("title", None)
    return Tool(
        name=named,
        description=description or inspect.getdoc(function) or "",
        parameters=schema,
        function=_blocking(named, function, **options),
        read=_reader(model, hints),
        context_parameter=context,
        **options,
    )


def _process(function: Callable[..., Any], options: dict[str, Any]) -> Process | None:
    """Takes its own out of the options."""
    tool_class = options.pop("tool_class", "inline")
    given = {name: options.pop(name) for name in ("secrets", "workspace", "sandbox", "bounds") if name in options}
    if tool_class == "process" and not options.get("immediate"):
        given["secrets"] = tuple(given.get("secrets", ()))
        return Process(function=f"{function.__module__}:{function.__qualname__}", **given)
    if tool_class != "inline" or given:
        raise Permanent(
            f"tool {function!r}: tool_class is inline or process; {sorted(given)} and no immediate are for process"
        )
    return None


def _hints(named: str, function: Callable[..., Any]) -> tuple[dict[str, tuple[Any, Any]], str]:
    """Hint and default of each parameter, and the one that takes the context."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise Permanent(f"tool {named!r}: a type hint cannot be found: {error}") from error
    found: dict[str, tuple[Any, Any]] = {}
    context = ""
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name)
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise Permanent(f"tool {named!r}: {parameter} cannot be given by name: no *, ** and / in tools")
        if hint is ToolContext:
            context = parameter.name
        elif hint is None:
            raise Permanent(f"tool {named!r}: parameter {parameter.name!r} needs a type hint")
        else:
            found[parameter.name] = (hint, ... if parameter.default is parameter.empty else parameter.default)
    return found, context


def _blocking(named: str, function: Callable[..., Any], *, immediate: bool = False, **_: Any) -> Callable[..., Any]:
    if not inspect.iscoroutinefunction(function):
        return function
    if immediate:
        raise Permanent(f"tool {named!r}: a coroutine function waits for something, so it cannot be immediate")

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(function(*args, **kwargs))

    return run


# ---- type hints to a schema


class _SchemaForModels(GenerateJsonSchema):
    """Without titles, which repeat the names and cost tokens; defaults that JSON cannot say are left out."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  pydantic's own form

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _model(named: str, hints: dict[str, tuple[Any, Any]]) -> type[BaseModel]:
    """Reads the arguments. Its own field names are numbers: a parameter may be called like a method of BaseModel."""
    fields: dict[str, Any] = {
        f"p{index}": (_described(hint), Field(default, alias=_wire_name(name, hint)))
        for index, (name, (hint, default)) in enumerate(hints.items())
    }
    return create_model(named, __config__=ConfigDict(extra="forbid"), **fields)


def _described(hint: Any) -> Any:
    """A bare text in Annotated is the parameter's description."""
    texts = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, str)]
    return Annotated[hint, Field(description=texts[0])] if texts else hint


def _wire_name(name: str, hint: Any) -> str:
    """The parameter's name, or the alias it was given because Python reserves the word."""
    infos = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, FieldInfo)]
    return next((info.alias for info in infos if info.alias), name)


# ---- arguments to what the hints say


def _reader(model: type[BaseModel], hints: dict[str, tuple[Any, Any]]) -> Callable[[str], dict[str, Any]]:
    """From JSON text. Where the hints are what JSON has anyway, pydantic is not asked at every call."""
    numbers = {name: hint for name, (hint, _) in hints.items() if hint in (int, float)}
    if all(name in numbers or _is_plain(hint) for name, (hint, _) in hints.items()):
        return functools.partial(_plain, numbers) if numbers else _as_they_are
    names = {f"p{index}": name for index, name in enumerate(hints)}

    def read(arguments: str) -> dict[str, Any]:
        try:
            checked = model.model_validate_json(arguments)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            said = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems[:5])
            raise ValueError(f"the arguments do not fit: {said}") from error
        return {names[given]: getattr(checked, given) for given in checked.model_fields_set}  # others: own defaults

    return read


def _plain(numbers: dict[str, type], arguments: str) -> dict[str, Any]:
    read = _as_they_are(arguments)
    for name, kind in numbers.items():
        value = read.get(name)
        if kind is float and type(value) is int:
            read[name] = float(value)
        elif kind is int and type(value) is float and value.is_integer():  # JSON Schema counts 3.0 as an integer
            read[name] = int(value)
    return read


def _is_plain(hint: Any) -> bool:
    if hint in (str, bool, dict, list, Any, NoneType):
        return True
    inner = get_args(hint)
    match get_origin(hint):
        case kind if kind in (list, dict, Union, UnionType):
            return all(map(_is_plain, inner))
        case kind if kind is Annotated:
            infos = [info.metadata or info.alias for info in inner[1:] if isinstance(info, FieldInfo)]
            return not any(infos) and all(isinstance(x, str | FieldInfo) for x in inner[1:]) and _is_plain(inner[0])
        case kind if kind is Literal:
            return all(type(choice) is str for choice in inner)
        case _:
            return False


class Toolbox:
    """The tools of a deployment, by name. Raises Permanent for what cannot be offered to a model."""

    def __init__(self, tools: Iterable[Tool], *, is_contained: bool = True) -> None:
        """`is_contained`: this host keeps sandboxed tools from everything else. Where not, a call may have had effects
        that repeating it would double: then a lost workspace is told, and not rebuilt."""
        self._is_contained = is_contained
        self.tools: dict[str, Tool] = {}
        for given in tools:
            if not NAME.fullmatch(given.name):
                raise Permanent(f"tool {given.name!r}: a name has 1 to 64 letters, digits, _ or -")
            if given.name in self.tools:
                raise Permanent(f"tool {given.name!r} is there twice: rename one with tool(name=...)")
            if not 0 <= given.time_limit_s < float("inf"):
                raise Permanent(f"tool {given.name!r}: time_limit_s is {given.time_limit_s}; seconds, 0 for the run's")
            if (problem := approval_problem(given.approval)) is not None:
                raise Permanent(f"tool {given.name!r}: {problem}")
            if given.parameters.get("type") != "object":
                raise Permanent(f'tool {given.name!r}: model APIs want a schema of "type": "object"')
            try:
                compiled(given.spec().parameters)
            except (BadSchema, TypeError) as error:  # TypeError: it is not JSON
                raise Permanent(f"tool {given.name!r}: its JSON Schema cannot be used: {error}") from error
            if given.process is not None and given.process.function:
                _check_findable(given.name, given.process.function)
            self.tools[given.name] = given

    def specs(self) -> list[ToolSpec]:
        """What runs see, in an order that never changes: prompt caches depend on it."""
        specs = [self.tools[name].spec() for name in sorted(self.tools)]
        return [replace(spec, workspace=spec.workspace and self._is_contained) for spec in specs]


def _check_findable(named: str, path: str) -> None:
    """A process of its own finds a function by module and name."""
    module, _, name = path.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if module == "__main__" or (found is None and module in sys.modules):
        raise Permanent(f"tool {named!r}: a process cannot find {path!r}; define it at the top of a module")
