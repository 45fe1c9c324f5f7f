"""Two threads for the processes of all calls. One starts their runners, waits for their ends, stops them, and shows
their output meanwhile; the other reports, because a blob store may be slow.

Calls wait as process descriptors in one poll. What is to be done about a call is decided on the watching thread alone,
from what its folder says (`Spool.look`); other threads hand in what they want.
"""

import os
import select
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from runfold.adapters.process_output import Output
from runfold.adapters.process_spool import Spool, Standing, Traces, end_marked, remove
from runfold.runner.contract import LOG, Plan

STOP_S = 2.0  # after this a stopped call's runner is killed, and with it, by the kernel, the tool
SHOW_S = 0.1  # between two looks at the output of running calls
SWEEP_S = 3600.0
CLOSE_S = 5.0  # for each thread to end; a report that hangs in the blob store is left to the next executor
LOG_CHARS_MAX = 500  # of what a broken runner complained of
NEVER_S = float("inf")


@dataclass(slots=True, eq=False)
class Call:
    """One call that is watched. Both callbacks come from the reporting thread; one of them, once."""

    dispatch: str
    folder: Path
    ended: Callable[[], None]  # its result is there
    lost: Callable[[str], None]  # there will be none, for this reason
    spawn: Callable[[], int] | None = None  # starts a runner for it and answers its process id
    plan: Plan | None = None  # to be written down first, for a call that begins
    output: Output | None = None
    spawned: bool = False
    pidfd: int = -1
    kill_at: float = NEVER_S


