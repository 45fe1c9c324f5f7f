"""Payloads too large for an event, by their sha256: in a folder, or in memory.

Store first, then write the event that mentions it: a ticket without a payload cannot exist. A payload is checked
against its digest when it is taken out.
"""

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from runfold.events.types import BlobRef


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
        return _checked(self._payloads[ref.sha256], ref)


class DirectoryBlobs:
    """A folder that all services share. A payload appears whole or not at all: written aside, synced, renamed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, sha256: str) -> Path:
        return self._folder / sha256[:2] / sha256

    def put(self, payload: bytes) -> BlobRef:
        ref = _ref(payload)
        path = self._path(ref.sha256)
        if path.exists() and path.stat().st_size == ref.size_bytes:
            return ref
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(payload)
                out.flush()
                os.fsync(out.fileno())
            os.replace(aside, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(aside)
            raise
        return ref

    def get(self, ref: BlobRef) -> bytes:
        try:
            payload = self._path(ref.sha256).read_bytes()
        except FileNotFoundError as error:
            raise LookupError(
                f"blob {ref.sha256} is not in {self._folder}: do all services share this folder?"
            ) from error
        return _checked(payload, ref)
