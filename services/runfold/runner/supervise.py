"""Carries out one call: starts the tool, keeps what it prints, ends it in time, and leaves nothing behind."""

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from fcntl import F_DUPFD_CLOEXEC, F_SETPIPE_SZ, fcntl
from typing import Any

from runfold.runner import kernel
from runfold.runner.capture import READ_BYTES, Capture
from runfold.runner.contract import ANSWER, DISPATCH_VARIABLE, STDERR, STDOUT, Bounds, Plan
from runfold.runner.launch import DESCRIPTORS_FROM, Launch, launch
from runfold.runner.leftovers import end_all
from runfold.runner.programs import needed, program
from runfold.runner.users import processes_max

DRAIN_S = 1.0  # for the output of what was ended already
KILL_S = 5.0  # a process that does not die in this time hangs inside the kernel
NOT_STARTED: dict[str, Any] = {"left_running": 0}
STOPPED = "it was stopped, because nobody waits for it any more"


class StopSignal:
    """TERM, as a descriptor to wait for. The other signals that end programs are not meant for a runner."""

    def __init__(self) -> None:
        self.asked = False
        self.descriptor, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGTERM, self._ask)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # `end_all` waits for it

    def _ask(self, *_: object) -> None:
        self.asked = True


def carry_out(plan: Plan, folder: str, stop: StopSignal, report: Callable[[dict[str, Any]], None]) -> None:
    """Report the call's result, when nothing of the tool runs any more."""
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    started_at_ms, began = time.time_ns() // 1_000_000, time.monotonic()
    tool, told, reason = Tool(plan, folder), NOT_STARTED, ""
    try:
        if stop.asked:
            raise InterruptedError(STOPPED)
        tool.start(plan)
    except OSError as error:
        told = {**NOT_STARTED, "problem": f"it could not be started: {error}"}
    else:
        reason = _watch(tool, plan.bounds, stop)
        told = tool.end()
    result = {
        "dispatch": plan.dispatch,
        "nonce": plan.nonce,
        "started_at_ms": started_at_ms,
        "duration_ms": int((time.monotonic() - began) * 1000),
        **_outcome(told, reason, plan.bounds),
        "streams": {capture.name: capture.close() for capture in tool.captures},
        "left_running": told["left_running"],
    }
    report(result)
    tool.clear()


