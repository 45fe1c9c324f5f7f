"""Replies that are cut, empty, blocked or broken, and servers that refuse: what is tried again, and what ends a run."""

import json
from typing import Any

import pytest

from runfold.core.live_text import LiveText
from runfold.core.transcript import calls_of
from runfold.dev.script import TEXT_CHUNK_CHARS
from tests.scenarios.replies import DONE, call, calls
from tests.scenarios.world import ROUNDING_MS, Run, Stamped, World

pytestmark = pytest.mark.kafka

STORY = "".join(f"{number:031d}." for number in range(20))  # twenty chunks, no two alike
HALF_A_CALL_CHUNKS = 1 + 20 + 2  # the role, the text, and the first two of a call: its name, and half of its arguments


@pytest.mark.scenario("S08")
@pytest.mark.parametrize("arguments", ['{"text": "a', '{"text": "a"}'], ids=["broken", "parses"])
def test_replies_cut_inside_their_calls(here: World, arguments: str) -> None:
    """Nothing of them runs, every call is answered; the third in a row ends the run as truncated."""
    cut = calls({"name": "note", "arguments": arguments}, {"name": "note", "arguments": arguments}, finish="length")
    run = here.run([cut] * 4)
    completed = run.over()
    assert (completed.status, completed.kind) == ("failed", "truncated")
    assert "3 replies in a row" in completed.reason
    assert len(run.requests) == 3
    for number in (1, 2):
        assert all("cut off" in result and "again" in result for result in run.results(number))
        assert len(run.results(number)) == 2
    assert run.outcomes() == ["cut_off"] * 6
    assert run.done() == []


@pytest.mark.scenario("S08")
def test_a_whole_reply_after_cut_ones(here: World) -> None:
    """It counts: only those in a row are held against the model."""
    cut, whole = calls(call("note", text="a"), finish="length"), calls(call("note", text="b"))
    run = here.run([cut, cut, whole, cut, cut, DONE])
    assert run.over().status == "completed"
    assert run.done() == ["note"]


@pytest.mark.scenario("S10")
@pytest.mark.parametrize(
    "empty", [{"text": "done", "fault": {"blank": True}}, {"text": "done", "fault": {"blank": True, "times": 2}}]
)
def test_a_reply_with_nothing_in_it(here: World, empty: dict[str, Any]) -> None:
    """It is asked again, with the same history."""
    run = here.run([empty])
    completed = run.over()
    times = empty["fault"].get("times", 1)
    assert (completed.status, completed.result, completed.totals.model_calls) == ("completed", "done", times + 1)
    assert len(run.requests) == times + 1
    assert all(request.body["messages"] == run.messages(0) for request in run.requests)


@pytest.mark.scenario("S10")
@pytest.mark.parametrize("empty", [{"text": "x", "fault": {"blank": True, "times": None}}, {"reasoning": "hm"}])
def test_nothing_but_empty_replies(here: World, empty: dict[str, Any]) -> None:
    """Two are asked again, the third ends the run: as failed, and saying so."""
    run = here.run([empty])
    completed = run.over()
    assert (completed.status, completed.kind, completed.result) == ("failed", "empty_reply", None)
    assert "3 times in a row" in completed.reason
    assert len(run.requests) == 3


@pytest.mark.scenario("S27")
@pytest.mark.requirement("R29")
@pytest.mark.requirement("R31")
@pytest.mark.parametrize(
    "fault", [{"cut_after_chunks": HALF_A_CALL_CHUNKS}, {"no_finish": True}], ids=["cut", "no finish"]
)
def test_a_stream_that_breaks(here: World, fault: dict[str, Any]) -> None:
    """The attempt is thrown away and made again: one message, no text doubled, half a call never run; both are counted."""
    assert len(STORY) == 20 * TEXT_CHUNK_CHARS
    run = here.run(
        [calls(call("note", text="a long text, so that half of it can be sent"), text=STORY, fault=fault), DONE]
    )
    completed = run.over()
    assert (completed.status, completed.result) == ("completed", "done")
    assert run.done() == ["note"]
    assert [message["content"] for message in run.messages(-1) if message["role"] == "assistant"] == [STORY]
    assert [each.attempt for each in run.events("ModelCallStarted")] == [1, 2, 1]
    failure = run.events("ModelFailed")[0]
    assert (failure.kind, failure.retryable) == ("broken_stream", True)
    assert (completed.totals.model_calls, completed.totals.model_failures) == (3, 1)
    assert len(run.requests) == 3
    _watch(run)


def _watch(run: Run) -> None:
    """Whoever watches sees the first text grow, then the second in its place: never both, whichever topic is ahead."""
    came = [each for each in run.world.by_key[run.id] if each.topic in ("run-stream", "run-events")]
    broken, whole = run.seen("ModelCallStarted")[:2]
    reply = run.seen("ModelReplied")[0]
    told = [broken, *_deltas(came, broken), whole, *_deltas(came, whole), reply]
    for order in (told, [each for each in came if each in told]):
        live = LiveText()
        for each in order:
            if each.topic == "run-stream":
                live.take_delta(each.body)
            else:
                live.take_event(each.id, each.body)
            assert STORY.startswith(live.text)
            if order is told and each in (broken, whole):
                assert live.text == "", "the text of the attempt before is gone"
        assert live.text == STORY
    assert len(calls_of(reply.body.items)) == 1


def _deltas(came: list[Stamped], attempt: Stamped) -> list[Stamped]:
    found = [each for each in came if each.topic == "run-stream" and each.body.model_call == attempt.id]
    assert found
    return found