class Watch:
    def __init__(
        self, spool: Spool, *, at_once_max: int, keep_s: tuple[float, float], tell: Callable[[str], None]
    ) -> None:
        self._spool = spool
        self._at_once_max = at_once_max
        self._keep_s = keep_s
        self._tell = tell
        self._asked: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._reports: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._calls: dict[Path, Call] = {}
        self._running: dict[int, Call] = {}  # by process descriptor
        self._waiting: deque[Call] = deque()  # for others to end
        self._is_closed = False
        self._show_at = self._sweep_at = time.monotonic()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)
        work = (("tool processes", self._watch), ("tool reports", self._report))
        self._threads = [threading.Thread(target=target, name=name, daemon=True) for name, target in work]
        for thread in self._threads:
            thread.start()

    # ---- from any thread

    def follow(self, call: Call) -> None:
        """Watch a call to its end. One that is watched already stays as it is."""
        self._ask(lambda: self._follow(call))

    def stop(self, dispatch: str) -> None:
        """Nobody waits for this dispatch any more: end what runs, forget what ended."""
        self._ask(lambda: self._stop(dispatch))

    def later(self, work: Callable[[], None]) -> None:
        """On the reporting thread."""
        self._reports.put(work)

    def close(self) -> None:
        """Let go of everything: what runs goes on."""
        self._ask(self._close)
        for thread in self._threads:
            thread.join(CLOSE_S)
        if not self._threads[0].is_alive():
            os.close(self._bell)

    def _ask(self, work: Callable[[], None]) -> None:
        self._asked.put(work)
        if not self._is_closed:
            os.eventfd_write(self._bell, 1)

    # ---- the reporting thread

    def _report(self) -> None:
        while (work := self._reports.get()) is not None:
            self._guarded(work)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # noqa: BLE001  what one call meets must not stop the others
            self._tell(f"process tools: {traceback.format_exc()}")

    # ---- the watching thread

    def _watch(self) -> None:
        while not self._is_closed:
            for descriptor, _ in self._poll.poll(1000 * self._pause_s()):
                if descriptor == self._bell:
                    os.eventfd_read(self._bell)
                else:
                    self._guarded(partial(self._ended, self._running[descriptor]))
            while not self._asked.empty():
                self._guarded(self._asked.get())
            self._guarded(self._on_time)
        self._reports.put(None)

    def _pause_s(self) -> float:
        shows = any(call.output is not None for call in self._running.values())
        due = min([self._sweep_at, *([self._show_at] if shows else []), *(c.kill_at for c in self._running.values())])
        return max(0.0, due - time.monotonic())

    def _on_time(self) -> None:
        now = time.monotonic()
        for call in self._running.values():
            if now >= call.kill_at:
                call.kill_at = NEVER_S
                self._signal(call, signal.SIGKILL)
        if now >= self._show_at:
            self._show_at = now + SHOW_S
            for call in self._running.values():
                if call.output is not None:
                    call.output.look()
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_S
            sweep = partial(self._guarded, partial(self._spool.sweep, *self._keep_s))
            threading.Thread(target=sweep, name="tool traces", daemon=True).start()  # may take long

    def _follow(self, call: Call) -> None:
        if self._is_closed or call.folder in self._calls:
            return
        self._calls[call.folder] = call
        if call.plan is not None:
            try:
                self._spool.prepare(call.plan)
            except OSError as error:
                self._lose(call, f"It could not be started here: {error}.")
                return
        self._go_on(call)

    def _go_on(self, call: Call) -> None:
        """Do what the call's folder asks for."""
        traces = self._spool.look(call.folder)
        match traces.standing:
            case Standing.RUNNING:
                self._wait_for(call, traces.pidfd)
            case Standing.ENDED:
                self._forget(call)
                self._reports.put(call.ended)
            case Standing.WAITING if call.spawn is not None and not call.spawned:
                self._spawn(call, call.spawn)
            case Standing.WAITING:
                self._give_up(call, _complaint(call.folder))
            case _:
                end_marked(call.dispatch)
                self._lose(call, "Its runner ended without a result. What it had done by then is unknown.")

    def _spawn(self, call: Call, spawn: Callable[[], int]) -> None:
        if len(self._running) >= self._at_once_max:
            self._waiting.append(call)
            return
        call.spawned = True
        try:
            pidfd = os.pidfd_open(spawn())
        except OSError as error:
            self._give_up(call, f"{error}.")
            return
        self._wait_for(call, pidfd)

    def _give_up(self, call: Call, reason: str) -> None:
        """It waits, and no runner of ours will take it. Another executor's may have been faster."""
        try:
            is_ours = self._spool.give_up(call.folder)
        except OSError:  # no runner could take it either
            is_ours = True
        if is_ours:
            self._lose(call, f"It could not be started here: {reason}")
        else:
            self._go_on(call)

    def _wait_for(self, call: Call, pidfd: int) -> None:
        call.pidfd = pidfd
        self._running[pidfd] = call
        self._poll.register(pidfd, select.POLLIN)

    def _ended(self, call: Call) -> None:
        """A runner's process is over; which does not say that it was the one that had the call."""
        self._let_go(call)
        if call.output is not None:
            call.output.look(is_over=True)
        self._go_on(call)
        while self._waiting and len(self._running) < self._at_once_max:
            self._go_on(self._waiting.popleft())

    def _let_go(self, call: Call) -> None:
        with suppress(ChildProcessError):  # a runner that another executor started
            os.waitid(os.P_PIDFD, call.pidfd, os.WEXITED | os.WNOHANG)
        self._poll.unregister(call.pidfd)
        del self._running[call.pidfd]
        os.close(call.pidfd)

    def _lose(self, call: Call, reason: str) -> None:
        self._forget(call)
        self._reports.put(lambda: call.lost(reason))

    def _forget(self, call: Call) -> None:
        self._calls.pop(call.folder, None)

    def _stop(self, dispatch: str) -> None:
        watched = [call for call in self._calls.values() if call.dispatch == dispatch]
        for call in watched:
            if call in self._waiting:
                self._waiting.remove(call)
                self._forget(call)
                self._spool.give_up(call.folder)
            else:
                self._end(call)
        for folder in self._spool.calls_of(dispatch) if not watched else ():
            self._stop_unwatched(dispatch, folder, self._spool.look(folder))

    def _stop_unwatched(self, dispatch: str, folder: Path, traces: Traces) -> None:
        match traces.standing:
            case Standing.RUNNING:
                call = Call(dispatch, folder, ended=lambda: None, lost=lambda _: None)
                self._calls[folder] = call
                self._wait_for(call, traces.pidfd)
                self._end(call)
            case Standing.WAITING:
                self._spool.give_up(folder)
            case _:
                self._reports.put(lambda: remove(folder))

    def _end(self, call: Call) -> None:
        """Ask its runner, which ends the tool within its own grace; `_on_time` kills the runner if it does not."""
        self._signal(call, signal.SIGTERM)
        call.kill_at = min(call.kill_at, time.monotonic() + STOP_S)

    def _signal(self, call: Call, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(call.pidfd, number)

    def _close(self) -> None:
        self._is_closed = True
        for call in list(self._running.values()):
            self._let_go(call)
        self._calls.clear()
        self._waiting.clear()


def _complaint(folder: Path) -> str:
    """What a runner said that did not even take its call: the last line, since nobody but us can read a traceback."""
    try:
        lines = (folder / LOG).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        return f"{error}."
    return next((line[:LOG_CHARS_MAX] for line in reversed(lines) if line.strip()), "no reason given.")
