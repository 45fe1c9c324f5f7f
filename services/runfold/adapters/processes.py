"""Runs tools of class `process`: each call is a process of its own, beside the executor, and outlives it.

The executor writes a call's plan into its folder and starts a runner for it (`runfold.runner`), which starts the tool,
ends it in time, and leaves the result in the folder. So an executor may die at any moment: the next one on this host
finds the call by its folder, waits for its end, and reports. Claims come first: `start` is called for a dispatch that
this process claimed, `adopt` for one that somebody claimed before.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from runfold.adapters.inline_tools import OUTPUT_BYTES_MAX
from runfold.adapters.process_output import Output
from runfold.adapters.process_report import Reporter, Style
from runfold.adapters.process_spec import Process
from runfold.adapters.process_spool import Spool, Standing, end_marked
from runfold.adapters.process_watch import Call, Watch
from runfold.adapters.toolbox import Toolbox
from runfold.events.types import ToolReported
from runfold.ports import Blobs, Permanent, ToolStart
from runfold.runner import contract
from runfold.runner.contract import DISPATCH_VARIABLE, LOG, Cage, Plan

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The interpreter needs no site packages for a runner, and nothing of the environment or the working folder.
BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from runfold.runner.main import main; sys.exit(main(sys.argv[1:]))"
SOURCES = str(Path(contract.__file__).resolve().parents[2])
PROBE_S = 30.0
WORKSPACE_MARK = "#"  # before what tells a run's workspaces on one host apart
ISOLATIONS = ("auto", "required", "none")

Done = Callable[[ToolReported], None]
ShowOfRun = Callable[[str, str, str, str, int, str], None]  # run id, and then as `process_output.Show`


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    name: str = "executor"  # source of the reports
    spool: Path  # must be on this host, and stay when the executor ends
    at_once_max: int = 64  # calls that run; the others wait, while their time limits pass
    output_bytes_max: int = OUTPUT_BYTES_MAX  # of an output that the model sees
    keep_s: float = 24 * 3600.0  # traces of ended calls: an executor that is away so long finds them settled
    workspace_keep_s: float = 7 * 24 * 3600.0  # a run's files, after their last use: as long as a pause may last
    uid_first: int = 1_900_000_000  # user ids of tools, where the executor is root: a range that nobody hands out
    uid_count: int = 65_536
    isolation: str = "auto"  # what the host offers; required: refuse to start without; none: no namespaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """What this host offers to keep tools apart from itself and from each other."""

    namespaces: str  # root or user; empty: none, so that sandboxed tools see the host's files and network
    has_uids: bool  # tools run under users of their own
    reasons: tuple[str, ...] = ()  # why there is no more

    @property
    def lacks(self) -> str:
        """What a deployment should know; empty if there is nothing."""
        lacking = []
        if not self.namespaces:
            lacking.append("tools can read the host's files and use its network, those of the sandbox too")
        if os.geteuid() == 0 and not self.has_uids:
            lacking.append("tools run as root")
        return f"{' and '.join(lacking)} ({'; '.join(self.reasons)})" if lacking else ""


class ProcessTools:
    """`show` gets pieces of output while tools run; it must not block. `environ`: where secrets are taken from."""

    def __init__(
        self,
        toolbox: Toolbox,
        blobs: Blobs,
        settings: ProcessSettings,
        *,
        environ: Mapping[str, str],
        show: ShowOfRun | None = None,
        tell: Callable[[str], None],
    ) -> None:
        self._tools = {name: tool.process for name, tool in toolbox.tools.items() if tool.process is not None}
        self._settings = settings
        self._environ = environ
        self._show = show
        self._spool = Spool(settings.spool)
        self._host = f"{socket.gethostname()}/{self._spool.boot_id}/{self._spool.id}"
        self._reporter = Reporter(blobs, settings.name, settings.output_bytes_max)
        self.isolation = isolation(settings)
        if self.isolation.lacks and settings.isolation == "required":
            raise Permanent(f"isolation is required, but {self.isolation.lacks}")
        if self.isolation.lacks:
            tell(f"process tools: {self.isolation.lacks}")
        self._watch = Watch(
            self._spool,
            at_once_max=settings.at_once_max,
            keep_s=(settings.keep_s, settings.workspace_keep_s),
            tell=tell,
        )

    @property
    def identity(self) -> str:
        """For ToolClaimed.process: host name, its boot id, the spool's id, and the executor's name."""
        return f"{self._host}/{self._settings.name}"

    def is_here(self, process: str) -> bool:
        """Whether `adopt` can say what became of a call that this process claimed."""
        host, _, spool, *_ = [*process.split("/"), "", "", ""]
        mine, _, my_spool = self._host.split("/")
        return (host, spool) == (mine, my_spool)

    def has_workspace(self, run_id: str, sandbox: str) -> bool:
        return self.is_here(sandbox) and self._spool.workspace(run_id, _token(sandbox)).is_dir()

    def new_workspace(self, run_id: str) -> str:
        token = os.urandom(8).hex()
        self._spool.workspace(run_id, token).mkdir(mode=0o700, parents=True)
        return f"{self.identity}{WORKSPACE_MARK}{token}"

    def start(self, start: ToolStart, done: Done) -> ToolReported | None:
        process = self._tools.get(start.tool)
        if process is None:  # it was there when the run began
            return self._reporter.failed(start, f"The tool {start.tool!r} is not deployed here any more.")
        missing = [name for name in process.secrets if name not in self._environ]
        if missing:
            return self._reporter.failed(
                start, f"It was not started: {', '.join(missing)} is not set for this executor."
            )
        self._watch.follow(self._call(start, process, done, plan=self._plan(start, process)))
        return None

    def adopt(self, start: ToolStart, process: str, done: Done) -> bool:
        """Wait for a call that somebody claimed with this nonce, and report it.

        False: this host knows nothing of it, or it is gone without a result. A call that was prepared here, and that
        never began, begins now.
        """
        declared = self._tools.get(start.tool, GONE_TOOL)
        traces = self._spool.look(self._spool.call(start.dispatch, start.nonce))
        if traces.standing is Standing.RUNNING:
            os.close(traces.pidfd)
        if traces.standing is Standing.GONE:
            self._watch.later(lambda: end_marked(start.dispatch))
        if traces.standing in (Standing.UNKNOWN, Standing.GONE):
            return False
        self._watch.follow(self._call(start, declared, done, plan=None))
        return True

    def stop(self, dispatch: str) -> None:
        """TERM, and KILL for what is left after two seconds; what a stopped call reports then is late."""
        self._watch.stop(dispatch)

    def close(self) -> None:
        """Stop watching. Tools go on; the next executor adopts them."""
        self._watch.close()

    def _call(self, start: ToolStart, process: Process, done: Done, *, plan: Plan | None) -> Call:
        folder = self._spool.call(start.dispatch, start.nonce)
        show = partial(self._show, start.run_id) if self._show is not None else None
        output = Output(folder, start.dispatch, start.nonce, show) if show is not None else None
        return Call(
            dispatch=start.dispatch,
            folder=folder,
            ended=lambda: done(self._reporter.harvested(start, folder, _style(process))),
            lost=lambda reason: done(self._reporter.failed(start, reason)),
            spawn=lambda: _spawn(folder, {name: self._environ.get(name, "") for name in process.secrets}),
            plan=plan,
            output=output,
        )

    def _plan(self, start: ToolStart, process: Process) -> Plan:
        kind, target = (
            ("command", list(process.command)) if process.command
            else ("function", [process.function]) if process.function
            else ("builtin", [process.builtin])
        )  # fmt: skip
        environment = {
            "PATH": DEFAULT_PATH if process.sandbox else self._environ.get("PATH", DEFAULT_PATH),
            "LANG": "C.UTF-8",
            "RUNFOLD_RUN_ID": start.run_id,
            "RUNFOLD_ATTEMPT": str(start.attempt),
            "RUNFOLD_IDEMPOTENCY_KEY": start.idempotency_key,
            DISPATCH_VARIABLE: start.dispatch,
        }
        return Plan(
            dispatch=start.dispatch,
            nonce=start.nonce,
            boot_id=self._spool.boot_id,
            kind=kind,
            target=target,
            arguments=start.arguments,
            python=sys.executable if kind == "function" else os.path.realpath(sys.executable),
            python_path=[str(Path(each).absolute()) for each in sys.path],
            environment=environment,
            secrets=list(process.secrets),
            workspace=str(self._spool.workspace(start.run_id, _token(start.sandbox))) if process.workspace else "",
            bounds=replace(process.bounds, time_limit_s=start.time_limit_s),
            cage=self._cage(start.run_id, process, kind),
        )

    def _cage(self, run_id: str, process: Process, kind: str) -> Cage:
        """The calls of one run share a user, as they share a workspace."""
        number = int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:4], "big") % self._settings.uid_count
        interpreter = {"function": [sys.prefix, sys.base_prefix], "builtin": [sys.base_prefix]}
        return Cage(
            namespaces=self.isolation.namespaces,
            uid=self._settings.uid_first + number if self.isolation.has_uids else None,
            sandbox=process.sandbox,
            readable=interpreter.get(kind, []),
        )


GONE_TOOL = Process(command=("true",))  # stands for one that is not deployed any more: its call may still be harvested


def isolation(settings: ProcessSettings) -> Isolation:
    """Found out by a process that tries."""
    if settings.isolation not in ISOLATIONS:
        raise Permanent(f"isolation is one of {', '.join(ISOLATIONS)}; not {settings.isolation!r}")
    if not hasattr(os, "pidfd_open"):
        raise Permanent("process tools need Linux, 5.3 or newer")
    command = _runner("--probe", str(settings.uid_first + settings.uid_count - 1), str(settings.spool))
    try:
        tried = subprocess.run(command, env={}, capture_output=True, timeout=PROBE_S, check=True)
    except subprocess.SubprocessError as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace")
        raise Permanent(f"the runner of process tools does not work here: {said or error}") from error
    found = json.loads(tried.stdout)
    if settings.isolation == "none":
        found |= {"namespaces": "", "reasons": ["as the settings ask for"]}
    return Isolation(namespaces=found["namespaces"], has_uids=found["uid"] is not None, reasons=tuple(found["reasons"]))


def _runner(*arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", BOOT, SOURCES, *arguments]


def _spawn(folder: Path, secrets: Mapping[str, str]) -> int:
    """A runner in a session of its own: what ends the executor's does not end it."""
    with (folder / LOG).open("ab") as log:
        child = subprocess.Popen(
            _runner(str(folder)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(secrets),
            cwd="/",
            start_new_session=True,
        )
    child.returncode = 0  # not for this object to wait for: the watch does, or nobody does and the runner goes on
    return child.pid


def _token(sandbox: str) -> str:
    return sandbox.partition(WORKSPACE_MARK)[2]


def _style(process: Process) -> Style:
    if not process.builtin:
        return Style.COMMAND
    return Style.CODE if process.builtin == "execute_code" else Style.FILE
