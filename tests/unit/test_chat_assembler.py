"""Assembling Chat replies: the rules that recorded servers made necessary, one by one."""

import json
from typing import Any

import pytest

from runfold.adapters.chat_assembler import (
    REPLY_BYTES_MAX,
    Assembled,
    ChatAssembler,
    IncompleteReply,
    ProviderError,
)
from runfold.events.codec import Codec
from runfold.events.types import ModelReplied, Usage


def chunk(delta: object = None, finish: object = None, **more: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def call(index: object = None, id: object = None, name: object = None, arguments: object = None) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]}


def assembled(*chunks: object) -> Assembled:
    assembler = ChatAssembler()
    for each in chunks:
        assembler.feed(each)
    return assembler.reply()


def calls(*deltas: dict[str, Any]) -> list[tuple[str, str, str]]:
    reply = assembled(*[chunk(delta) for delta in deltas], chunk(None, "tool_calls"))
    return [(i.provider_id, i.name, i.arguments) for i in reply.items if i.kind == "call"]


def test_the_index_keys_a_call_and_orders_them() -> None:
    """Pieces interleave, indexes come in any order, with gaps, and below zero."""
    assert calls(
        call(5, "b", "second", "{"), call(-1, "a", "first", ""), call(5, None, None, "}"), call(-1, "", "", "{}")
    ) == [("a", "first", "{}"), ("b", "second", "{}")]


def test_a_new_id_on_an_owned_index_is_another_call() -> None:
    """Ollama says index 0 for every call."""
    assert calls(call(0, "a", "f", '{"n":1}'), call(0, "b", "f", '{"n":2}')) == [
        ("a", "f", '{"n":1}'),
        ("b", "f", '{"n":2}'),
    ]


def test_id_and_name_are_taken_once() -> None:
    """Some servers repeat them in every chunk, some send the name later, some send empty ones."""
    assert calls(call(0, "a", None, "{"), call(0, "a", "f", '"x":'), call(0, "a", "f", "1}"), call(0, "", "", "")) == [
        ("a", "f", '{"x":1}')
    ]


def test_without_an_index_an_id_or_a_whole_call_before_it_begins_a_call() -> None:
    """Mistral sends no index; Gemini neither index nor id."""
    assert calls(call(None, "a", "f", "{"), call(None, None, None, "}"), call(None, "b", "g", "{}")) == [
        ("a", "f", "{}"),
        ("b", "g", "{}"),
    ]
    assert calls(call(None, "", "f", "{}"), call(None, "", "f", "{}")) == [("", "f", "{}"), ("", "f", "{}")]


@pytest.mark.parametrize("arguments", [{"a": 1}, '{"a": 1}'])
def test_arguments_may_come_as_an_object(arguments: object) -> None:
    """Some llama.cpp builds return the object itself."""
    assert [json.loads(a) for _, _, a in calls(call(0, "a", "f", arguments))] == [{"a": 1}]


@pytest.mark.parametrize(
    "delta",
    [None, [], "text", {"content": 7}, {"tool_calls": {}}, {"tool_calls": [None, 7, {"function": None}]}],
)
def test_a_strange_delta_costs_nothing(delta: object) -> None:
    """A field of the wrong type counts as absent."""
    reply = assembled(chunk({"content": "a"}), chunk(delta), chunk({"content": "b"}, "stop"))
    assert [(i.kind, i.text) for i in reply.items] == [("text", "ab")]


def test_content_may_be_parts_and_thinking_one_of_them() -> None:
    """Mistral sends content as a list."""
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "4"}]
    assert [(i.kind, i.text) for i in assembled(chunk({"content": parts}, "stop")).items] == [
        ("reasoning", "hm"),
        ("text", "4"),
    ]


@pytest.mark.parametrize(
    ("said", "delta", "ours"),
    [
        ("stop", {"content": "x"}, "stop"),
        ("stop", call(0, "a", "f", "{}"), "tool_calls"),
        ("guardrail_intervened", {"content": "x"}, "other"),
        ("eos", call(0, "a", "f", "{}"), "tool_calls"),
        ("length", call(0, "a", "f", "{}"), "length"),
        ("content_filter", call(0, "a", "f", "{}"), "content_filter"),
        ("stop", {"refusal": "no"}, "refusal"),
        ("function_call", {"function_call": {"name": "f", "arguments": "{}"}}, "tool_calls"),
        ("tool_calls", {"content": "x"}, "stop"),
    ],
)
def test_finish_reasons_are_ours(said: str, delta: dict[str, Any], ours: str) -> None:
    """What the reply holds counts more than what the server calls it, except that a cut is a cut."""
    assert assembled(chunk(delta, said)).finish_reason == ours


def test_the_first_finish_reason_counts() -> None:
    """It may come twice, and be followed by null."""
    assert assembled(chunk({"content": "x"}, "length"), chunk({}, "stop"), chunk({}, None)).finish_reason == "length"


