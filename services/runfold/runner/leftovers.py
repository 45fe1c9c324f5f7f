"""Finds and ends what a tool left running, also what it daemonised.

The runner is a subreaper: whatever loses its parent below it becomes its child, wherever it hides. So nothing is left
when it has no child any more.
"""

import os
import signal
import time
from collections import defaultdict
from contextlib import suppress


def descendants(of: int) -> list[int]:
    """Every process below this one, as far as a look into /proc can tell while they fork on."""
    children: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                children[int(file.read().rpartition(b")")[2].split()[1])].append(int(name))
    found: list[int] = []
    waiting = [of]
    while waiting:
        below = children.pop(waiting.pop(), [])
        found += below
        waiting += below
    return found


def end_all(within_s: float) -> int:
    """End every descendant of this process. Answers how many would not die in time.

    Stopped first, all of them: a process that is stopped does not fork while its siblings are being killed.
    SIGCHLD must be blocked.
    """
    ends_at = time.monotonic() + within_s
    while _reaped():
        found = descendants(os.getpid())
        if time.monotonic() >= ends_at:
            return len(found)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        signal.sigtimedwait([signal.SIGCHLD], 0.02)
    return 0


def _reaped() -> bool:
    """Take leave of the children that ended. False when there are no others."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
