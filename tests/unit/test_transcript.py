"""The transcript: order rules of model APIs, ids on the wire, arguments as models write them."""

import pytest

from runfold.core.decide_model import prompt_digest
from runfold.core.transcript import (
    Entry,
    Reply,
    Result,
    Results,
    UserMessage,
    call_id,
    check_order,
    extended_digest,
    parse_arguments,
    size_of,
    text_of,
)
from runfold.events.types import BlobRef, Item
from tests.builders import call, calling, dispatched, text

requirement = pytest.mark.requirement


def reply(*items: Item, name: str = "r") -> Reply:
    return Reply(model_call=name, turn=1, items=list(items))


def results(*positions: int, name: str = "r") -> Results:
    given = [Result(position=position, name="read", output="ok", outcome="succeeded") for position in positions]
    return Results(model_call=name, turn=1, results=given)


ASKS = UserMessage(text="hello")
IN_ORDER: dict[str, list[Entry]] = {
    "nothing": [],
    "an answer": [ASKS, reply(text("hi"))],
    "calls and results": [ASKS, reply(text("x"), call("read"), call("save")), results(0, 1), reply(text("done"))],
    "two answers, a message between": [ASKS, reply(text("a")), ASKS, reply(text("b"))],
}
OUT_OF_ORDER: dict[str, list[Entry]] = {
    "calls without results": [ASKS, reply(call("read")), reply(text("done"))],
    "calls at the end": [ASKS, reply(call("read"))],
    "a message before the results": [reply(call("read")), ASKS, results(0)],
    "results in another order": [reply(call("read"), call("read")), results(1, 0)],
    "a result is missing": [reply(call("read"), call("read")), results(0)],
    "a result too many": [reply(call("read")), results(0, 1)],
    "results of another reply": [reply(call("read")), results(0, name="other")],
    "results without a reply": [ASKS, results(0)],
}


@requirement("R4")
@pytest.mark.parametrize("transcript", IN_ORDER.values(), ids=IN_ORDER)
def test_a_valid_history_is_accepted(transcript: list[Entry]) -> None:
    """Every reply with calls is followed by exactly its results, in call order."""
    assert check_order(transcript) is None


@requirement("R4")
@pytest.mark.parametrize("transcript", OUT_OF_ORDER.values(), ids=OUT_OF_ORDER)
def test_an_invalid_history_is_named(transcript: list[Entry]) -> None:
    """A model API would refuse it, so the checker does."""
    assert "entry" in str(check_order(transcript))


def test_ids_on_the_wire_come_from_turn_and_position() -> None:
    """The provider's ids repeat, are empty or too long: ours are the same after every restart."""
    assert [call_id(3, 0), call_id(3, 1)] == ["call_3_0", "call_3_1"]
    long = Item(kind="call", name="read", provider_id="x" * 500)
    story = dispatched(long, Item(kind="call", name="read", provider_id="x" * 500))
    story.reports(1)
    story.reports(0)
    story.goes_on()
    assert check_order(story.state.transcript) is None


ARGUMENTS = {
    '{"a": 1}': ('{"a": 1}', {"a": 1}, ""),
    "": ("{}", {}, ""),
    "null": ("{}", {}, ""),
    '"{\\"a\\": 1}"': ('{"a": 1}', {"a": 1}, ""),
    "[]": ("{}", None, "a JSON object, not list"),
    "7": ("{}", None, "a JSON object, not int"),
    '{"a": Infinity}': ("{}", None, "Infinity is not JSON"),
    '{"a"': ("{}", None, "not valid JSON"),
    '"twice \\"quoted\\""': ("{}", None, "not valid JSON"),
    "[" * 100_000: ("{}", None, "not valid JSON"),
}


@requirement("R17")
@pytest.mark.parametrize(("written", "expected"), ARGUMENTS.items(), ids=[key[:20] or "empty" for key in ARGUMENTS])
def test_arguments_are_read_as_models_write_them(written: str, expected: tuple[str, object, str]) -> None:
    """What is wrong becomes a text for the model; the history repeats only valid JSON."""
    kept, value, problem = parse_arguments(written)
    assert (kept, value) == expected[:2]
    assert expected[2] in problem
    assert bool(problem) == bool(expected[2])


def test_the_digest_tells_histories_apart() -> None:
    """Every entry and every field that the model sees moves it."""
    entries: list[Entry] = [
        ASKS,
        UserMessage(text="hello", parts="[]"),
        UserMessage(ref=BlobRef(sha256="a", size_bytes=1)),
        reply(text("x")),
        reply(call("read")),
        reply(call("read", '{"a": 1}')),
        results(0),
    ]
    digests = {extended_digest("start", entry) for entry in entries} | {extended_digest("other", ASKS)}
    assert len(digests) == len(entries) + 1


def test_the_prompt_digest_depends_on_the_history_and_not_on_the_process() -> None:
    """Computed step by step or at once, before or after a restart: the same."""
    story, other = calling(), calling()
    for one in (story, other):
        one.replies(call("read"))
        one.goes_on()
        one.reports(0)
    prompt_digest(story.state)
    story.goes_on()
    other.goes_on()
    other.state.digest, other.state.digested = "", 0
    assert prompt_digest(story.state) == prompt_digest(other.state)


def test_sizes_count_what_a_model_would_read() -> None:
    """Estimates for providers that count nothing."""
    assert size_of(UserMessage(text="12345", ref=BlobRef(sha256="a", size_bytes=100))) == 105
    assert size_of(reply(text("123"), call("read", "{}"))) == 9
    assert size_of(results(0, 1)) == 4


def test_the_text_of_a_reply_leaves_reasoning_out() -> None:
    """What a person is shown is what was said, not what was thought."""
    assert text_of([Item(kind="reasoning", text="hm"), text("a"), call("read"), text("b")]) == "ab"


def test_half_a_surrogate_inside_wrapped_arguments_can_be_written() -> None:
    """It was escaped where the reply came in, and shows only once the string is unwrapped."""
    text, value, problem = parse_arguments('"{\\"a\\": \\"\\ud800\\"}"')
    assert problem == ""
    text.encode()
    assert value == {"a": "\ufffd"}
