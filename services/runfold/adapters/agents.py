"""The agents of a deployment, and the answers that deciding needs about them (`core.steps.Catalog`)."""

import hashlib
import importlib
import json
import tomllib
from collections.abc import Iterable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from runfold.adapters.arguments import argument_problem
from runfold.adapters.tool_files import load_tool_file
from runfold.adapters.toolbox import Tool, Toolbox, tool
from runfold.core.limits import INLINE_BYTES_MAX, RECORD_BYTES_MAX, Limits, limit_problem, limits_from, shortened
from runfold.events.text import sanitised
from runfold.events.types import ContextLoaded, RunRequested, ToolSpec
from runfold.ports import Permanent

CONTEXT_BYTES_MAX = RECORD_BYTES_MAX - 64 * 1024  # instructions and tools; the rest of a record is for all else
LONG_MAX = (1 << 63) - 1  # of Avro, in which limits are written down

Text = Annotated[str, AfterValidator(sanitised)]


class AgentConfig(BaseModel, frozen=True, extra="forbid"):
    """One agent: a file of a deployment, or the inline definition of a task."""

    name: Text = Field(default="", max_length=200)
    model: Text = Field(min_length=1, max_length=200)
    instructions: Text = ""
    tools: tuple[str, ...] | None = None  # names; None: all that are deployed
    limits: dict[str, Annotated[int, Field(le=LONG_MAX)]] = {}


Given = tuple[tuple[str, int], ...]  # limits of a task


class Agents:
    """Resolves tasks to what their runs will use."""

    def __init__(self, configs: Iterable[AgentConfig], toolbox: Toolbox) -> None:
        self._configs: dict[str, AgentConfig] = {}
        self._specs = {spec.name: spec for spec in toolbox.specs()}
        # Thousands of runs share one context. Definitions may be large, and rarely repeat.
        self._named = lru_cache(maxsize=1024)(self._by_name)
        self._inline = lru_cache(maxsize=64)(self._by_definition)
        for config in configs:
            if not config.name or config.name in self._configs:
                raise Permanent(f"agent {config.name!r}: every agent needs a name of its own")
            problem = self._problem(config)
            if problem is not None:
                raise Permanent(f"agent {config.name!r}: {problem}")
            self._configs[config.name] = config

    def context(self, task: RunRequested) -> ContextLoaded | str:
        """The agent as this task's run will use it, or what is wrong with asking for it."""
        given = tuple(sorted(task.limits.items()))
        found = self._named(task.agent, given) if task.definition is None else self._inline(task.definition, given)
        return shortened(sanitised(found)) if isinstance(found, str) else found

    def argument_problem(self, tool: ToolSpec, arguments: dict[str, Any]) -> str | None:
        return argument_problem(tool, arguments)

    def _by_name(self, name: str, given: Given) -> ContextLoaded | str:
        config = self._configs.get(name)
        if config is None:
            return f"there is no agent {name!r}; known are {', '.join(sorted(self._configs)) or 'none'}"
        return self._loaded(config, given)

    def _by_definition(self, definition: str, given: Given) -> ContextLoaded | str:
        try:
            config = AgentConfig.model_validate_json(definition)
        except ValidationError as error:
            return f"the agent's definition: {_said(error)}"
        problem = self._problem(config)
        return self._loaded(config, given) if problem is None else f"the agent's definition: {problem}"

    def _problem(self, config: AgentConfig) -> str | None:
        for name in config.tools or ():
            if name not in self._specs:
                return f"there is no tool {name!r}; known are {', '.join(sorted(self._specs)) or 'none'}"
        size = len(config.instructions.encode())
        if size > INLINE_BYTES_MAX:
            return f"instructions of {size:,} bytes; {INLINE_BYTES_MAX:,} are the limit"
        size += sum(len(f"{spec.description}{spec.parameters}".encode()) + 200 for spec in self._tools_of(config))
        if size > CONTEXT_BYTES_MAX:
            return f"instructions and tools of {size:,} bytes; {CONTEXT_BYTES_MAX:,} are the limit: name fewer tools"
        return limit_problem(config.limits)

    def _tools_of(self, config: AgentConfig) -> list[ToolSpec]:
        # As a set: model APIs refuse a request in which a tool's name is repeated.
        return [self._specs[name] for name in sorted(set(config.tools) if config.tools is not None else self._specs)]

    def _loaded(self, config: AgentConfig, given: Given) -> ContextLoaded | str:
        problem = limit_problem(dict(given))
        if problem is not None:
            return problem
        specs = self._tools_of(config)
        seen = json.dumps([config.model, config.instructions, [asdict(spec) for spec in specs]], sort_keys=True)
        return ContextLoaded(
            agent=config.name,
            version=hashlib.sha256(seen.encode()).hexdigest(),
            model=config.model,
            instructions=config.instructions,
            tools=specs,
            limits=asdict(limits_from({**asdict(Limits()), **config.limits, **dict(given)})),
        )


def _said(error: ValidationError) -> str:
    """Fields and what is wrong with them, in one line and without what was sent."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(": ".join(filter(None, (".".join(map(str, p["loc"])), p["msg"]))) for p in problems[:5])


def load_agents(folder: Path) -> list[AgentConfig]:
    """Every *.toml of a folder. Raises Permanent, naming the file and the field."""
    if not folder.is_dir():
        raise Permanent(f"RUNFOLD_AGENTS: {folder} is not a folder")
    configs = []
    for path in sorted(folder.glob("*.toml")):
        try:
            found = {"name": path.stem, **tomllib.loads(path.read_text(encoding="utf-8"))}
            configs.append(AgentConfig.model_validate(found))
        except ValidationError as error:
            raise Permanent(f"{path}: {_said(error)}") from error
        except (OSError, ValueError) as error:  # ValueError: not TOML, not UTF-8
            raise Permanent(f"{path}: {error}") from error
    return configs


# What importing somebody's module raises for what is easily mistyped; TypeError also for a relative path.
BROKEN_MODULE = (ImportError, AttributeError, ValueError, TypeError, NameError, SyntaxError, LookupError, OSError)


def load_tools(path: str) -> list[Tool]:
    """What `package.module:attribute` names: a tool, a function, or a list of them; or a file of tools. Raises Permanent."""
    if path.endswith(".toml"):
        return load_tool_file(Path(path))
    module_name, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except BROKEN_MODULE as error:
        said = f"{type(error).__name__}: {error}"
        raise Permanent(f"RUNFOLD_TOOLS: {path!r} cannot be loaded ({said}); write package.module:attribute") from error
    members = list(found) if isinstance(found, list | tuple) else [found]
    try:
        return [member if isinstance(member, Tool) else tool(member) for member in members]
    except Permanent as error:
        raise Permanent(f"RUNFOLD_TOOLS: {path!r}: {error}") from error