@pytest.mark.parametrize("chunks", [[], [chunk({"content": "x"})], [chunk({"content": "x"}, "error")]])
def test_without_a_finish_reason_there_is_no_reply(chunks: list[object]) -> None:
    """The end of the body says nothing; a finish reason of `error` is none."""
    with pytest.raises(IncompleteReply):
        assembled(*chunks)


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "x"}},
        {"error": "x", "choices": []},
        {"message": "x", "code": 500},
        {"choices": [{"index": 0, "delta": {}, "error": {"code": 502}}]},
        {"object": "error", "message": "too long", "code": 400},
    ],
)
def test_an_error_in_place_of_a_reply_is_an_error(body: object) -> None:
    """With status 200, beside the choices, in a choice, or flat."""
    with pytest.raises(ProviderError):
        ChatAssembler().feed(body)


def test_usage_is_the_last_word_of_each_field() -> None:
    """Never summed, never overwritten by null; strings and floats are read, nonsense is not."""
    usage = assembled(
        {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}},
        chunk({"content": "x"}, "stop", usage={"prompt_tokens": "7", "completion_tokens": 2.0, "total_tokens": "many"}),
        {"choices": [], "usage": {"prompt_tokens": None, "completion_tokens_details": {"reasoning_tokens": 5}}},
        {"choices": [], "x_groq": {"usage": {"total_tokens": 14}}, "usage": None},
    ).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens, usage.reasoning_tokens) == (7, 2, 14, 5)
    assert usage.cached_tokens is None


@pytest.mark.parametrize("said", [2**53, 2**63 - 1, 2**63, 2**80, str(2**63), 1e300, "9" * 5_000, -1])
def test_a_count_that_cannot_be_is_none(said: object) -> None:
    """No provider counted so much. Near 2^63 the next sum would fit no record; as it is, the tokens are estimated."""
    given = {"prompt_tokens": said, "completion_tokens": 2**53 - 1, "total_tokens": said}
    reply = assembled(chunk({"content": "x"}, "stop", usage=given))
    assert reply.usage == Usage(output_tokens=2**53 - 1)
    codec, replied = Codec(), ModelReplied(model_call="c", items=reply.items, finish_reason="stop", usage=reply.usage)
    assert codec.decode(codec.encode(replied)) == replied


def test_text_to_show_joins_to_the_text_of_the_reply() -> None:
    """A surrogate pair comes in two halves; a lone half and NUL are replaced."""
    assembler = ChatAssembler()
    pieces = ["a\ud83d", "\ude00b", "\udc00", "\0", "c\ud83d"]
    shown = "".join(assembler.feed(chunk({"content": piece})) for piece in pieces)
    assembler.feed(chunk({}, "stop"))
    assert assembler.reply().items[0].text == "a😀b\ufffd\ufffdc\ufffd"
    assert shown == "a😀b\ufffd\ufffdc"


def test_fields_to_send_back_are_kept_and_clean() -> None:
    """The reasoning text stands once; streamed details are joined; half pairs do not survive in them."""
    reply = assembled(
        chunk({"reasoning": "th", "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "th"}]}),
        chunk({"reasoning": "ink", "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "ink\ud800"}]}),
        chunk(
            {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f"}, "extra_content": {"g": "s"}}]}, "stop"
        ),
    )
    thinking, tool = reply.items
    assert thinking.text == "think"
    assert json.loads(thinking.extra or "") == {
        "reasoning": None,
        "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "think\ufffd"}],
    }
    assert json.loads(tool.extra or "") == {"extra_content": {"g": "s"}}


def test_a_reply_that_no_record_could_hold_counts_as_cut() -> None:
    """Whoever reads stops there, and no call of it runs."""
    assembler = ChatAssembler()
    assembler.feed(chunk(call(0, "a", "f", "{}")))
    assembler.feed(chunk({"content": "x" * (REPLY_BYTES_MAX + 1)}))
    assert assembler.is_too_large
    assert assembler.reply().finish_reason == "length"


def test_a_whole_reply_is_read_by_the_same_rules() -> None:
    """Repeated ids are two calls, arguments may be an object, and a null finish reason is the server's carelessness."""
    assembler = ChatAssembler()
    tool_calls = [{"id": "", "function": {"name": "f", "arguments": {}}}] * 2
    assembler.feed_whole({"choices": [{"message": {"content": None, "tool_calls": tool_calls}, "finish_reason": None}]})
    reply = assembler.reply()
    assert [(i.name, i.arguments) for i in reply.items] == [("f", "{}"), ("f", "{}")]
    assert reply.finish_reason == "tool_calls"


@pytest.mark.parametrize("body", ["<html>", None, [], 7, {}, {"choices": None}, {"choices": [None]}])
def test_a_body_that_is_no_reply_is_incomplete(body: object) -> None:
    """Proxies answer 200 with anything."""
    with pytest.raises(IncompleteReply):
        ChatAssembler().feed_whole(body)
