"""Tools that are declared in a file: commands in any language, and Python functions that the executor need not import.

    [[tool]]
    name = "word_count"
    description = "Counts words."
    command = ["./word_count.sh"]          # JSON on standard input; its standard output is the result
    time_limit_s = 10
    secrets = ["WORD_COUNT_TOKEN"]         # variables of the executor's environment, by name
    [tool.parameters]                      # JSON Schema
    type = "object"
    properties.text.type = "string"
    [tool.bounds]
    memory_bytes = 100_000_000

    [[tool]]
    name = "ship"
    description = "Has a parcel sent."
    external = true                        # nothing runs here: a service reads ToolDispatchStarted from run-events, and
    parameters = { type = "object" }       # reports to a gateway with the token that this gives for the dispatch

Named in settings like other tools, by the file's path: RUNFOLD_TOOLS=tools.toml.
"""

import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from runfold.adapters.process_spec import Process
from runfold.adapters.sandbox_tools import elsewhere
from runfold.adapters.toolbox import Tool
from runfold.ports import Permanent
from runfold.runner.contract import Bounds


class BoundsConfig(BaseModel, frozen=True, extra="forbid"):
    """Those of `Bounds` that a tool may set; time_limit_s stands beside them, as for every tool."""

    cpu_s: int | None = None
    memory_bytes: int | None = None
    file_bytes: int | None = None
    scratch_bytes: int | None = None
    processes: int | None = None
    open_files: int | None = None
    output_bytes: int | None = None


class ToolConfig(BaseModel, frozen=True, extra="forbid"):
    name: str
    description: str = ""
    command: tuple[str, ...] = ()
    function: str = Field(default="", pattern=r"^$|^[\w.]+:[\w.]+$")
    parameters: dict[str, Any]
    time_limit_s: float = 0
    changes_state: bool = False
    idempotent: bool = False
    approval: str = ""
    approval_reason: str = ""
    secrets: tuple[str, ...] = ()
    external: bool = False  # neither command nor function: somebody reads the dispatch, and reports through a gateway
    sandbox: bool = False
    workspace: bool = False
    bounds: BoundsConfig = BoundsConfig()


class ToolFile(BaseModel, frozen=True, extra="forbid"):
    tool: tuple[ToolConfig, ...]


def load_tool_file(path: Path) -> list[Tool]:
    """Raises Permanent, naming the file and the field."""
    try:
        configs = ToolFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8"))).tool
        return [_made(config, path.parent) for config in configs]
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        said = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems[:5])
        raise Permanent(f"{path}: {said}") from error
    except (OSError, ValueError) as error:  # ValueError: not TOML, not UTF-8
        raise Permanent(f"{path}: {error}") from error
    except Permanent as error:
        raise Permanent(f"{path}: {error}") from error


def _made(config: ToolConfig, beside: Path) -> Tool:
    command = config.command
    if command and "/" in command[0]:  # a name without a slash is looked for on the path
        command = (str((beside / command[0]).resolve()), *command[1:])
    return Tool(
        name=config.name,
        description=config.description,
        parameters=config.parameters,
        function=elsewhere,
        time_limit_s=config.time_limit_s,
        changes_state=config.changes_state,
        idempotent=config.idempotent,
        approval=config.approval,
        approval_reason=config.approval_reason,
        is_external=config.external,
        process=_process(config, command),
    )


def _process(config: ToolConfig, command: tuple[str, ...]) -> Process | None:
    """What runs; nothing of ours for an external tool."""
    if config.external:
        given = config.model_fields_set & {"command", "function", "secrets", "sandbox", "workspace", "bounds"}
        if given:
            raise Permanent(
                f"tool {config.name!r}: external, so nothing runs here; leave out {', '.join(sorted(given))}"
            )
        return None
    return Process(
        command=command,
        function=config.function,
        secrets=config.secrets,
        sandbox=config.sandbox,
        workspace=config.workspace,
        bounds=Bounds(**config.bounds.model_dump(exclude_none=True)),
    )
