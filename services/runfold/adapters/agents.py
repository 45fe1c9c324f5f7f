"""The agents of a deployment, and the answers that deciding needs about them (`core.steps.Catalog`)."""

import hashlib
import importlib
import json
import tomllib
from collections.abc import Iterable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from runfold.adapters.arguments import argument_problem
from runfold.adapters.toolbox import Tool, Toolbox, tool
from runfold.core.limits import INLINE_BYTES_MAX, Limits, limit_problem, limits_from
from runfold.events.types import ContextLoaded, RunRequested, ToolSpec
from runfold.ports import Permanent


class AgentConfig(BaseModel, frozen=True, extra="forbid"):
    """One agent: a file of a deployment, or the inline definition of a task."""

    name: str = Field(default="", max_length=200)
    model: str = Field(min_length=1)
    instructions: str = ""
    tools: tuple[str, ...] | None = None  # names; None: all that are deployed
    limits: dict[str, int] = {}


class Agents:
    """Resolves tasks to what their runs will use."""

    def __init__(self, configs: Iterable[AgentConfig], toolbox: Toolbox) -> None:
        self._configs: dict[str, AgentConfig] = {}
        self._specs = {spec.name: spec for spec in toolbox.specs()}
        self._loaded = lru_cache(maxsize=1024)(self._load)  # thousands of runs share one context
        for config in configs:
            if not config.name or config.name in self._configs:
                raise Permanent(f"agent {config.name!r}: every agent needs a name of its own")
            problem = self._problem(config)
            if problem is not None:
                raise Permanent(f"agent {config.name!r}: {problem}")
            self._configs[config.name] = config

    def context(self, task: RunRequested) -> ContextLoaded | str:
        """The agent as this task's run will use it, or what is wrong with asking for it."""
        if task.definition is not None:
            try:
                config = AgentConfig.model_validate_json(task.definition)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                return f"the agent's definition: {'.'.join(map(str, first['loc']))}: {first['msg']}"
            problem = self._problem(config)
            if problem is not None:
                return f"the agent's definition: {problem}"
            return self._load(config, tuple(sorted(task.limits.items())))
        known = self._configs.get(task.agent)
        if known is None:
            return f"there is no agent {task.agent!r}; known are {', '.join(sorted(self._configs)) or 'none'}"
        return self._loaded(task.agent, tuple(sorted(task.limits.items())))

    def argument_problem(self, tool: ToolSpec, arguments: dict[str, Any]) -> str | None:
        return argument_problem(tool, arguments)

    def _problem(self, config: AgentConfig) -> str | None:
        for name in config.tools or ():
            if name not in self._specs:
                return f"there is no tool {name!r}; known are {', '.join(sorted(self._specs)) or 'none'}"
        size = len(config.instructions.encode("utf-8", "surrogatepass"))
        if size > INLINE_BYTES_MAX:
            return f"instructions of {size:,} bytes; {INLINE_BYTES_MAX:,} are the limit"
        return limit_problem(config.limits)

    def _load(self, agent: str | AgentConfig, given: tuple[tuple[str, int], ...]) -> ContextLoaded:
        config = self._configs[agent] if isinstance(agent, str) else agent
        # As a set: model APIs refuse a request in which a tool's name is repeated.
        names = sorted(set(config.tools) if config.tools is not None else self._specs)
        specs = [self._specs[name] for name in names]
        seen = json.dumps([config.model, config.instructions, [asdict(spec) for spec in specs]], sort_keys=True)
        return ContextLoaded(
            agent=config.name,
            version=hashlib.sha256(seen.encode()).hexdigest(),
            model=config.model,
            instructions=config.instructions,
            tools=specs,
            limits=asdict(limits_from({**asdict(Limits()), **config.limits, **dict(given)})),
        )


def load_agents(folder: Path) -> list[AgentConfig]:
    """Every *.toml of a folder. Raises Permanent, naming the file and the field."""
    if not folder.is_dir():
        raise Permanent(f"RUNFOLD_AGENTS: {folder} is not a folder")
    configs = []
    for path in sorted(folder.glob("*.toml")):
        try:
            found = {"name": path.stem, **tomllib.loads(path.read_text(encoding="utf-8"))}
            configs.append(AgentConfig.model_validate(found))
        except (OSError, ValueError) as error:
            raise Permanent(f"{path}: {error}") from error
    return configs


def load_tools(path: str) -> list[Tool]:
    """What `package.module:attribute` names: a tool, a function, or a list of them. Raises Permanent."""
    module_name, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # TypeError: a relative path
        raise Permanent(
            f"RUNFOLD_TOOLS: {path!r} cannot be loaded ({error}); write package.module:attribute"
        ) from error
    members = list(found) if isinstance(found, list | tuple) else [found]
    return [member if isinstance(member, Tool) else tool(member) for member in members]
