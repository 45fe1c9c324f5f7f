"""Starts the tool: its own session, user, namespaces, limits and descriptors, then its program.

With namespaces there are three processes, each the child of the one before. The first makes the namespaces; the second
is process 1 in them: it builds what the tool sees, and when it ends, the kernel ends everything inside. The third
becomes the tool. Without namespaces the first becomes the tool. Each is killed by the kernel when its parent dies, so
no tool outlives its runner. What goes wrong on the way is told through a pipe that the tool itself never has.
"""

import json
import os
import resource
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from runfold.runner import kernel, mounts
from runfold.runner.contract import BROKEN, Bounds, Cage

NOBODY = 65534
TOOL_NICENESS = 10  # an executor that tools keep from running loses its partitions
DESCRIPTORS_FROM = 64  # the runner keeps what it hands over above this, clear of the numbers the tool will know it by
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)


class CannotStart(Exception):
    """The program is not there, or is none. The exit code is the one a shell would give."""

    def __init__(self, name: str, error: OSError) -> None:
        super().__init__(f"{name!r} cannot be started: {error.strerror}")
        self.exit_code = 127 if isinstance(error, FileNotFoundError) else 126


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What is to be started. `program` becomes the tool and does not return, unless the tool is a function of ours."""

    program: Callable[[], int]
    environment: Mapping[str, str]
    cage: Cage
    bounds: Bounds
    workspace: str
    scratch: str
    base: str  # an empty folder, to build the sandbox on
    needed: tuple[str, ...]  # what the program must be able to read
    descriptors: tuple[int, ...]  # the tool's 0, 1, 2 and perhaps 3
    status: int  # where to tell what became of it; numbered above those

    @property
    def sees_sandbox(self) -> bool:
        return self.cage.sandbox and bool(self.cage.namespaces)

    @property
    def working_folder(self) -> str:
        if self.sees_sandbox:
            return mounts.WORKSPACE if self.workspace else mounts.TEMPORARY
        return self.workspace or self.scratch

    @property
    def temporary_folder(self) -> str:
        return mounts.TEMPORARY if self.sees_sandbox else self.scratch


def launch(start: Launch) -> int:
    """Answers the id of the first process."""
    runner = os.getpid()
    return os.fork() or _child(start, lambda: _first(start, runner))


def _child(start: Launch, work: Callable[[], int]) -> NoReturn:
    """Be a forked child: end here, whatever happens."""
    status = BROKEN
    try:
        status = work()
    except CannotStart as error:
        _tell(start, problem=str(error), exit_code=error.exit_code)
    except Exception as error:  # noqa: BLE001  a copy of the runner must not go on as a second runner
        _tell(start, problem=f"its place to run in could not be made: {error}")
    finally:
        os._exit(status)


def _tell(start: Launch, **what: object) -> None:
    os.write(start.status, json.dumps(what).encode() + b"\n")


def _first(start: Launch, runner: int) -> int:
    os.setsid()  # the runner's signals are not the tool's
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("500")  # when memory runs out, let it be the tool's
    os.nice(TOOL_NICENESS)
    cage = start.cage
    if not cage.namespaces:
        _become(cage.uid)
        _die_with_parent(lambda: os.getppid() == runner)
        return _tool(start)
    if cage.namespaces == "user":
        _become(cage.uid)
        _user_namespace()
    flags = kernel.CLONE_NEWPID | kernel.CLONE_NEWNS
    if cage.sandbox:
        flags |= kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    kernel.unshare(flags)
    _die_with_parent(lambda: os.getppid() == runner)
    alive, ours = os.pipe()
    init = os.fork() or _child(start, lambda: _init(start, alive, ours))
    signal.signal(signal.SIGTERM, lambda *_: _pass_on(init))
    os.waitpid(init, 0)
    return 0


def _user_namespace() -> None:
    """Full rights over namespaces of our own, none over anything else. The user stays the same inside."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # after a change of user, /proc/self belongs to root
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid or NOBODY} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _init(start: Launch, alive: int, ours: int) -> int:
    """Process 1 of the tool's namespaces."""
    os.setsid()
    os.close(ours)
    os.set_blocking(alive, False)
    _die_with_parent(lambda: not _is_over(alive))
    mounts.keep_to_ourselves()
    uid = os.geteuid() if start.cage.uid is None else start.cage.uid
    if start.sees_sandbox:
        kernel.raise_loopback()
        socket.sethostname("sandbox")
        readable = (*start.cage.readable, *start.needed)
        mounts.sandbox(start.base, start.workspace, readable, uid=uid, temporary_bytes=start.bounds.scratch_bytes)
    else:
        if start.cage.namespaces == "root":
            mounts.open_ways((*start.cage.readable, *start.needed), filter(None, (start.workspace, start.scratch)))
        mounts.own_processes()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # the tool may run under the same user: it must not look into us
    child = os.fork() or _child(start, lambda: _inside(start))
    kernel.keep_capabilities(kernel.CAP_KILL)
    signal.signal(signal.SIGTERM, lambda *_: _pass_on(-1))  # everybody in this namespace but process 1
    while True:
        pid, status = os.wait()
        if pid == child:
            _tell(start, status=status)
            return 0  # and with us everything that the tool left running


def _inside(start: Launch) -> int:
    if start.cage.namespaces == "root":
        _become(start.cage.uid)
    os.setsid()
    return _tool(start)


def _pass_on(to: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(to, signal.SIGTERM)


def _is_over(alive: int) -> bool:
    """Whether the other end of this pipe is closed: its holder died."""
    try:
        return not os.read(alive, 1)
    except BlockingIOError:
        return False


def _die_with_parent(is_there: Callable[[], bool]) -> None:
    """Asked for after every change of user, which takes it back. The parent may have died before."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if not is_there():
        os._exit(BROKEN)


def _become(uid: int | None) -> None:
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def _tool(start: Launch) -> int:
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.keep_capabilities()
    os.environ.clear()
    os.environ.update(start.environment, HOME=start.temporary_folder, TMPDIR=start.temporary_folder)
    os.umask(0o022)
    os.chdir(start.working_folder)
    _descriptors(start)
    _limits(start.bounds)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return start.program()


def _descriptors(start: Launch) -> None:
    """Give the tool its own, under their numbers, and nothing else; the status pipe closes itself at exec."""
    for number, each in enumerate(start.descriptors):
        os.dup2(each, number)
    os.closerange(len(start.descriptors), start.status)
    os.closerange(start.status + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _limits(bounds: Bounds) -> None:
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, bounds.cpu_s),
        (resource.RLIMIT_DATA, bounds.memory_bytes),
        (resource.RLIMIT_AS, 4 * bounds.memory_bytes),
        (resource.RLIMIT_FSIZE, bounds.file_bytes),
        (resource.RLIMIT_NPROC, bounds.processes),
        (resource.RLIMIT_NOFILE, bounds.open_files),
    ):
        hard = resource.getrlimit(kind)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # One second of processor time between the signal that can be understood and the one that kills.
        later = limit + 1 if kind == resource.RLIMIT_CPU and limit != hard else limit
        resource.setrlimit(kind, (limit, later))
