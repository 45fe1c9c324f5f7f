"""The Chat adapter against a real HTTP server: everything a stream can do, and what it is to us."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from runfold.adapters.openai_chat import ChatModel, ChatOptions
from runfold.adapters.scripted_model import FunctionModel
from runfold.core.transcript import Entry, Reply, UserMessage
from runfold.dev.model_server import ModelServer
from runfold.dev.script import TEXT_CHUNK_CHARS, ScriptError
from runfold.events.types import BlobRef, Item, ModelFailed, ModelReplied, ToolSpec
from runfold.ports import InvariantViolation, ModelOutcome, ModelRequest

WAIT_S = 30.0
LONG = "a text that takes many chunks to send, so that something can happen in the middle of it. " * 4
HEAD = 'data: {"model":"m","choices":[{"index":0,"delta":{"content":"he"}}]}\n\n'
TAIL = 'data: {"choices":[{"index":0,"delta":{"content":"llo"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'

SCRIPT: dict[str, Any] = {
    "plain": [{"text": "hello", "reasoning": "hm", "calls": [{"name": "f", "arguments": {"a": 1}}]}, {"text": "bye"}],
    "no finish": [{"text": LONG, "fault": {"no_finish": True}}],
    "cut": [{"text": LONG, "fault": {"cut_after_chunks": 3}}],
    "cut at once": [{"text": LONG, "fault": {"cut_after_chunks": 0}}],
    "cut in a line": [{"text": LONG, "fault": {"cut_after_bytes": 200}}],
    "cut after the finish": [{"text": "hello", "fault": {"cut_after_chunks": 3}}],
    "stall": [{"text": LONG, "fault": {"trickle_ms": 60_000}}],
    "fluent": [{"text": LONG * 5, "fault": {"trickle_ms": 3}}],
    "trickle": [{"text": LONG * 50, "fault": {"trickle_ms": 20}}],
    "error object": [{"text": LONG, "fault": {"error_chunk": {"message": "m", "code": 429}}}],
    "error text": [{"text": LONG, "fault": {"error_chunk": "overloaded"}}],
    "error event": [{"sse": HEAD + 'event: error\ndata: {"message": "upstream", "code": 502}\n\n'}],
    "bad line": [{"text": LONG, "fault": {"bad_chunk": True}}],
    "bad bytes": [{"sse": HEAD + "data: \udcff\udcfe\n\n" + TAIL}],
    "no object": [{"sse": HEAD + "data: [1]\n\n" + TAIL}],
    "json body": [{"text": "hello", "fault": {"as_json": True}}],
    "empty": [{"text": LONG, "fault": {"empty": True}}],
    "done alone": [{"sse": "data: [DONE]\n\n"}],
    "comments": [{"sse": ": PROCESSING\n\n" + HEAD + ": still\n\n" + TAIL}],
    "429": [{"text": "hello", "fault": {"status": 429, "retry_after": 2}}],
    "503": [{"text": "hello", "fault": {"status": 503, "times": 2}}],
    "html": [{"body": "<html>busy</html>"}],
    "error with 200": [{"body": {"error": {"message": "no more", "code": "insufficient_quota"}}}],
}


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer(SCRIPT) as server:
        yield server


@pytest.fixture
def connect(server: ModelServer) -> Iterator[Callable[..., ChatModel]]:
    models: list[ChatModel] = []

    def connected(blobs: Any = None, **options: Any) -> ChatModel:
        models.append(ChatModel(ChatOptions(base_url=server.base_url, **options), blobs))
        return models[-1]

    yield connected
    for model in models:
        model.close()


def request(scenario: str, *entries: Entry, run: str = "run", limit_s: float = WAIT_S, **more: Any) -> ModelRequest:
    fields: dict[str, Any] = {"instructions": "", "tools": [], "result_schema": None, **more}
    transcript = entries or (UserMessage(text="go"),)
    return ModelRequest(
        run_id=run, call=f"{run}/1", model=scenario, transcript=transcript, time_limit_s=limit_s, **fields
    )


def outcome_of(model: ChatModel, asked: ModelRequest, deltas: list[tuple[int, str]] | None = None) -> ModelOutcome:
    """Call and wait."""
    outcomes: queue.Queue[ModelOutcome] = queue.Queue()
    shown = deltas if deltas is not None else []
    at_once = model.start(asked, outcomes.put, lambda offset, text: shown.append((offset, text)))
    assert at_once is None
    return outcomes.get(timeout=WAIT_S)


def failure(outcome: ModelOutcome) -> ModelFailed:
    assert isinstance(outcome, ModelFailed)
    assert outcome.message
    return outcome


def replied(outcome: ModelOutcome) -> ModelReplied:
    assert isinstance(outcome, ModelReplied), outcome
    return outcome


@pytest.mark.parametrize("stream", [True, False])
def test_a_reply_comes_whole(connect: Callable[..., ChatModel], *, stream: bool) -> None:
    """Items, finish reason, usage, request id, timings and shown text, streamed or not."""
    deltas: list[tuple[int, str]] = []
    reply = replied(outcome_of(connect(stream=stream), request("plain", run=f"whole {stream} ü"), deltas))
    assert [(i.kind, i.text or i.name, i.arguments) for i in reply.items] == [
        ("reasoning", "hm", ""),
        ("text", "hello", ""),
        ("call", "f", '{"a": 1}'),
    ]
    assert (reply.finish_reason, reply.model, reply.model_call) == ("tool_calls", "plain", f"whole {stream} ü/1")
    assert reply.usage is not None
    assert (reply.request_id or "").startswith("req_")
    assert 0 <= (reply.first_token_ms or 0) <= reply.duration_ms
    assert deltas == [(0, "hello")]


@pytest.mark.requirement("R29")
def test_text_that_comes_fast_is_shown_in_few_pieces(connect: Callable[..., ChatModel]) -> None:
    """Each goes to everybody who watches: a word at a time would be fifty records a second. Nothing is lost."""
    deltas: list[tuple[int, str]] = []
    reply = replied(outcome_of(connect(), request("fluent", run="fluent"), deltas))
    assert "".join(text for _, text in deltas) == reply.items[0].text == LONG * 5
    assert 2 <= len(deltas) <= len(LONG) * 5 / TEXT_CHUNK_CHARS / 2
    assert [offset for offset, _ in deltas] == [sum(len(text) for _, text in deltas[:n]) for n in range(len(deltas))]


@pytest.mark.requirement("R29")
def test_the_last_piece_of_a_cut_text_is_shown_before_its_failure(connect: Callable[..., ChatModel]) -> None:
    """Whoever watches sees how far it came; nothing of it is shown when the next attempt has begun."""
    deltas: list[tuple[int, str]] = []
    failure(outcome_of(connect(), request("cut", run="cut short"), deltas))
    assert deltas == [(0, LONG[: 2 * TEXT_CHUNK_CHARS])]


@pytest.mark.parametrize(
    ("scenario", "kind", "retryable"),
    [
        ("no finish", "broken_stream", True),
        ("cut", "broken_stream", True),
        ("cut at once", "broken_stream", True),
        ("cut in a line", "broken_stream", True),
        ("stall", "timed_out", True),
        ("error object", "rate_limited", True),
        ("error text", "transient", True),
        ("error event", "transient", True),
        ("bad line", "broken_stream", True),
        ("bad bytes", "broken_stream", True),
        ("no object", "broken_stream", True),
        ("empty", "broken_stream", True),
        ("done alone", "broken_stream", True),
        ("html", "broken_stream", True),
        ("error with 200", "no_money", False),
        ("an unknown one", "not_found", False),
    ],
)
def test_a_stream_that_goes_wrong_is_a_failed_attempt(
    connect: Callable[..., ChatModel], scenario: str, kind: str, *, retryable: bool
) -> None:
    """None of them is an exception, and none an empty reply."""
    failed = failure(outcome_of(connect(stall_s=0.3), request(scenario, run=f"wrong {scenario}")))
    assert (failed.kind, failed.retryable) == (kind, retryable)


@pytest.mark.parametrize("scenario", ["json body", "comments", "cut after the finish"])
def test_what_looks_wrong_but_is_a_reply(connect: Callable[..., ChatModel], scenario: str) -> None:
    """A whole body where a stream was asked for; comments; a cut that can only have cost the usage."""
    reply = replied(outcome_of(connect(), request(scenario, run=f"odd {scenario}")))
    assert [(i.kind, i.text) for i in reply.items] == [("text", "hello")]


@pytest.mark.parametrize("stream", [True, False])
def test_a_refusal_to_answer_says_when_to_come_again(connect: Callable[..., ChatModel], *, stream: bool) -> None:
    """The package must not retry by itself: the second attempt is ours."""
    model = connect(stream=stream)
    asked = request("429", run=f"limited {stream}")
    failed = failure(outcome_of(model, asked))
    assert (failed.kind, failed.status, failed.retry_after_ms, failed.retryable) == ("rate_limited", 429, 2_000, True)
    assert failed.request_id
    assert replied(outcome_of(model, asked)).items[0].text == "hello"
    kinds = [failure(outcome_of(model, request("503", run=f"busy {stream}"))).kind for _ in range(2)]
    assert kinds == ["rate_limited"] * 2  # it says slow_down


def test_the_time_limit_is_ours(connect: Callable[..., ChatModel], server: ModelServer) -> None:
    """A server that trickles passes any timeout of the package for ever."""
    deltas: list[tuple[int, str]] = []
    failed = failure(outcome_of(connect(), request("trickle", run="slow", limit_s=1.0), deltas))
    assert (failed.kind, failed.retryable) == ("timed_out", True)
    assert failed.duration_ms < 10_000
    assert deltas


def test_a_stopped_call_closes_its_stream_in_silence(connect: Callable[..., ChatModel], server: ModelServer) -> None:
    """The server sees the client go; `done` is not called."""
    model = connect()
    outcomes: queue.Queue[ModelOutcome] = queue.Queue()
    asked = request("trickle", run="stopped")
    begun = threading.Event()
    server.app.disconnected.clear()
    model.start(asked, outcomes.put, lambda _offset, _text: begun.set())
    assert begun.wait(WAIT_S)
    model.stop(asked.call)
    assert server.app.disconnected.wait(WAIT_S)
    model.close()
    assert outcomes.empty()


def test_a_closed_model_answers_at_once(connect: Callable[..., ChatModel]) -> None:
    """Closing twice is allowed; a call after it is a failure, not an exception."""
    model = connect()
    model.close()
    model.close()
    outcome = model.start(request("plain"), lambda _outcome: None, lambda _offset, _text: None)
    assert isinstance(outcome, ModelFailed)
    assert outcome.kind == "stopped"
    model.stop("run/1")


def test_a_broken_history_never_leaves(connect: Callable[..., ChatModel], server: ModelServer) -> None:
    """A bug of ours stops the caller, and the server hears nothing."""
    heard = server.app.requests_total
    unanswered = Reply(model_call="c", turn=1, items=[Item(kind="call", name="f", arguments="{}")])
    with pytest.raises(InvariantViolation):
        outcome_of(connect(), request("plain", unanswered))
    assert server.app.requests_total == heard


def test_the_request_holds_what_was_configured_and_nothing_else(
    connect: Callable[..., ChatModel], server: ModelServer
) -> None:
    """Many servers refuse parameters that they do not know."""
    outcome_of(connect(stream=False), request("plain", run="bare"))
    assert set(server.requests[-1].body) == {"model", "messages", "stream"}
    tool = ToolSpec(
        name="f", description="", parameters="{}", tool_class="inline", time_limit_ms=1, changes_state=False
    )
    model = connect(
        max_tokens=7, max_tokens_field="max_tokens", parallel_tool_calls=False, send_prompt_cache_key=True,
        extra_body={"temperature": 0}, extra_headers={"x-team": "red"}, api_key="key",
    )  # fmt: skip
    outcome_of(model, request("plain", run="full", tools=[tool], result_schema='{"type":"object"}'))
    received = server.requests[-1]
    expected = {
        "max_tokens": 7,
        "parallel_tool_calls": False,
        "prompt_cache_key": "full",
        "temperature": 0,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "json_schema", "json_schema": {"name": "result", "schema": {"type": "object"}}},
    }
    assert received.body | expected == received.body
    assert received.body["tools"][0]["function"]["name"] == "f"
    assert (received.run, received.call) == ("full", "full/1")
    assert (received.headers["x-team"], received.headers["authorization"]) == ("red", "Bearer key")


class Payloads:
    """Blobs that holds one payload."""

    def put(self, payload: bytes) -> BlobRef:
        raise NotImplementedError

    def get(self, ref: BlobRef) -> bytes:
        if ref.sha256 != "there":
            raise LookupError(f"no payload {ref.sha256}")
        return b"a long story"


def test_payloads_are_loaded_before_the_request(connect: Callable[..., ChatModel], server: ModelServer) -> None:
    """One that is gone fails the call for good."""
    model = connect(Payloads())
    replied(outcome_of(model, request("plain", UserMessage(ref=BlobRef(sha256="there", size_bytes=1)))))
    assert server.requests[-1].body["messages"][0]["content"] == "a long story"
    failed = failure(outcome_of(model, request("plain", UserMessage(ref=BlobRef(sha256="gone", size_bytes=1)))))
    assert (failed.kind, failed.retryable) == ("bad_request", False)


def test_more_calls_than_places_all_end(connect: Callable[..., ChatModel]) -> None:
    """They wait for a place; each ends once."""
    model = connect(in_flight_max=4)
    outcomes: queue.Queue[ModelOutcome] = queue.Queue()
    for number in range(40):
        model.start(request("plain", run=f"many {number}"), outcomes.put, lambda _offset, _text: None)
    ended = [replied(outcomes.get(timeout=WAIT_S)).model_call for _ in range(40)]
    assert sorted(ended) == sorted(f"many {number}/1" for number in range(40))
    assert outcomes.empty()


def test_a_server_that_is_not_there(connect: Callable[..., ChatModel]) -> None:
    """Nobody listens: it may come back."""
    model = ChatModel(ChatOptions(base_url="http://127.0.0.1:9/v1"))
    failed = failure(outcome_of(model, request("plain")))
    model.close()
    assert (failed.kind, failed.retryable) == ("transient", True)


def test_the_scripted_server_counts_replies_in_the_history(connect: Callable[..., ChatModel]) -> None:
    """A caller that was restarted gets the same reply; beyond the end is a plain error."""
    model = connect()
    said = Reply(model_call="c", turn=1, items=[Item(kind="text", text="hello")])
    again = [replied(outcome_of(model, request("plain", UserMessage(text="go"), said, run="again"))) for _ in range(2)]
    assert [reply.items[0].text for reply in again] == ["bye", "bye"]
    assert failure(outcome_of(model, request("plain", UserMessage(text="go"), said, said))).kind == "bad_request"


def test_the_scripted_server_can_count_replies_given() -> None:
    """For replies that leave no trace in the history; a spoilt attempt does not count."""
    script = {"m": [{"text": ""}, {"text": "second", "fault": {"status": 500}}]}
    with ModelServer(script, count_replies=True, last_only=True) as server:
        model = ChatModel(ChatOptions(base_url=server.base_url))
        outcomes = [outcome_of(model, request("m")) for _ in range(3)]
        model.close()
        assert len(server.requests) == 1
    assert replied(outcomes[0]).items == []
    assert failure(outcomes[1]).kind == "transient"
    assert replied(outcomes[2]).items[0].text == "second"


@pytest.mark.parametrize(
    ("script", "place"),
    [
        ({"m": [{"txt": "x"}]}, "m.0.txt"),
        ({"m": [{"fault": {"status": 200}}]}, "m.0.fault.status"),
        ({"m": {"text": "x"}}, "m"),
        ({"m": [{"text": "x", "sse": "y"}]}, "either made"),
    ],
)
def test_a_malformed_script_says_where(script: dict[str, Any], place: str) -> None:
    """Before anything is served."""
    with pytest.raises(ScriptError, match=place):
        ModelServer(script)


def test_a_function_is_a_model() -> None:
    """It answers from `start`."""
    reply = ModelReplied(model_call="run/1", items=[], finish_reason="stop")
    model = FunctionModel(lambda asked: reply if asked.model == "m" else pytest.fail("another model"))
    assert model.start(request("m"), lambda _outcome: None, lambda _offset, _text: None) is reply
    model.stop("run/1")
