"""The users that tools run under, and how many processes the kernel counts for them."""

import os
import re
from contextlib import suppress

from runfold.runner.contract import Cage


def processes_max(cage: Cage, wanted: int) -> int:
    """The limit to ask for, so that the tool may have as many as wanted.

    The kernel counts processes by user, and since 5.14 by user namespace as well. A user of the tool's own, or a
    namespace, begins with none; otherwise everything else that this user runs counts too.
    """
    if cage.uid is not None or (cage.namespaces == "user" and _kernel() >= (5, 14)):
        return wanted
    return wanted + _threads_of(os.geteuid())


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])


def _threads_of(uid: int) -> int:
    count = 0
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                count += len(os.listdir(f"/proc/{name}/task"))
    return count


def may_become(uid: int) -> bool:
    """Whether this process can run a tool under that user: it is root, and the user exists in its namespace."""
    if os.geteuid() != 0:
        return False
    with open("/proc/self/uid_map", encoding="ascii") as file:
        extents = [[int(number) for number in line.split()] for line in file]
    return any(first <= uid < first + count for first, _, count in extents)