class Tool:
    """The tool's first process, its output, and the pipe that tells what became of it."""

    def __init__(self, plan: Plan, folder: str) -> None:
        self._scratch, self._base = os.path.join(folder, "scratch"), os.path.join(folder, "root")
        names = (STDOUT, STDERR, ANSWER) if plan.kind == "function" else (STDOUT, STDERR)
        pipes = [os.pipe() for _ in (*names, "status")]
        self._status = pipes[-1][0]
        self._writing = [writing for _, writing in pipes]
        self.captures = [
            Capture(name, reading, os.path.join(folder, name), plan.bounds.output_bytes)
            for name, (reading, _) in zip(names, pipes[:-1], strict=True)
        ]

    def start(self, plan: Plan) -> None:
        _make_folders(plan, self._scratch, self._base)
        stdin = _stdin("" if plan.kind == "builtin" else plan.arguments)
        handed = [_handed_over(each, plan.cage.uid) for each in (stdin, *self._writing)]
        self._pid = launch(
            Launch(
                program=program(plan),
                environment=_environment(plan),
                cage=plan.cage,
                bounds=replace(plan.bounds, processes=processes_max(plan.cage, plan.bounds.processes)),
                workspace=plan.workspace,
                scratch=self._scratch,
                base=self._base,
                needed=needed(plan),
                descriptors=tuple(handed[:-1]),
                status=handed[-1],
            )
        )
        for each in handed:
            os.close(each)
        self.pidfd = os.pidfd_open(self._pid)

    def ask_to_end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGTERM)

    def end(self) -> dict[str, Any]:
        """End what still runs. Answers what was told of it: how it ended, or what kept it from beginning."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        first = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        told: dict[str, Any] = {"left_running": end_all(KILL_S)}
        if first is not None and first.si_pid == self._pid:
            told["first"] = first.si_status if first.si_code == os.CLD_EXITED else -first.si_status
        for capture in self.captures:
            capture.drain(DRAIN_S)
        with open(self._status, "rb") as file:
            os.set_blocking(self._status, False)
            for line in (file.read() or b"").splitlines():
                told |= json.loads(line)
        os.close(self.pidfd)
        return told

    def clear(self) -> None:
        """Remove what it left in its own folder: last, because that may take long."""
        try:
            os.rmdir(self._scratch)
        except OSError:
            subprocess.run(["rm", "-rf", "--", self._scratch], check=False, stderr=subprocess.DEVNULL)


def _watch(tool: Tool, bounds: Bounds, stop: StopSignal) -> str:
    """Keep what it prints until it ended, or has to be killed. Answers why it had to end, if we made it."""
    reason, ends_at = "", time.monotonic() + bounds.time_limit_s
    with selectors.DefaultSelector() as selector:
        for capture in tool.captures:
            selector.register(capture.source, selectors.EVENT_READ, capture)
        for descriptor in (tool.pidfd, stop.descriptor):
            selector.register(descriptor, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(max(0.0, ends_at - time.monotonic())):
                if key.fd == tool.pidfd:
                    return reason
                if key.fd == stop.descriptor:
                    os.read(key.fd, 64)
                elif not key.data.read() and key.data.is_over:
                    selector.unregister(key.fd)  # closed, which does not mean that it ended
            if time.monotonic() >= ends_at and reason:
                return reason
            if not reason and (stop.asked or time.monotonic() >= ends_at):
                reason = STOPPED if stop.asked else f"it ran past its time limit of {bounds.time_limit_s:g} s"
                tool.ask_to_end()
                ends_at = time.monotonic() + bounds.grace_s


def _outcome(told: dict[str, Any], reason: str, bounds: Bounds) -> dict[str, Any]:
    """`status` is the tool's, told by process 1 of its namespaces; without those the first process was the tool."""
    if "problem" in told:
        return {"outcome": "failed", "reason": told["problem"], "exit_code": told.get("exit_code")}
    code = os.waitstatus_to_exitcode(told["status"]) if "status" in told else told["first"]
    exit_code = code if code >= 0 else 128 - code  # as a shell says it
    if not reason and code < 0:
        reason = {
            signal.SIGXCPU: f"it used up its {bounds.cpu_s} s of processor time",
            signal.SIGXFSZ: f"it wrote more than {bounds.file_bytes:,} bytes to one file",
        }.get(signal.Signals(-code), f"it was ended by signal {-code}")
    elif not reason and code > 0:
        reason = f"it ended with exit status {code}"
    return {"outcome": "failed" if reason else "succeeded", "reason": reason, "exit_code": exit_code}


def _make_folders(plan: Plan, scratch: str, base: str) -> None:
    for path in filter(None, (plan.workspace, scratch, base)):
        os.makedirs(path, 0o700, exist_ok=True)
    uid = plan.cage.uid
    if uid is not None:
        for path in filter(None, (plan.workspace, scratch)):
            os.chown(path, uid, uid)


def _stdin(text: str) -> int:
    """The arguments as a file without a name: a tool that never reads them blocks nobody."""
    descriptor = os.memfd_create("arguments")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(text.encode("utf-8", "replace"))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _handed_over(descriptor: int, uid: int | None) -> int:
    """The same under a number that is none of the tool's own, and open to its user: programs open /dev/stdout anew."""
    with suppress(OSError):
        fcntl(descriptor, F_SETPIPE_SZ, READ_BYTES)  # fewer turns for the same output
    if uid is not None:
        os.fchown(descriptor, uid, uid)
    moved = fcntl(descriptor, F_DUPFD_CLOEXEC, DESCRIPTORS_FROM)
    os.close(descriptor)
    return moved


def _environment(plan: Plan) -> dict[str, str]:
    secrets = {name: os.environ[name] for name in plan.secrets if name in os.environ}
    return {**plan.environment, **secrets, DISPATCH_VARIABLE: plan.dispatch}
