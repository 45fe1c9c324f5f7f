"""Shows what a running call prints, piece by piece, from the files in which its runner keeps it."""

import os
from codecs import getincrementaldecoder
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from runfold.events.text import sanitised
from runfold.runner.contract import STDERR, STDOUT

CHUNK_BYTES_MAX = 16 * 1024  # of one piece: a reader takes in no more in a tenth of a second
SHOWN_BYTES_MAX = 256 * 1024  # of each stream; the rest is in the report
NOTE = "\n[more is not shown while it runs]\n"

Show = Callable[[str, str, str, int, str], None]  # dispatch, nonce, stream, offset in bytes, text
_decoder = getincrementaldecoder("utf-8")


class Output:
    """What was shown of one call. `show` must not block: it is called from the thread that watches all calls."""

    def __init__(self, folder: Path, dispatch: str, nonce: str, show: Show) -> None:
        self._folder, self._dispatch, self._nonce, self._show = folder, dispatch, nonce, show
        self._offsets = {STDOUT: 0, STDERR: 0}

    def look(self, *, is_over: bool = False) -> None:
        """Show what came since the last look. What comes faster than it is shown waits in the file."""
        for stream, offset in self._offsets.items():
            if offset <= SHOWN_BYTES_MAX:
                with suppress(OSError):  # not there yet
                    self._offsets[stream] = self._shown(stream, offset, is_over=is_over)

    def _shown(self, stream: str, offset: int, *, is_over: bool) -> int:
        file = os.open(self._folder / stream, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            chunk = os.pread(file, CHUNK_BYTES_MAX, offset)
        finally:
            os.close(file)
        decoder = _decoder("replace")
        text = decoder.decode(chunk, is_over)
        taken = len(chunk) - len(decoder.getstate()[0])  # a character that has not come whole waits for its rest
        if text:
            is_last = offset + taken > SHOWN_BYTES_MAX
            self._show(self._dispatch, self._nonce, stream, offset, sanitised(text) + (NOTE if is_last else ""))
        return offset + taken
