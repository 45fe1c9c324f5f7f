"""What a tool sees of the file system. Runs in a mount namespace of its own, before any code of the tool."""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from glob import glob

from runfold.runner import kernel

WORKSPACE, TEMPORARY = "/workspace", "/tmp"  # noqa: S108  a /tmp that only this tool has
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Of /etc only what programs need to run: other files there may be readable for all and still nobody's business.
ETC = (
    "alternatives", "ca-certificates", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types",
    "nsswitch.conf", "protocols", "python3*", "services", "ssl", "timezone",
)  # fmt: skip
DEVICES = ("null", "zero", "full", "random", "urandom")
SHARED_MEMORY_BYTES = 64 * 1024**2


def keep_to_ourselves() -> None:
    """From here on no mount of ours is seen outside."""
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)


def sandbox(base: str, workspace: str, readable: Iterable[str], *, uid: int, temporary_bytes: int) -> None:
    """Make a root that holds the system's folders to read, one workspace to write, and a /tmp in memory; go there."""
    kernel.mount("tmpfs", base, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=4m")
    for folder in (*SYSTEM, *readable):
        _show(base, folder)
    os.makedirs(f"{base}/etc", exist_ok=True)
    for pattern in ETC:
        for path in glob(f"/etc/{pattern}"):
            _show(base, path)
    _write(f"{base}/etc/passwd", f"root:x:0:0:root:/:/bin/sh\nsandbox:x:{uid}:{uid}:sandbox:/tmp:/bin/sh\n")
    _write(f"{base}/etc/group", f"root:x:0:\nsandbox:x:{uid}:\n")
    _write(f"{base}/etc/hosts", "127.0.0.1 localhost\n")
    _devices(base)
    for place, size in ((TEMPORARY, temporary_bytes), ("/dev/shm", SHARED_MEMORY_BYTES)):  # noqa: S108  the tool's own
        os.makedirs(base + place, exist_ok=True)
        kernel.mount(
            "tmpfs", base + place, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"mode=1777,size={size},nr_inodes=64k"
        )
    if workspace:
        os.mkdir(base + WORKSPACE)
        kernel.mount(workspace, base + WORKSPACE, flags=kernel.MS_BIND)
        _restrict(base + WORKSPACE, kernel.MS_NOSUID | kernel.MS_NODEV)
    own_processes(f"{base}/proc")
    _restrict(base, kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_RDONLY)
    kernel.change_root(base)


def open_ways(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Let an unprivileged user reach these paths, where folders above them keep everybody else out.

    The first such folder is covered by an empty one, in which only the ways to these paths are rebuilt.
    """
    covered: dict[str, list[tuple[str, int, bool]]] = {}
    ours = set(writable)
    for path in _outermost({*ours, *readable}):
        closed = _closed_folder(path)
        if closed:
            opened = os.open(path, os.O_PATH)  # before it is covered
            covered.setdefault(closed, []).append((path, opened, path in ours))
    for closed, paths in covered.items():
        kernel.mount("tmpfs", closed, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m")
        for path, opened, may_write in paths:
            _stand_in(path, is_folder=os.path.isdir(f"/proc/self/fd/{opened}"))
            kernel.mount(f"/proc/self/fd/{opened}", path, flags=kernel.MS_BIND | kernel.MS_REC)
            os.close(opened)
            if not may_write:
                _read_only(path)
        _restrict(closed, kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_RDONLY)


def own_processes(place: str = "/proc") -> None:
    """The tool's own processes and no others. Refused in containers that hide parts of /proc: then there are none."""
    os.makedirs(place, exist_ok=True)
    with suppress(PermissionError):
        kernel.mount("proc", place, "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)


def _outermost(paths: set[str]) -> list[str]:
    """Those that exist and lie in no other."""
    found: list[str] = []
    there = {each for path in paths if os.path.exists(path) for each in (os.path.abspath(path), os.path.realpath(path))}
    for path in sorted(there):
        if not found or not path.startswith(f"{found[-1].rstrip('/')}/"):
            found.append(path)
    return found


def _closed_folder(path: str) -> str:
    """The first folder above a path through which only its owner may go; empty if there is none."""
    above = ""
    for part in path.split("/")[1:-1]:
        above = f"{above}/{part}"
        if not os.stat(above).st_mode & 0o001:
            return above
    return ""


def _show(base: str, path: str) -> None:
    """Make a folder or a file of the host readable at the same place; a symbolic link stays one."""
    if os.path.lexists(base + path) or not os.path.lexists(path):
        return
    if os.path.islink(path):
        os.makedirs(os.path.dirname(base + path), exist_ok=True)
        os.symlink(os.readlink(path), base + path)
        return
    _stand_in(base + path, is_folder=os.path.isdir(path))
    kernel.mount(path, base + path, flags=kernel.MS_BIND | kernel.MS_REC)
    _read_only(base + path)


def _stand_in(path: str, *, is_folder: bool) -> None:
    """Something to mount over."""
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder:
        _write(path, "")


def _devices(base: str) -> None:
    os.mkdir(f"{base}/dev")
    for name in DEVICES:
        _write(f"{base}/dev/{name}", "")
        kernel.mount(f"/dev/{name}", f"{base}/dev/{name}", flags=kernel.MS_BIND)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{base}/dev/{name}")


def _read_only(path: str) -> None:
    """A mount and all mounts inside it."""
    with open("/proc/self/mountinfo", "rb") as file:
        places = [line.split()[4] for line in file]
    for written in places:
        place = os.fsdecode(re.sub(rb"\\(\d{3})", lambda found: bytes([int(found[1], 8)]), written))
        if place == path or place.startswith(f"{path}/"):
            _restrict(place, kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_RDONLY)


def _restrict(path: str, flags: int) -> None:
    """Add flags to a mount. Those it has must be named again: a user namespace may not take them away."""
    had = os.statvfs(path).f_flag
    flags |= had & (
        kernel.MS_RDONLY
        | kernel.MS_NOSUID
        | kernel.MS_NODEV
        | kernel.MS_NOEXEC
        | kernel.MS_NOATIME
        | kernel.MS_NODIRATIME
    )
    flags |= kernel.MS_RELATIME if had & kernel.ST_RELATIME else 0
    kernel.mount("none", path, flags=kernel.MS_REMOUNT | kernel.MS_BIND | flags)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
