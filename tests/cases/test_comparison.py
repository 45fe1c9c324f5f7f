"""What compares the replays is itself tried: each kind of difference, planted once, is found."""

import copy
from typing import Any

import pytest

from tests.cases.comparison import differences, order_problem, sent_differences

RECORDED: list[dict[str, Any]] = [
    {"role": "system", "text": "Be brief."},
    {"role": "user", "text": "Both?"},
    {
        "role": "assistant",
        "text": "",
        "calls": [{"name": "a", "arguments": '{"x": 1}'}, {"name": "b", "arguments": "{}"}],
    },
    {"role": "tool", "output": "one\0\ud83d"},
    {"role": "tool", "output": ""},
    {"role": "assistant", "text": "Done.", "calls": []},
]
CALLS: list[dict[str, Any]] = [
    {"id": "1", "type": "function", "function": {"name": "a", "arguments": '{"x":1}'}},
    {"id": "2", "type": "function", "function": {"name": "b", "arguments": "{}"}},
]
SENT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Both?"},
    {"role": "assistant", "content": "", "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "1", "content": "one\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"},
    {"role": "tool", "tool_call_id": "2", "content": "(no output)"},
]


def changed(items: list[dict[str, Any]], *path_and_value: Any) -> list[dict[str, Any]]:
    """A copy with one value changed."""
    *path, last, value = path_and_value
    made = copy.deepcopy(items)
    place: Any = made
    for step in path:
        place = place[step]
    place[last] = value
    return made


def test_what_is_equal_is_found_equal() -> None:
    """Spaces in arguments, documented sanitising and the placeholder of an empty output are no differences."""
    assert differences(RECORDED, RECORDED) == []
    assert sent_differences(RECORDED, SENT) == []
    assert order_problem(SENT) is None


@pytest.mark.parametrize(
    "found",
    [
        changed(RECORDED, 0, "text", "Be brief"),
        changed(RECORDED, 1, "role", "system"),
        changed(RECORDED, 2, "calls", 0, "name", "b"),
        changed(RECORDED, 2, "calls", 0, "arguments", '{"x": 2}'),
        changed(RECORDED, 2, "calls", RECORDED[2]["calls"][::-1]),
        changed(RECORDED, 3, "output", "one"),
        changed(RECORDED, 5, "text", "Done. "),
        [*RECORDED[:3], RECORDED[4], RECORDED[3], RECORDED[5]],
        RECORDED[:-1],
        [*RECORDED, RECORDED[1]],
    ],
)
def test_a_difference_is_found(found) -> None:
    """In a role, a text, a name, an argument, an output, an order, a number of items."""
    assert differences(RECORDED, found)


@pytest.mark.parametrize(
    "messages",
    [
        SENT[:4],
        [*SENT[:3], SENT[4], SENT[3]],
        [*SENT[:3], SENT[1], *SENT[3:]],
        [*SENT, SENT[4]],
        [*SENT, SENT[0]],
        [*SENT, *SENT[2:]],
        changed(SENT, 1, "content", ""),
        changed(SENT, 4, "content", None),
        changed(SENT, 2, "tool_calls", 0, "id", ""),
        changed(SENT, 2, "tool_calls", 1, "id", "1"),
        changed(SENT, 2, "tool_calls", 1, "function", "arguments", "[]"),
        changed(SENT, 2, "tool_calls", 1, "function", "arguments", "{"),
    ],
)
def test_a_broken_order_is_found(messages) -> None:
    """A result missing, moved, doubled or unasked for; an id or content that servers refuse; arguments no object."""
    assert order_problem(messages)
