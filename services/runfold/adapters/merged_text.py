"""Joins the pieces of one reply's text: what comes within `MERGE_S` is one record of run-stream and not a dozen.

A model sends some fifty pieces a second, of a word each. Nobody reads that fast; for Kafka and for every reader of the
stream it would be fifty records with eight headers each. The first piece waits for those behind it, never longer than
the bound; who ends the call flushes the tail.

All of it happens on one thread, that of the event loop which reads the stream: the timers are the loop's.
"""

from collections.abc import Callable
from typing import Protocol

MERGE_S = 0.05  # a person sees no difference below a tenth of a second
MERGE_CHARS = 1024  # more is a record of its own


class Timer(Protocol):
    def cancel(self) -> None: ...


Later = Callable[[float, Callable[[], None]], Timer]  # seconds, and what to do then


class MergedText:
    """The text of one call. `show` gets an offset in characters, and a piece."""

    __slots__ = ("_held", "_held_chars", "_later", "_show", "_shown", "_timer")

    def __init__(self, show: Callable[[int, str], None], later: Later) -> None:
        self._show = show
        self._later = later
        self._held: list[str] = []
        self._held_chars = 0
        self._shown = 0
        self._timer: Timer | None = None

    def add(self, piece: str) -> None:
        """The next piece, as it came."""
        if not piece:
            return
        self._held.append(piece)
        self._held_chars += len(piece)
        if self._held_chars >= MERGE_CHARS:
            self.flush()
        elif self._timer is None:
            self._timer = self._later(MERGE_S, self.flush)

    def flush(self) -> None:
        """Show what is held. At the end of the call, whatever ends it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            offset, text = self._shown, "".join(self._held)
            self._shown += self._held_chars
            self._held.clear()
            self._held_chars = 0
            self._show(offset, text)
