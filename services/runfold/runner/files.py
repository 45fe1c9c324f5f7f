"""The built-in tools that read and change files of the workspace: the working folder of the process that calls them.

Everything that goes wrong is a sentence for the model on standard output, and exit status 1.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from runfold.runner.paths import FOLDER, PARTS_MAX, Refused, folder, parts, plain_file

READ_BYTES_MAX = 16 * 1024 * 1024
ENTRIES_MAX = 1_000  # of a listing: more helps no model

Arguments = dict[str, Any]


def run(name: str, arguments: Arguments) -> int:
    """Answers the exit status."""
    root = os.open(".", FOLDER)
    try:
        said, status = TOOLS[name](root, arguments), 0
    except Refused as error:
        said, status = str(error).encode("utf-8", "replace"), 1
    except OSError as error:
        said, status = f"{arguments.get('path', '.')!r}: {error.strerror}".encode("utf-8", "replace"), 1
    with open(1, "wb", closefd=False) as out:
        out.write(said)
    return status


def _at(path: str) -> tuple[list[str], str]:
    """The folders on the way, and the last name."""
    names = parts(path)
    if not names:
        raise Refused("that is the workspace itself; name something in it")
    return names[:-1], names[-1]


def read_file(root: int, arguments: Arguments) -> bytes:
    above, name = _at(arguments["path"])
    with (
        folder(root, above) as here,
        plain_file(here, name, os.O_RDONLY) as opened,
        open(opened, "rb", closefd=False) as file,
    ):
        first, count = arguments.get("first_line"), arguments.get("lines")
        if first is None and count is None:
            return file.read(READ_BYTES_MAX)
        begin = max(1, first or 1)
        end = begin + count if count is not None else sys.maxsize
        return b"".join(line for number, line in enumerate(_lines(file), 1) if begin <= number < end)


def _lines(file: Any) -> Iterator[bytes]:
    room = READ_BYTES_MAX
    while room > 0 and (line := file.readline(room)):
        room -= len(line)
        yield line


def write_file(root: int, arguments: Arguments) -> bytes:
    above, name = _at(arguments["path"])
    content = arguments["content"].encode("utf-8", "replace")
    with folder(root, above, make=True) as here:
        if arguments.get("append"):
            with plain_file(here, name, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as opened:
                _write(opened, content)
        else:
            _replace(here, name, content)
    return f"wrote {len(content):,} bytes to {'/'.join([*above, name])}".encode()


def _replace(here: int, name: str, content: bytes) -> None:
    """The file is the old one or the new one, whatever happens in between. A link is replaced, never followed."""
    mode = 0o644
    with suppress(FileNotFoundError):
        found = os.stat(name, dir_fd=here, follow_symlinks=False)
        mode = stat.S_IMODE(found.st_mode) & 0o777 if stat.S_ISREG(found.st_mode) else mode
    aside = f".new-{os.urandom(8).hex()}"
    try:
        with plain_file(here, aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as opened:
            _write(opened, content)
            os.fchmod(opened, mode)
        os.replace(aside, name, src_dir_fd=here, dst_dir_fd=here)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(aside, dir_fd=here)
        raise


def _write(opened: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(opened, rest) :]


def list_files(root: int, arguments: Arguments) -> bytes:
    lines: list[str] = []
    names = parts(arguments.get("path") or ".")
    with folder(root, names) as here:
        _list(here, names, lines)
    if len(lines) > ENTRIES_MAX:
        lines[ENTRIES_MAX:] = [f"… more than {ENTRIES_MAX:,} entries; list a folder inside"]
    return "\n".join(lines or ["(empty)"]).encode("utf-8", "replace")


def _list(here: int, names: list[str], lines: list[str]) -> None:
    """Paths and sizes, a folder's own entries behind it."""
    with os.scandir(here) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if len(lines) > ENTRIES_MAX:
            return
        path = "/".join([*names, entry.name])
        if entry.is_symlink():
            lines.append(f"{path} -> {os.readlink(entry.name, dir_fd=here)} (symbolic link)")
        elif not entry.is_dir(follow_symlinks=False):
            lines.append(f"{path} ({entry.stat(follow_symlinks=False).st_size:,} bytes)")
        else:
            lines.append(f"{path}/")
            if len(names) < PARTS_MAX - 1:
                with suppress(OSError, Refused), folder(here, [entry.name]) as below:
                    _list(below, [*names, entry.name], lines)


def delete_file(root: int, arguments: Arguments) -> bytes:
    above, name = _at(arguments["path"])
    with folder(root, above) as here:
        if stat.S_ISDIR(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
            os.rmdir(name, dir_fd=here)
        else:
            os.unlink(name, dir_fd=here)
    return f"deleted {'/'.join([*above, name])}".encode()


TOOLS: dict[str, Callable[[int, Arguments], bytes]] = {
    "read_file": read_file, "write_file": write_file, "list_files": list_files, "delete_file": delete_file,
}  # fmt: skip
