"""What a reader shows of a run's text while it is written: each character once, of the last effective call only."""

import re
from random import Random

import pytest

from runfold.core.live_text import CALLS_MAX, GAP, TEXT_CHARS_MAX, LiveText, Pieces
from runfold.events.types import (
    Item,
    ModelCallStarted,
    ModelFailed,
    ModelReplied,
    ModelTextDelta,
    RunFinished,
    Totals,
)

TEXT = "The 𝄞 quick brown fox jumps over the lazy dog. " * 3


def started(live: LiveText, call: str, attempt: int = 1) -> None:
    event = ModelCallStarted(turn=1, attempt=attempt, model="m", prompt_digest="", transcript_length=1, messages=[])
    live.take_event(call, event)


def says(live: LiveText, call: str, offset: int, text: str) -> None:
    live.take_delta(ModelTextDelta(model_call=call, offset=offset, text=text))


def fails(live: LiveText, call: str) -> None:
    live.take_event("f", ModelFailed(model_call=call, kind="broken_stream", message="cut", retryable=True))


def replies(live: LiveText, call: str, *items: Item) -> None:
    live.take_event("r", ModelReplied(model_call=call, items=list(items), finish_reason="stop"))


def text(said: str) -> Item:
    return Item(kind="text", text=said)


@pytest.mark.requirement("R29")
def test_text_grows_and_the_reply_replaces_it() -> None:
    """Also where the reply says more, or something else, than was shown."""
    live = LiveText()
    assert (live.text, live.is_reply) == ("", False)
    started(live, "a")
    says(live, "a", 0, "Hel")
    assert live.text == "Hel"
    says(live, "a", 3, "lo")
    assert (live.text, live.is_reply) == ("Hello", False)
    replies(live, "a", Item(kind="reasoning", text="hm"), text("Hello, "), text("world"), Item(kind="call", name="f"))
    assert (live.text, live.is_reply) == ("Hello, world", True)


@pytest.mark.requirement("R29")
def test_a_repeated_attempt_never_doubles_the_text() -> None:
    """The cut text stays until the next attempt begins, and is gone then; late pieces of it are not shown."""
    live = LiveText()
    started(live, "a")
    says(live, "a", 0, "Hello, w")
    fails(live, "a")
    assert live.text == "Hello, w"
    started(live, "b", attempt=2)
    assert live.text == ""
    says(live, "b", 0, "Hello")
    says(live, "a", 8, "orld")
    assert live.text == "Hello"
    says(live, "b", 5, ", world")
    replies(live, "b", text("Hello, world"))
    says(live, "b", 0, "Hello, world")
    assert live.text == "Hello, world"


def test_pieces_may_come_before_their_call_is_known() -> None:
    """Another topic, read by another connection: it may be ahead, by an attempt even."""
    live = LiveText()
    says(live, "a", 0, "Hi")
    says(live, "b", 0, "Hello")
    assert live.text == ""
    started(live, "a")
    assert live.text == "Hi"
    started(live, "b", attempt=2)
    assert live.text == "Hello"


def test_a_reply_to_another_call_changes_nothing() -> None:
    """It came too late: it was paid for, and is not what the run goes on from."""
    live = LiveText()
    started(live, "a")
    started(live, "b", attempt=2)
    says(live, "b", 0, "new")
    replies(live, "a", text("old"))
    assert (live.text, live.is_reply) == ("new", False)


def test_a_refusal_is_text_and_an_answer_without_text_is_empty() -> None:
    """As the transcript has it."""
    live = LiveText()
    started(live, "a")
    replies(live, "a", Item(kind="refusal", text="I will not"))
    assert live.text == "I will not"
    started(live, "b")
    says(live, "b", 0, "I shall")
    replies(live, "b", Item(kind="call", name="f"))
    assert (live.text, live.is_reply) == ("", True)


def test_the_end_of_a_run_leaves_its_text_as_it_is() -> None:
    """What was said was said, whole or not."""
    live = LiveText()
    started(live, "a")
    says(live, "a", 0, "Hel")
    live.take_event("end", RunFinished(status="cancelled", totals=Totals()))
    assert (live.text, live.is_reply) == ("Hel", False)


def test_what_is_missing_is_a_gap_until_it_comes() -> None:
    """Text for eyes may be lost; what is there is shown all the same."""
    live = LiveText()
    started(live, "a")
    says(live, "a", 6, "world")
    assert live.text == f"{GAP}world"
    says(live, "a", 0, "Hel")
    assert live.text == f"Hel{GAP}world"
    says(live, "a", 2, "llo,")
    assert live.text == "Hello,world"


@pytest.mark.parametrize(("offset", "said"), [(-1, "xy"), (TEXT_CHARS_MAX, "x"), (2**62, "x"), (5, "")])
def test_a_piece_that_cannot_be_is_passed(offset: int, said: str) -> None:
    """Whoever writes to the topic may write anything."""
    live = LiveText()
    started(live, "a")
    says(live, "a", 0, "Hello")
    says(live, "a", offset, said)
    assert live.text == "Hello"


def test_pieces_of_few_calls_are_kept() -> None:
    """The one that is shown in any case; a flood of others costs a reader nothing."""
    live = LiveText()
    started(live, "a")
    says(live, "a", 0, "Hello")
    for number in range(1_000):
        says(live, f"x{number}", 0, "junk")
    assert len(live._pieces) == CALLS_MAX
    assert live.text == "Hello"


@pytest.mark.requirement("R29")
@pytest.mark.parametrize("seed", range(100))
def test_any_pieces_in_any_order_join_to_the_text(seed: int) -> None:
    """Overlapping, repeated, shuffled: each character once, at its place; and with a few lost, the others still."""
    rng = Random(seed)
    cuts = sorted(rng.sample(range(len(TEXT)), 12))
    bounds = list(zip([0, *cuts], [*cuts, len(TEXT)], strict=True))
    bounds += [(a, min(len(TEXT), a + rng.randrange(30))) for a in rng.sample(range(len(TEXT)), 8)]
    rng.shuffle(bounds)
    whole, some = Pieces(), Pieces()
    seen = [False] * len(TEXT)
    for number, (a, b) in enumerate(bounds):
        whole.put(a, TEXT[a:b])
        if number % 3:
            some.put(a, TEXT[a:b])
            seen[a:b] = [True] * (b - a)
    assert whole.joined() == TEXT
    assert [piece for _, piece in some.pieces if not piece] == []
    wanted = "".join(char if is_there else "\0" for char, is_there in zip(TEXT, seen, strict=True)).rstrip("\0")
    assert some.joined() == re.sub("\0+", GAP, wanted)
