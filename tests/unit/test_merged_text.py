"""Pieces of a reply's text, joined before they are published: few records, no character lost, none twice."""

from collections.abc import Callable
from random import Random

import pytest

from runfold.adapters.merged_text import MERGE_CHARS, MERGE_S, MergedText


class Timer:
    def __init__(self, at_s: float, act: Callable[[], None]) -> None:
        self.at_s, self.act, self.is_cancelled = at_s, act, False

    def cancel(self) -> None:
        self.is_cancelled = True


class Stream:
    """A text that comes in pieces, the time in which it comes, and what was shown of it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[Timer] = []
        self.shown: list[tuple[int, str]] = []
        self.shown_at_s: list[float] = []
        self.text = MergedText(self.show, self.later)

    def show(self, offset: int, text: str) -> None:
        self.shown.append((offset, text))
        self.shown_at_s.append(self.now_s)

    def later(self, delay_s: float, act: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now_s + delay_s, act))
        return self.timers[-1]

    def passes(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while due := [timer for timer in self.timers if timer.at_s <= until_s]:
            timer = min(due, key=lambda each: each.at_s)
            self.timers.remove(timer)
            self.now_s = timer.at_s
            if not timer.is_cancelled:
                timer.act()
        self.now_s = until_s


def test_pieces_that_come_together_are_one_record() -> None:
    """A piece waits for those behind it, and never longer than the bound."""
    stream = Stream()
    for piece in ("Hel", "lo ", "world"):
        stream.text.add(piece)
        stream.passes(0.01)
    assert stream.shown == []
    stream.passes(MERGE_S)
    assert stream.shown == [(0, "Hello world")]
    assert stream.shown_at_s == [MERGE_S]


def test_a_slow_text_is_shown_as_it_comes() -> None:
    """Each piece alone, and offsets count characters."""
    stream = Stream()
    for piece in ("é", "𝄞x", "!"):
        stream.text.add(piece)
        stream.passes(1.0)
    assert stream.shown == [(0, "é"), (1, "𝄞x"), (3, "!")]


def test_much_text_does_not_wait() -> None:
    """A record stays small, and a large piece is shown at once."""
    stream = Stream()
    stream.text.add("a" * (MERGE_CHARS - 1))
    assert stream.shown == []
    stream.text.add("bc")
    assert [offset for offset, _ in stream.shown] == [0]
    stream.text.add("d")
    stream.passes(MERGE_S)
    assert stream.shown[1:] == [(MERGE_CHARS + 1, "d")]


def test_the_tail_is_shown_when_the_text_ends() -> None:
    """At once, and once."""
    stream = Stream()
    stream.text.add("the end")
    stream.text.flush()
    stream.text.flush()
    stream.passes(1.0)
    assert stream.shown == [(0, "the end")]


def test_no_timer_is_left_behind() -> None:
    """Nothing waits for a text that is over, and nothing at all for one that never was."""
    stream = Stream()
    stream.text.add("")
    assert stream.timers == []
    stream.text.add("a")
    stream.text.flush()
    assert all(timer.is_cancelled for timer in stream.timers)


@pytest.mark.parametrize("seed", range(50))
def test_what_is_shown_joins_to_what_came(seed: int) -> None:
    """Whatever the pieces and the pauses: every character once, in order, at its offset, in time."""
    rng, stream, text = Random(seed), Stream(), ""
    for _ in range(rng.randrange(1, 60)):
        piece = "".join(rng.choice("abcé𝄞") for _ in range(rng.choice((0, 1, 3, 40, 900))))
        stream.text.add(piece)
        text += piece
        stream.passes(rng.choice((0.0, 0.001, 0.02, 0.2)))
        behind = len(text) - sum(len(piece) for _, piece in stream.shown)
        assert behind < MERGE_CHARS
    stream.text.flush()
    assert "".join(piece for _, piece in stream.shown) == text
    place = 0
    for offset, piece in stream.shown:
        assert (offset, bool(piece)) == (place, True)
        place += len(piece)
