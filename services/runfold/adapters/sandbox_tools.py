"""The tools that every deployment can offer: code and files, in the run's own workspace.

Named in settings as `runfold.adapters.sandbox_tools:TOOLS`. They run in processes of their own, without network, and
see no files but the workspace and the system's programs.
"""

from typing import Any, NoReturn

from runfold.adapters.process_spec import Process
from runfold.adapters.toolbox import Tool

PATH = {"type": "string", "minLength": 1, "maxLength": 1024, "description": "Path in the workspace, such as data/a.txt"}


def elsewhere(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("this tool runs in a process of its own, started by an executor")


def _made(name: str, description: str, properties: dict[str, Any], *required: str, **options: Any) -> Tool:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return Tool(
        name=name,
        description=description,
        parameters=parameters,
        function=elsewhere,
        process=Process(builtin=name, sandbox=True, workspace=True),
        **options,
    )


execute_code = _made(
    "execute_code",
    "Run a program in the workspace, without network. Answers what it printed. Files it writes stay for later calls;"
    " variables and processes do not.",
    {
        "language": {"type": "string", "enum": ["python", "bash", "javascript"]},
        "code": {"type": "string", "description": "The whole program"},
    },
    "language",
    "code",
    changes_state=True,
)
read_file = _made(
    "read_file",
    "Read a text file of the workspace.",
    {
        "path": PATH,
        "first_line": {"type": "integer", "minimum": 1, "description": "Where to begin; lines count from 1"},
        "lines": {"type": "integer", "minimum": 1, "description": "How many lines; all if left out"},
    },
    "path",
    idempotent=True,
)
write_file = _made(
    "write_file",
    "Write a text file in the workspace. Folders on the way are made.",
    {
        "path": PATH,
        "content": {"type": "string"},
        "append": {"type": "boolean", "description": "Add to the end of the file instead of replacing it"},
    },
    "path",
    "content",
    changes_state=True,
)
list_files = _made(
    "list_files",
    "List the files of the workspace, or of a folder in it, with everything inside.",
    {"path": {**PATH, "description": "A folder; the whole workspace if left out"}},
    idempotent=True,
)
delete_file = _made(
    "delete_file",
    "Delete a file of the workspace, or an empty folder. A person is asked first.",
    {"path": PATH},
    "path",
    changes_state=True,
    approval="always",
    approval_reason="It deletes a file of the workspace.",
)
TOOLS = [delete_file, execute_code, list_files, read_file, write_file]
