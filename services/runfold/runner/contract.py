"""What the executor and the runner agree on: the files of one call's folder, and what stands in them.

    spec.json     written by the executor before the runner is started: the plan
    runner.json   appears when a runner takes the call, at most once: which process it is
    stdout, …     what the tool printed, as it comes, up to a cap
    result.json   appears whole when everything is over
    runner.log    what the runner itself had to complain of: empty unless there is a bug

The folder's name stands for dispatch and nonce, so another claim of the same dispatch has another folder.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Self

SPEC, RUNNER, RESULT, LOG = "spec.json", "runner.json", "result.json", "runner.log"
STDOUT, STDERR = "stdout", "stderr"
ANSWER = "answer"  # a Python function's result, apart from what it prints
RESULT_BYTES_MAX = 320 * 1024  # of the result file: both ends of three streams, as base64
EDGE_BYTES = 32 * 1024  # of each end of a stream, in the result file: enough for a report even when the disk is full
ENDED, TAKEN, BROKEN = 0, 75, 70  # exit status of a runner; TAKEN: another one has this call
DISPATCH_VARIABLE = "RUNFOLD_DISPATCH"  # in the environment of every tool: finds what outlived its runner


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What one call may use. A limit reached ends the call, or makes the tool's own system call fail."""

    time_limit_s: float = 120.0
    grace_s: float = 1.0  # between TERM and KILL
    cpu_s: int = 600  # processor time of each process: wall-clock time ends most calls earlier
    memory_bytes: int = 2 * 1024**3  # of data of each process; its address space may be four times as large
    file_bytes: int = 1024**3  # of each file it writes
    scratch_bytes: int = 256 * 1024**2  # of its private /tmp, which lies in memory; only in a sandbox
    processes: int = 128  # processes and threads at once: a build needs dozens, a fork bomb thousands
    open_files: int = 1024
    output_bytes: int = 16 * 1024**2  # kept of each stream; the rest is counted and thrown away, its end kept


@dataclass(frozen=True, kw_only=True)
class Cage:
    """How far the tool is kept apart from the host."""

    namespaces: str = ""  # root: made by the super-user; user: inside a user namespace; empty: none
    uid: int | None = None  # user and group id to run under; None: the runner's own
    sandbox: bool = False  # sees nothing but its workspace and read-only folders, and has no network
    readable: list[str] = field(default_factory=list)  # folders and files beside the system's own


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One call, as the runner is told of it."""

    dispatch: str
    nonce: str
    boot_id: str  # of the host on which this was written
    kind: str  # command, function or builtin
    target: list[str]  # the command and its arguments; or one name: package.module:function, or of the built-in tool
    arguments: str  # JSON object as text
    python: str = ""  # interpreter for functions and execute_code
    python_path: list[str] = field(default_factory=list)  # where functions are imported from
    environment: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)  # names only: the values are in the runner's own environment
    workspace: str = ""  # the run's folder, made when it is missing; empty: none
    bounds: Bounds = field(default_factory=Bounds)
    cage: Cage = field(default_factory=Cage)

    @classmethod
    def read(cls, folder: str) -> Self:
        found = read_json(os.path.join(folder, SPEC)) or {}
        return cls(**{**found, "bounds": Bounds(**found["bounds"]), "cage": Cage(**found["cage"])})

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_json(path: str) -> dict[str, Any] | None:
    """A file of a call's folder. None if it is not there, or was lost half-written in a power cut."""
    try:
        with open(path, "rb") as file:
            found: dict[str, Any] = json.load(file)
            return found
    except (FileNotFoundError, ValueError):
        return None


def write_once(path: str, value: dict[str, Any]) -> bool:
    """Write a file that appears whole or not at all. False if it was there before.

    It need not outlive a power cut: what it says is of this start of the machine.
    """
    aside = f"{path}.{os.getpid()}"
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(value, file)
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        with suppress(FileNotFoundError):
            os.unlink(aside)
    return True


def reserve(folder: str) -> str:
    """Room for a result, taken before anything starts: a tool that fills the disk does not take its outcome along."""
    path = os.path.join(folder, f"reserved.{os.getpid()}")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        os.posix_fallocate(file.fileno(), 0, RESULT_BYTES_MAX)
    return path


def write_result(folder: str, reserved: str, value: dict[str, Any]) -> None:
    """The file appears whole or not at all, outlives a power cut, and needs no more room than was reserved."""
    with open(reserved, "r+", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        file.truncate()
        os.fsync(file.fileno())
    os.replace(reserved, os.path.join(folder, RESULT))


def boot_id() -> str:
    """Changes with every start of the machine: process ids of an earlier one mean nothing."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def start_time(pid: int) -> int | None:
    """When a process began, in clock ticks since the machine's start. With the id it names one process for ever."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(b")")[2].split()[19])  # the name in the parentheses may hold anything
