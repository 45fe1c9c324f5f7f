"""Payloads too large for an event, by their sha256: in a folder, or in memory.

Store first, then write the event that mentions it: a ticket without a payload cannot exist. A payload is checked
against its size and digest when it is taken out.
"""

import hashlib
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from runfold.events.types import BlobRef

DIGEST = re.compile(r"[0-9a-f]{64}")
SWEPT_AFTER_S = 3600  # nobody writes one payload for so long
WRITE_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def _ref(payload: bytes) -> BlobRef:
    return BlobRef(sha256=hashlib.sha256(payload).hexdigest(), size_bytes=len(payload))


def _checked(payload: bytes, ref: BlobRef) -> bytes:
    if _ref(payload) != ref:
        raise LookupError(f"blob {ref.sha256}: what is stored is not the payload its event names")
    return payload


class MemoryBlobs:
    """For tests and simulations."""

    def __init__(self) -> None:
        self._payloads: dict[str, bytes] = {}

    def put(self, payload: bytes) -> BlobRef:
        ref = _ref(payload)
        self._payloads[ref.sha256] = payload
        return ref

    def get(self, ref: BlobRef) -> bytes:
        payload = self._payloads.get(ref.sha256)
        if payload is None:
            raise LookupError(f"blob {ref.sha256} is not there")
        return _checked(payload, ref)


class DirectoryBlobs:
    """A folder that all services share. A payload appears whole or not at all: written aside, synced, renamed.

    What a killed process wrote aside stays in `.new` until a service sweeps it, and is never taken for a payload.
    Files have the permissions that the process' umask leaves: services of several users may share a folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._aside = folder / ".new"

    def _path(self, sha256: str) -> Path:
        return self._folder / sha256[:2] / sha256

    def put(self, payload: bytes) -> BlobRef:
        ref = _ref(payload)
        path = self._path(ref.sha256)
        with suppress(FileNotFoundError):
            if path.stat().st_size == ref.size_bytes:
                return ref
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            _sync(self._folder)
        aside = self._aside / os.urandom(8).hex()
        self._aside.mkdir(exist_ok=True)
        try:
            with os.fdopen(os.open(aside, WRITE_NEW, 0o666), "wb") as out:
                out.write(payload)
                out.flush()
                os.fsync(out.fileno())
            os.replace(aside, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(aside)
            raise
        _sync(path.parent)
        return ref

    def sweep(self) -> int:
        """Delete what killed processes left aside long ago. Answers how many files that were."""
        swept, horizon_s = 0, time.time() - SWEPT_AFTER_S
        with suppress(OSError), os.scandir(self._aside) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # another service sweeps, too
                    if entry.stat().st_mtime < horizon_s:
                        os.unlink(entry.path)
                        swept += 1
        return swept

    def get(self, ref: BlobRef) -> bytes:
        if not DIGEST.fullmatch(ref.sha256):  # it came from the log: it must not lead out of the folder
            raise LookupError(f"blob {ref.sha256[:80]!r}: that is not a sha256")
        path = self._path(ref.sha256)
        try:
            size_bytes = path.stat().st_size
            payload = path.read_bytes() if size_bytes == ref.size_bytes else b""
        except FileNotFoundError as error:
            raise LookupError(
                f"blob {ref.sha256} is not in {self._folder}: do all services share this folder?"
            ) from error
        return _checked(payload, ref)


def _sync(folder: Path) -> None:
    """A new name is in its folder only when the folder is written, too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
