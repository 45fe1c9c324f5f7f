"""Keeps what a tool prints: the whole in a file up to a cap, both ends in memory, and the size of everything."""

import base64
import os
import time

from runfold.runner.contract import EDGE_BYTES

READ_BYTES = 1024 * 1024


class Capture:
    """One stream. Reading never stops, so that a tool is never blocked by what nobody keeps."""

    def __init__(self, name: str, source: int, path: str, bytes_max: int) -> None:
        self.name = name
        self.source = source
        self.total = 0
        self.kept = 0
        self.is_over = False
        self._bytes_max = bytes_max
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._head = b""
        self._tail = b""
        os.set_blocking(source, False)

    def read(self) -> int:
        """Take what is there: so many bytes. 0 with `is_over` when nothing more can come."""
        try:
            chunk = os.read(self.source, READ_BYTES)
        except BlockingIOError:
            return 0
        self.is_over = not chunk
        self.total += len(chunk)
        if len(self._head) < EDGE_BYTES:
            self._head += chunk[: EDGE_BYTES - len(self._head)]
        self._tail = (self._tail + chunk[-EDGE_BYTES:])[-EDGE_BYTES:]
        self._keep(chunk[: self._bytes_max - self.kept])
        return len(chunk)

    def drain(self, within_s: float) -> None:
        """Take what is left in the pipe. Somebody outside may hold its other end, and write for ever."""
        ends_at = time.monotonic() + within_s
        while self.read() and time.monotonic() < ends_at:
            pass

    def _keep(self, chunk: bytes) -> None:
        rest = memoryview(chunk)
        try:
            while rest:
                written = os.write(self._file, rest)
                self.kept += written
                rest = rest[written:]
        except OSError:  # the disk is full: both ends are in memory, and the size will be told
            self._bytes_max = self.kept

    def close(self) -> dict[str, object]:
        """What the result file says of this stream."""
        os.close(self._file)
        os.close(self.source)
        ends = {"head": self._head, "tail": self._tail}
        return {"bytes": self.total, "kept": self.kept} | {
            name: base64.b64encode(end).decode() for name, end in ends.items()
        }
