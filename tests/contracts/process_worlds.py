"""Process tools on this host, as the tests of them need: a spool of their own, reports as they come, and a look at what
is left."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from runfold.adapters.blobs import MemoryBlobs
from runfold.adapters.process_spec import Process
from runfold.adapters.processes import ProcessSettings, ProcessTools
from runfold.adapters.sandbox_tools import TOOLS, elsewhere
from runfold.adapters.toolbox import Tool, Toolbox
from runfold.events.types import ToolReported
from runfold.ports import ToolStart
from runfold.runner.contract import Bounds

PATIENCE_S = 60.0
# An interpreter that other users may run, too: the one of these tests may lie in a home folder.
PYTHON = next(
    path
    for path in ("/usr/bin/python3", "/usr/local/bin/python3", shutil.which("python3"))
    if path and Path(path).exists()
)
UID_COUNT = 1_000
UID_FIRST = 1_900_100_000 + os.getpid() % 50_000 * UID_COUNT  # not those of a Runfold, or of other tests, that run here


def command(name: str, *argv: str, bounds: Bounds | None = None, **options: Any) -> Tool:
    """A tool that is a command."""
    process = Process(command=argv, bounds=bounds or Bounds(), **options)
    return Tool(name=name, description="", parameters={"type": "object"}, function=elsewhere, process=process)


def python(name: str, code: str, **options: Any) -> Tool:
    return command(name, PYTHON, "-c", code, **options)


def until(is_so: Callable[[], Any], what: str) -> Any:
    """Wait for a condition, and answer what it answered."""
    ends_at = time.monotonic() + PATIENCE_S
    while not (found := is_so()):
        assert time.monotonic() < ends_at, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.01)
    return found


@contextmanager
def spool_folder() -> Iterator[Path]:
    """A folder that tools of other users can reach, as a deployment's is."""
    folder = Path(tempfile.mkdtemp(prefix="runfold-spool-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


class World:
    """One executor's side."""

    def __init__(self, folder: Path, tools: list[Tool], **settings: Any) -> None:
        self.folder = folder
        self.blobs = MemoryBlobs()
        self.reports: SimpleQueue[ToolReported] = SimpleQueue()
        self.shown: list[tuple[str, str, str, int, str]] = []
        self.told: list[str] = []
        self.environ = {"PATH": os.environ["PATH"], "A_SECRET": "hidden", "ANOTHER": "not for tools"}
        self.tools = ProcessTools(
            Toolbox([*tools, *TOOLS, command("hello", "echo", "hello")]),
            settings.pop("blobs", self.blobs),
            ProcessSettings(
                **{"name": "here", "spool": folder, "uid_first": UID_FIRST, "uid_count": UID_COUNT, **settings}
            ),
            environ=self.environ,
            show=lambda run_id, *piece: self.shown.append(piece),
            tell=self.told.append,
        )

    def asked(self, tool: str, arguments: str = "{}", **options: Any) -> ToolStart:
        given = {
            "run_id": "run", "model_call": "m", "position": 3, "dispatch": f"d-{tool}", "attempt": 2, "tool": tool,
            "arguments": arguments, "time_limit_s": 30, "idempotency_key": "key", "nonce": "n1", **options,
        }  # fmt: skip
        return ToolStart(**given)

    def start(self, tool: str, arguments: str = "{}", **options: Any) -> ToolStart:
        start = self.asked(tool, arguments, **options)
        assert self.tools.start(start, self.reports.put) is None
        return start

    def next(self) -> ToolReported:
        return self.reports.get(timeout=PATIENCE_S)

    def ran(self, tool: str, arguments: str = "{}", **options: Any) -> ToolReported:
        start = self.start(tool, arguments, **options)
        report = self.next()
        assert report.dispatch == start.dispatch
        return report

    def call(self, start: ToolStart) -> Path:
        return self.tools._spool.call(start.dispatch, start.nonce)


def processes(dispatch: str) -> list[int]:
    """What runs for this dispatch: its runner, and what carries the mark of the call or the user of a tool."""
    mark, found = f"RUNFOLD_DISPATCH={dispatch}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_ended = (process / "stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
            its_user = UID_FIRST <= process.stat().st_uid < UID_FIRST + UID_COUNT
            if not is_ended and (its_user or mark in (process / "environ").read_bytes().split(b"\0")):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def runners(folder: Path) -> list[int]:
    """Runners of calls in this spool."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(folder) in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
