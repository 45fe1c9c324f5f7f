"""Walks inside a folder that somebody hostile may have filled, and never out of it.

Each part of a path is opened below the folder opened before, and no symbolic link is followed. So it does not matter
what a path says, or what becomes of a folder while it is walked: what is opened lies in the folder.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PREFIX = "/workspace/"  # what a sandbox's programs call the folder
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a pipe or a device blocks nobody
NO_FILE = (errno.ELOOP, errno.ENXIO, errno.EISDIR)  # a link; a pipe or socket with nobody at its other end; a folder
PARTS_MAX = 64


class Refused(Exception):
    """This path leads out of the workspace, or to no plain file. The message is for the model."""


def parts(path: str) -> list[str]:
    """The names on the way. Empty for the workspace itself."""
    if "\0" in path or path.encode(errors="ignore") != path.encode(errors="surrogatepass"):
        raise Refused("that is no path: it has a character that no file name can have")
    inside = path.removeprefix(PREFIX) if path.startswith(PREFIX) else "" if path == PREFIX.rstrip("/") else path
    names = [name for name in inside.split("/") if name not in ("", ".")]
    if inside.startswith("/") or ".." in names:
        raise Refused(f"{path!r} leads out of the workspace; paths are relative to it")
    if len(names) > PARTS_MAX:
        raise Refused(f"a path has at most {PARTS_MAX} parts")
    return names


@contextmanager
def folder(root: int, names: list[str], *, make: bool = False) -> Iterator[int]:
    """A folder below an open one, open as long as the block lasts."""
    here = os.dup(root)
    try:
        for index, name in enumerate(names):
            try:
                below = _entered(here, name, make=make)
            except NotADirectoryError as error:
                shown = "/".join(names[: index + 1])
                raise Refused(f"{shown!r} is no folder; symbolic links are not followed") from error
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def _entered(here: int, name: str, *, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=here)
    return os.open(name, FOLDER, dir_fd=here)


@contextmanager
def plain_file(here: int, name: str, flags: int) -> Iterator[int]:
    """A file in an open folder, open as long as the block lasts. Refuses everything else that may bear the name."""
    try:
        opened = os.open(name, flags | PLAIN, 0o666, dir_fd=here)
    except OSError as error:
        if error.errno in NO_FILE:
            raise Refused(f"{name!r} is no plain file; symbolic links are not followed") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise Refused(f"{name!r} is no plain file")
        yield opened
    finally:
        os.close(opened)
