"""How a tool that runs in a process of its own is declared."""

import re
from dataclasses import dataclass, field

from runfold.ports import Permanent
from runfold.runner.contract import DISPATCH_VARIABLE, Bounds

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED = frozenset({"PATH", "HOME", "LANG", "TMPDIR", DISPATCH_VARIABLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What the process becomes: one of `command`, `function` and `builtin`.

    A command reads the arguments as JSON on standard input; what it prints on standard output is its result. It finds
    the call in its environment: RUNFOLD_DISPATCH, RUNFOLD_RUN_ID, RUNFOLD_ATTEMPT and RUNFOLD_IDEMPOTENCY_KEY.
    """

    command: tuple[str, ...] = ()
    function: str = ""  # package.module:name
    builtin: str = ""
    secrets: tuple[str, ...] = ()  # names of variables of the executor's environment that the tool gets; no others
    sandbox: bool = False  # no network, and of the files only the system's and the workspace
    workspace: bool = False  # works in the run's folder, which its calls share; else in a folder of its own
    bounds: Bounds = field(default_factory=Bounds)

    def __post_init__(self) -> None:
        if sum(map(bool, (self.command, self.function, self.builtin))) != 1:
            raise Permanent("a process has one of: a command, a function, a built-in tool")
        for name in self.secrets:
            if not VARIABLE.fullmatch(name) or name in RESERVED:
                raise Permanent(f"a secret is the name of an environment variable, and none of ours: not {name!r}")
        bounds = vars(self.bounds)
        for name, value in bounds.items():
            if not 0 < value < float("inf"):
                raise Permanent(f"the bound {name} is {value}; it must be positive")
