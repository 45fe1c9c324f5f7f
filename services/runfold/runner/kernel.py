"""System calls that Python 3.11 has no names for: namespaces, mounts, prctl, capabilities. Linux only."""

import ctypes
import fcntl
import os
import socket
import struct

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x0002_0000, 0x0400_0000, 0x0800_0000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x1000_0000, 0x2000_0000, 0x4000_0000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = 1024, 2048, 4096, 16384, 1 << 18, 1 << 21
MNT_DETACH = 2
ST_RELATIME = 4096  # in what statvfs says; as a mount flag this bit means something else

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
CAP_KILL = 5
_CAPABILITY_VERSION_3 = 0x2008_0522

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def prctl(option: int, value: int) -> None:
    _call("prctl", ctypes.c_int(option), *(ctypes.c_ulong(each) for each in (value, 0, 0, 0)))


def unshare(flags: int) -> None:
    _call("unshare", ctypes.c_int(flags))


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    _call(
        "mount",
        *(text.encode() if text else None for text in (source, target, kind)),
        ctypes.c_ulong(flags),
        options.encode() if options else None,
    )


def change_root(new: str) -> None:
    """Make a mount point the root of this mount namespace, and let go of everything outside."""
    os.chdir(new)
    _call("pivot_root", b".", b".")  # the old root now lies on top of the new one
    _call("umount2", b".", ctypes.c_int(MNT_DETACH))
    os.chdir("/")


def keep_capabilities(*kept: int) -> None:
    """Drop all others. Whatever this process executes gets none either, with PR_SET_NO_NEW_PRIVS."""
    mask = sum(1 << each for each in kept)
    low, high = mask & 0xFFFF_FFFF, mask >> 32
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    _call("capset", header, struct.pack("6I", low, low, 0, high, high, 0))


def raise_loopback() -> None:
    """A new network namespace has only a loopback interface, and that one is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
        (flags,) = struct.unpack_from("H", request, 16)
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))