@pytest.mark.scenario("S29")
@pytest.mark.requirement("R31")
@pytest.mark.parametrize(
    ("fault", "wait_ms"),
    [
        ({"status": 429, "retry_after": 2}, 2_000),
        ({"status": 503, "error": {"message": "slow down", "code": "slow_down"}}, 300),
    ],
)
def test_a_server_that_is_busy(here: World, fault: dict[str, Any], wait_ms: int) -> None:
    """One more attempt, not before the server's own delay; each request is an attempt in the log, none is hidden."""
    run = here.run([{"text": "done", "fault": fault}])
    completed = run.over()
    assert (completed.status, completed.totals.model_calls, completed.totals.model_failures) == ("completed", 2, 1)
    failed, (first, second) = run.seen("ModelFailed")[0], run.seen("ModelCallStarted")
    assert (failed.body.kind, failed.body.status) == ("rate_limited", fault["status"])
    assert second.time_ms - failed.time_ms >= wait_ms - ROUNDING_MS
    assert [each.call for each in run.requests] == [first.id, second.id]


@pytest.mark.scenario("S29")
@pytest.mark.requirement("R31")
@pytest.mark.parametrize(
    ("fault", "kind", "reason"),
    [
        ({"status": 429, "retry_after": 7200}, "rate_limited", "the next attempt would pass the turn's limit"),
        (
            {"status": 429, "error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}},
            "no_money",
            "You exceeded your current quota",
        ),
    ],
)
def test_a_server_that_will_not_recover_in_time(here: World, fault: dict[str, Any], kind: str, reason: str) -> None:
    """One request, then the end, with the reason: neither the package nor we try again."""
    run = here.run([{"text": "done", "fault": {"times": None, **fault}}])
    completed = run.over()
    assert (completed.status, completed.kind) == ("failed", kind)
    assert reason in completed.reason
    assert len(run.requests) == len(run.events("ModelCallStarted")) == 1


@pytest.mark.scenario("S29")
@pytest.mark.requirement("R31")
def test_a_server_that_is_busy_for_ever(here: World) -> None:
    """As many requests as the run may make attempts, and the end says so."""
    fault = {"status": 503, "retry_after": 0.01, "error": {"code": "slow_down", "message": "busy"}, "times": None}
    run = here.run([{"text": "done", "fault": fault}], limits={"model_attempts": 2})
    completed = run.over()
    assert (completed.status, completed.kind) == ("failed", "rate_limited")
    assert "attempt 2 of 2" in completed.reason
    assert len(run.requests) == len(run.events("ModelCallStarted")) == 2


DIALECTS: dict[str, dict[str, Any]] = {
    "OpenAI": {"error": {"message": "This model's maximum context length is 8192 tokens.", "type": "invalid_request_error",
                         "param": "messages", "code": "context_length_exceeded"}},
    "vLLM": {"object": "error", "type": "BadRequestError", "code": 400,
             "message": "This model's maximum context length is 4096 tokens. However, you requested 5000."},
    "llama.cpp": {"error": {"code": 400, "type": "exceed_context_size_error", "n_ctx": 4096,
                            "message": "the request exceeds the available context size"}},
    "Anthropic": {"error": {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000 maximum"}},
    "LiteLLM": {"error": {"message": "ContextWindowExceededError: input exceeds the context window of this model", "code": "400"}},
}  # fmt: skip


@pytest.mark.scenario("S30")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_history_that_is_too_long(here: World, dialect: str) -> None:
    """Nobody sends the same again: the run ends, and says that its context is exhausted. What was done is kept."""
    body = DIALECTS[dialect]
    text = json.dumps(body)
    run = here.run(
        [calls(call("note", text="a")), {"text": "x", "fault": {"status": 400, "error": text, "times": None}}]
    )
    completed = run.over()
    assert (completed.status, completed.kind) == ("failed", "context_exhausted")
    assert body.get("error", body)["message"].split(":")[0] in completed.reason
    assert len(run.requests) == 2
    assert run.done() == ["note"]


@pytest.mark.scenario("S36")
@pytest.mark.parametrize("reply", [{"text": "half a sen"}, calls(call("note", text="a"), text="half")])
def test_a_reply_that_a_filter_stopped(here: World, reply: dict[str, Any]) -> None:
    """No call of it runs, nothing is asked again; the end says why."""
    run = here.run([{**reply, "finish": "content_filter"}, DONE])
    completed = run.over()
    assert (completed.status, completed.kind) == ("failed", "content_filter")
    assert "content filter" in completed.reason
    assert len(run.requests) == 1
    assert run.done() == []


@pytest.mark.scenario("S36")
def test_a_refusal(here: World) -> None:
    """An answer of its own kind: the run is complete, and its owner is told that the model refused."""
    run = here.run([{"refusal": "I will not do that."}, DONE])
    completed = run.over()
    assert (completed.status, completed.refusal, completed.result) == ("completed", True, "I will not do that.")
    assert completed.finish_reason == "refusal"
    assert len(run.requests) == 1


@pytest.mark.scenario("S36")
def test_an_input_that_a_filter_refuses(here: World) -> None:
    """As Azure says it: a 400. It is no broken request, and no reason to try again."""
    error = {
        "message": "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
        "code": "content_filter", "param": "prompt", "status": 400,
        "innererror": {"code": "ResponsibleAIPolicyViolation"},
    }  # fmt: skip
    run = here.run([{"text": "x", "fault": {"status": 400, "error": error, "times": None}}])
    completed = run.over()
    assert (completed.status, completed.kind) == ("failed", "refused")
    assert "content management policy" in completed.reason
    assert len(run.requests) == 1
