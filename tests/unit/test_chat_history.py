"""Writing a transcript as Chat messages: every order rule holds, and the same transcript gives the same bytes."""

import json
from typing import Any

import pytest

from runfold.adapters.chat_history import (
    HistoryStyle,
    chat_messages,
    chat_tools,
    encoded,
    history_problem,
    load_payloads,
    unloaded,
)
from runfold.core.transcript import Entry, Reply, Result, Results, UserMessage
from runfold.events.types import PARTS_ELSEWHERE, BlobRef, Item, ToolSpec

STYLE = HistoryStyle()


def tool_call(arguments: str = "{}", name: str = "f", **more: Any) -> Item:
    return Item(kind="call", name=name, arguments=arguments, **more)


def turn(number: int, *items: Item, outputs: tuple[str, ...] = ()) -> list[Entry]:
    entries: list[Entry] = [Reply(model_call=f"c{number}", turn=number, items=list(items))]
    if outputs:
        results = [Result(position=n, name="f", output=o, outcome="succeeded") for n, o in enumerate(outputs)]
        entries.append(Results(model_call=f"c{number}", turn=number, results=results))
    return entries


def test_a_run_as_messages() -> None:
    """Instructions first, ids minted from turn and position, results in call order, nothing empty."""
    transcript = [
        UserMessage(text="go"),
        *turn(1, tool_call('{"a":1}', provider_id="same"), tool_call("", provider_id="same"), outputs=("one", "")),
        *turn(2, Item(kind="text", text="done")),
    ]
    messages = chat_messages("be brief", transcript, STYLE)
    assert history_problem(messages) is None
    assert messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_1_0", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
                {"id": "call_1_1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_1_0", "content": "one"},
        {"role": "tool", "tool_call_id": "call_1_1", "content": "(no output)"},
        {"role": "assistant", "content": "done"},
    ]
    assert encoded({"messages": messages}) == encoded({"messages": chat_messages("be brief", transcript, STYLE)})


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ("{broken", "{}"),
        ("[1]", "{}"),
        ("null", "{}"),
        ('"{\\"a\\": 1}"', '{"a": 1}'),
        ('"{\\"a\\": \\"\\ud83d\\"}"', '{"a": "\ufffd"}'),
        ('{"a": NaN}', "{}"),
    ],
)
def test_arguments_sent_back_are_a_json_object(said: str, sent: str) -> None:
    """Servers parse the history again and refuse anything else for ever."""
    messages = chat_messages("", turn(1, tool_call(said), outputs=("x",)), STYLE)
    assert messages[0]["tool_calls"][0]["function"]["arguments"] == sent
    assert history_problem(messages) is None
    encoded({"messages": messages})


def test_an_invented_name_is_made_sendable() -> None:
    """Names in a history are checked by their pattern, also those of calls that were answered with an error."""
    messages = chat_messages("", turn(1, tool_call(name="multi_tool_use.parallel"), outputs=("unknown",)), STYLE)
    assert messages[0]["tool_calls"][0]["function"]["name"] == "multi_tool_use_parallel"


def test_a_reply_that_said_nothing_is_left_out() -> None:
    """Reasoning alone is nothing, too."""
    entries = [UserMessage(text="go"), *turn(1), *turn(2, Item(kind="reasoning", text="hm"))]
    assert [m["role"] for m in chat_messages("", entries, STYLE)] == ["user"]


def test_content_beside_calls_is_what_the_server_likes() -> None:
    """Null is the rule; Ollama refuses it."""
    entries = turn(1, tool_call(), outputs=("x",))
    assert chat_messages("", entries, STYLE)[0]["content"] == ""
    messages = chat_messages("", entries, HistoryStyle(null_content=True))
    assert messages[0]["content"] is None
    assert history_problem(messages) is None


