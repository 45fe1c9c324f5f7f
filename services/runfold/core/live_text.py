"""What to show of a run's model text while it is written: the rule for whoever reads run-stream beside run-events.

Pure, one for each run. The two topics are read apart, so a piece may come before the ModelCallStarted of its call, long
after its reply, twice, or never: text for eyes is dropped under pressure, and kept for an hour only. The rule:

- only the last effective model call is shown: the text of an attempt that failed gives way as soon as the next begins;
- each character stands at its offset, so what comes twice or overlaps is there once; what is missing is a gap;
- its reply replaces the whole text, and is the truth.

Whether a ModelCallStarted is effective is the fold's to say (`fold.take`): hand in no other decisions.
"""

from bisect import bisect_right, insort
from dataclasses import dataclass, field

from runfold.core.transcript import text_of
from runfold.events.types import Event, ModelCallStarted, ModelReplied, ModelTextDelta

GAP = "…"  # one, however much is missing
CALLS_MAX = 4  # whose pieces are kept: a reader of run-stream may be some attempts ahead of run-events
TEXT_CHARS_MAX = 1024 * 1024  # of one call; a reply is at most 600 KiB


@dataclass(slots=True)
class Pieces:
    """Pieces of one text, each character once, in the order of their offsets."""

    pieces: list[tuple[int, str]] = field(default_factory=list)

    def put(self, offset: int, text: str) -> None:
        """Add what is not there yet of this piece."""
        end = offset + len(text)
        if offset < 0 or end > TEXT_CHARS_MAX:
            return
        place, at = bisect_right(self.pieces, offset, key=_offset), offset
        if place:
            at = max(at, _end(self.pieces[place - 1]))
        missing = []
        for known in self.pieces[place:]:
            if known[0] >= end:
                break
            if at < known[0]:
                missing.append((at, text[at - offset : known[0] - offset]))
            at = max(at, _end(known))
        if at < end:
            missing.append((at, text[at - offset :]))
        for piece in missing:
            insort(self.pieces, piece, key=_offset)

    def joined(self) -> str:
        found, at = [], 0
        for offset, text in self.pieces:
            if offset > at:
                found.append(GAP)
            found.append(text)
            at = offset + len(text)
        return "".join(found)


@dataclass(slots=True)
class LiveText:
    """The text to show of one run. Deltas and events may be handed in as they come, whichever topic is ahead."""

    model_call: str = ""  # the last effective one
    is_reply: bool = False  # the text is the reply's, not what came of it so far
    _reply: str = ""
    _pieces: dict[str, Pieces] = field(default_factory=dict)  # by model call, the one seen first at first

    @property
    def text(self) -> str:
        if self.is_reply:
            return self._reply
        pieces = self._pieces.get(self.model_call)
        return "" if pieces is None else pieces.joined()

    def take_delta(self, delta: ModelTextDelta) -> None:
        """A record of run-stream."""
        if self.is_reply and delta.model_call == self.model_call:
            return
        pieces = self._pieces.get(delta.model_call)
        if pieces is None:
            pieces = self._pieces[delta.model_call] = Pieces()
            if len(self._pieces) > CALLS_MAX:
                del self._pieces[next(call for call in self._pieces if call != self.model_call)]
        pieces.put(delta.offset, delta.text)

    def take_event(self, event_id: str, event: Event) -> None:
        """A fact of the run, or a decision of it that was accepted and effective; others change nothing."""
        if isinstance(event, ModelCallStarted):
            self._pieces.pop(self.model_call, None)
            self.model_call = event_id
            self.is_reply, self._reply = False, ""
        elif isinstance(event, ModelReplied) and event.model_call == self.model_call:
            self._pieces.pop(self.model_call, None)
            self.is_reply, self._reply = True, text_of(event.items)


def _offset(piece: tuple[int, str]) -> int:
    return piece[0]


def _end(piece: tuple[int, str]) -> int:
    return piece[0] + len(piece[1])
