"""What the commands write to a terminal, and what they read of a stream."""

import io

import pytest

from runfold.cli import terminal
from runfold.cli.gateway_client import Seen, _events, run_path
from runfold.cli.watch import Screen

MARK = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"), ("two\nlines\t", "two\nlines\t"), ("\x1b[2Jgone", f"{MARK}[2Jgone"), ("a\rb", f"a{MARK}b"),
        ("\x9b31m", f"{MARK}31m"), ("\u202egnp.exe", f"{MARK}gnp.exe"), ("über 日本 👩\u200d🚀", "über 日本 👩\u200d🚀"),
        ("\x07\x00\x7f", MARK * 3),
    ],
)  # fmt: skip
def test_nothing_is_written_that_a_terminal_would_obey(text: str, shown: str) -> None:
    """Neither escapes nor carriage returns nor turned directions; letters of every script stay."""
    assert terminal.safe(text) == shown


def test_a_long_text_is_one_line() -> None:
    """With what is left out marked."""
    assert terminal.short("a\n  b\tc") == "a b c"
    assert terminal.short("x" * 300, 10) == "xxxxxxxxx…"


def test_every_terminal_status_has_its_exit_status() -> None:
    """As the design has them."""
    assert terminal.EXIT_STATUS == {
        "completed": 0, "failed": 1, "cancelled": 3, "timed_out": 4, "limit_exceeded": 4, "rejected": 5,
    }  # fmt: skip


def test_a_stream_is_read_as_it_is_specified() -> None:
    """Comments pass, an event ends with an empty line, one that is cut off does not count."""
    lines = b': alive\n\nid: 7\nevent: A\ndata: {"x": 1}\n\nevent:text\r\ndata:{}\r\n\r\nevent: cut\ndata: {}\n'
    assert list(_events(io.BytesIO(lines))) == [Seen("A", {"x": 1}, 7), Seen("text", {})]


def test_an_id_may_hold_anything() -> None:
    """It is one part of the path."""
    assert run_path("a/b?c d", "events") == "/runs/a%2Fb%3Fc%20d/events"


def events(*pieces: tuple[str, str, dict[str, object]]) -> list[Seen]:
    return [
        Seen(name, {"event_id": event_id, "at_ms": 0, "taken": "effective", "data": data})
        for name, event_id, data in pieces
    ]


@pytest.mark.requirement("R29")
def test_an_attempt_that_failed_does_not_double_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    """The text of the next attempt begins on a line of its own; the reply is not printed again."""
    screen = Screen("run")

    def text(call: str, offset: int, said: str) -> Seen:
        return Seen("text", {"model_call": call, "offset": offset, "text": said})

    reply = {"model_call": "two", "items": [{"kind": "text", "text": "hello world"}]}
    started = {"turn": 1, "attempt": 1}
    for seen in [
        *events(("ModelCallStarted", "one", started)), text("one", 0, "hel"), text("one", 0, "hel"),
        *events(("ModelFailed", "f", {"kind": "broken_stream", "message": "cut"})),
        *events(("ModelCallStarted", "two", {**started, "attempt": 2})), text("two", 0, "hello"), text("two", 5, " world"),
        *events(("ModelReplied", "r", reply)),
    ]:  # fmt: skip
        screen.take(seen)
    screen.end_line()
    lines = [line.partition("  ")[2] or line for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "turn 1: the model is called", "hel", "the model call failed: broken_stream: cut",
        "turn 1: the model is called (attempt 2)", "hello world",
    ]  # fmt: skip


def test_a_text_that_was_not_streamed_is_printed_with_its_reply(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever comes late, or lost pieces, sees the whole of it."""
    screen = Screen("run")
    reply = {
        "model_call": "one",
        "items": [{"kind": "text", "text": "hello"}, {"kind": "call", "name": "f", "arguments": "{}"}],
    }
    for seen in events(
        ("ModelCallStarted", "one", {"turn": 1, "attempt": 1}), ("ModelReplied", "r", reply),
        ("ToolReported", "t", {"model_call": "one", "position": 0, "outcome": "succeeded", "output": "a\x1bb"}),
    ):  # fmt: skip
        screen.take(seen)
    assert capsys.readouterr().out.splitlines()[1:] == ["hello", f"00:00:00.000  f({{}}) succeeded: a{MARK}b"]