@pytest.mark.parametrize(
    ("policy", "beside_calls", "alone"), [("always", True, True), ("with_calls", True, False), ("never", False, False)]
)
def test_reasoning_is_sent_back_as_configured(policy: Any, *, beside_calls: bool, alone: bool) -> None:
    """The text stands in the item once; signatures and details always go back."""
    thinking = Item(kind="reasoning", text="hm", extra='{"reasoning_content":null,"reasoning_details":[1]}')
    signed = tool_call(extra='{"extra_content":{"s":1}}')
    entries = [*turn(1, thinking, signed, outputs=("x",)), *turn(2, thinking, Item(kind="text", text="ok"))]
    first, _, last = chat_messages("", entries, HistoryStyle(send_reasoning=policy))
    assert first.get("reasoning_content") == ("hm" if beside_calls else None)
    assert last.get("reasoning_content") == ("hm" if alone else None)
    assert first["reasoning_details"] == last["reasoning_details"] == [1]
    assert first["tool_calls"][0]["extra_content"] == {"s": 1}


def test_payloads_and_parts_become_content() -> None:
    """A payload is text, or parts where the event says so, and stands as its ticket until it is loaded."""
    parts = '[{"type":"text","text":"hi"}]'
    ref = BlobRef(sha256="payload", size_bytes=1)
    entries = [
        UserMessage(parts=parts),
        UserMessage(ref=ref, parts=PARTS_ELSEWHERE),
        UserMessage(ref=ref),
        UserMessage(text=parts),
        UserMessage(),
    ]
    messages = chat_messages("", entries, STYLE)
    assert history_problem(messages) is None
    assert len(unloaded(messages)) == 2
    load_payloads(messages, lambda _: parts.encode())
    assert not unloaded(messages)
    as_parts = json.loads(parts)
    assert [m["content"] for m in messages] == [as_parts, as_parts, parts, parts, "(empty message)"]


def test_a_payload_that_is_nothing_is_still_a_message() -> None:
    """No content is empty, and parts that are none are sent as what they are."""
    for payload, content in ((b"", "(empty message)"), (b"[]", "[]")):
        messages = chat_messages("", [UserMessage(ref=BlobRef(sha256="x", size_bytes=1), parts=PARTS_ELSEWHERE)], STYLE)
        load_payloads(messages, lambda _, payload=payload: payload)
        assert messages[0]["content"] == content


def test_tools_keep_their_order() -> None:
    """Prompt caches match prefixes."""
    tools = [
        ToolSpec(name=n, description=n, parameters=p, tool_class="inline", time_limit_ms=1, changes_state=False)
        for n, p in (("b", '{"type":"object"}'), ("a", ""))
    ]
    assert [(t["function"]["name"], t["function"]["parameters"]) for t in chat_tools(tools)] == [
        ("b", {"type": "object"}),
        ("a", {"type": "object", "properties": {}}),
    ]


def assistant(*ids: str, arguments: str = "{}") -> dict[str, Any]:
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": arguments}} for i in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def tool(id: str, content: object = "x") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    "messages",
    [
        [assistant("a")],
        [assistant("a"), USER, tool("a")],
        [assistant("a", "b"), tool("b"), tool("a")],
        [assistant("a"), tool("a"), tool("a")],
        [tool("a")],
        [assistant("a"), tool("b")],
        [assistant("a"), tool("a"), assistant("a"), tool("a")],
        [assistant(""), tool("")],
        [assistant("x" * 65), tool("x" * 65)],
        [assistant("a", arguments="[]"), tool("a")],
        [assistant("a", arguments="{"), tool("a")],
        [assistant("a"), tool("a", "")],
        [assistant("a"), tool("a", None)],
        [{"role": "user", "content": ""}],
        [{"role": "assistant", "content": ""}],
        [USER, {"role": "system", "content": "x"}],
    ],
)
def test_what_a_strict_server_refuses_is_found_before_it_is_sent(messages: list[dict[str, Any]]) -> None:
    """Each of these is a 400 somewhere, and the same 400 after every retry."""
    assert history_problem(messages) is not None
