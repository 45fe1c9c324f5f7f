"""The folder in which calls of process tools leave their traces, so that the next executor finds them.

    id                 of this folder: a process is looked for where it left its traces
    calls/<name>/      one call; the name stands for dispatch and nonce. See `runner.contract`
    workspaces/<name>/ one run's files

Who is alive is asked of the kernel: a process id counts only together with the time its process began and the machine's
boot id, both written down by the runner itself.
"""

import hashlib
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from runfold.ports import Permanent
from runfold.runner import contract
from runfold.runner.contract import Plan

NAME_CHARS = 32  # of a digest: 128 bits


class Standing(Enum):
    """What the traces say of a call."""

    UNKNOWN = auto()  # nothing: it was never here, or is swept
    WAITING = auto()  # it was prepared, and no runner has taken it
    RUNNING = auto()
    ENDED = auto()  # its result is here
    GONE = auto()  # its runner is dead, and left no result


@dataclass(frozen=True, slots=True)
class Traces:
    standing: Standing
    pidfd: int = -1  # of the runner, while it runs: the caller's to close


class Spool:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._calls, self._workspaces = folder / "calls", folder / "workspaces"
        try:
            for each in (folder, self._calls, self._workspaces):
                each.mkdir(mode=0o711, parents=True, exist_ok=True)  # tools may go through, and see nothing
            contract.write_once(str(folder / "id"), {"id": os.urandom(8).hex()})
            self.id = str((contract.read_json(str(folder / "id")) or {})["id"])
            self._boot_id = contract.boot_id()
        except (OSError, KeyError) as error:
            raise Permanent(f"process tools keep their state in {folder}, which cannot be used: {error}") from error

    def call(self, dispatch: str, nonce: str) -> Path:
        return self._calls / f"{_name(dispatch)}-{_name(nonce)}"

    def calls_of(self, dispatch: str) -> list[Path]:
        """Under any nonce."""
        return list(self._calls.glob(f"{_name(dispatch)}-*"))

    def workspace(self, run_id: str, token: str = "") -> Path:
        """A run's folder; another one for each token."""
        return self._workspaces / _name(f"{run_id}\0{token}" if token else run_id)

    @property
    def boot_id(self) -> str:
        return self._boot_id

    def prepare(self, plan: Plan) -> None:
        """Write the plan down. A call that is here already stays as it is."""
        path = self.call(plan.dispatch, plan.nonce)
        aside = self._calls / f".new-{os.urandom(8).hex()}"
        aside.mkdir(mode=0o711)
        try:
            contract.write_once(str(aside / contract.SPEC), plan.as_json())
            aside.rename(path)
        except OSError:
            shutil.rmtree(aside, ignore_errors=True)
            if not path.is_dir():
                raise
        if plan.workspace:
            with suppress(FileNotFoundError):
                os.utime(plan.workspace)  # the sweep goes by the last use

    def look(self, path: Path) -> Traces:
        runner = contract.read_json(str(path / contract.RUNNER))
        if runner is not None and runner["boot_id"] == self._boot_id:
            pidfd = alive(runner["pid"], runner["start_time"])
            if pidfd is not None:
                return Traces(Standing.RUNNING, pidfd)
        if (path / contract.RESULT).exists():  # after the look for the runner, which writes it before it ends
            return Traces(Standing.ENDED)
        if runner is not None:
            return Traces(Standing.GONE)
        spec = contract.read_json(str(path / contract.SPEC))
        if spec is None:
            return Traces(Standing.UNKNOWN)
        return Traces(Standing.WAITING if spec["boot_id"] == self._boot_id else Standing.GONE)

    def give_up(self, path: Path) -> bool:
        """Take a waiting call, so that no runner can. False if one was faster."""
        nobody = {"pid": 0, "start_time": 0, "boot_id": self._boot_id, "nonce": ""}
        return contract.write_once(str(path / contract.RUNNER), nobody)

    def sweep(self, calls_older_than_s: float, workspaces_older_than_s: float) -> None:
        """Remove what nobody has touched for so long, and what does not run."""
        for path in _older(self._calls, calls_older_than_s):
            traces = self.look(path)
            if traces.standing is Standing.RUNNING:
                os.close(traces.pidfd)
            elif traces.standing is not Standing.WAITING or self.give_up(path):
                remove(path)
        for path in _older(self._workspaces, workspaces_older_than_s):
            remove(path)


def alive(pid: int, start_time: int) -> int | None:
    """A descriptor of this very process, or None: another one may have its id by now."""
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, OverflowError):
        return None
    # Read after the descriptor was opened: it cannot change any more. One that ended may wait for its parent to notice.
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    if contract.start_time(pid) == start_time and not ended.poll(0):
        return pidfd
    os.close(pidfd)
    return None


def end_marked(dispatch: str) -> None:
    """End whatever carries this dispatch in its environment: what a tool left when its runner was killed."""
    mark = f"{contract.DISPATCH_VARIABLE}={dispatch}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if _carries(process, mark):
                pidfd = os.pidfd_open(int(process.name))
                try:
                    if _carries(process, mark):  # still the same one
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                finally:
                    os.close(pidfd)


def _carries(process: Path, mark: bytes) -> bool:
    return mark in (process / "environ").read_bytes().split(b"\0")


def remove(path: Path) -> None:
    """A folder that a tool may have filled: to any depth, with folders that may not be entered, while it looks on."""
    subprocess.run(["rm", "-rf", "--", path], check=False, stderr=subprocess.DEVNULL)
    if path.exists():
        subprocess.run(["chmod", "-R", "u+rwX", "--", path], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["rm", "-rf", "--", path], check=False, stderr=subprocess.DEVNULL)


def _older(folder: Path, seconds: float) -> Iterator[Path]:
    before = time.time() - seconds
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < before:
                yield path


def _name(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:NAME_CHARS]
