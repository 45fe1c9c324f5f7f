"""Loops, and calls that take too long: what a run may use up, and what it says when it has."""

import pytest

from tests.scenarios.replies import DONE, call, calls
from tests.scenarios.world import ROUNDING_MS, World

pytestmark = pytest.mark.kafka


@pytest.mark.scenario("S11")
@pytest.mark.requirement("R30")
def test_the_same_call_for_ever(here: World) -> None:
    """A hundred executions, not one more; then a last word of the model, and an end that says which limit it was."""
    again = calls(call("note", text="again"))
    run = here.run([again] * 101 + [{"text": "I went round in circles."}])
    completed = run.over()
    assert (completed.status, completed.kind) == ("limit_exceeded", "tool_call_limit")
    assert "limit of 100 tool calls" in completed.reason
    assert run.done() == ["note"] * 100
    assert completed.totals.tool_calls == 100
    assert len(run.requests) == 102
    assert completed.result == "I went round in circles."
    assert not run.requests[100].body.get("tool_choice")
    assert run.requests[101].body["tool_choice"] == "none"


@pytest.mark.scenario("S11")
@pytest.mark.requirement("R30")
def test_the_same_call_until_the_tokens_are_used_up(here: World) -> None:
    """Tokens are bounded, too: one call in flight may overshoot, and the last word is bounded by itself."""
    again = calls(
        call("note", text="again"), usage={"prompt_tokens": 400, "completion_tokens": 100, "total_tokens": 500}
    )
    last = {
        "text": "I went round in circles.",
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
    run = here.run([again] * 3 + [last], limits={"tokens": 1_200})
    completed = run.over()
    assert (completed.status, completed.kind) == ("limit_exceeded", "token_limit")
    assert "1,500 tokens of its limit of 1,200" in completed.reason
    assert completed.totals.tokens == 1_502
    assert run.done() == ["note"] * 2
    assert run.requests[-1].body["max_completion_tokens"] == 2_000


@pytest.mark.scenario("S12")
@pytest.mark.requirement("R30")
def test_one_call_left_and_three_wanted(here: World) -> None:
    """The first of them runs, two are told the limit; what was done before is kept; the history stays valid."""
    three = calls(*(call("note", text=text) for text in "abc"))
    run = here.run([three] * 34 + [{"text": "so far"}])
    completed = run.over()
    assert (completed.status, completed.kind, completed.result) == ("limit_exceeded", "tool_call_limit", "so far")
    assert run.done() == ["note"] * 100
    first, *rest = run.results(-1)
    assert first == "noted a"
    assert all("limit of 100 tool calls" in result for result in rest)
    assert len(rest) == 2
    outputs = [message["content"] for message in run.messages(-1) if message["role"] == "tool"]
    assert outputs[:99] == ["noted a", "noted b", "noted c"] * 33
    assert completed.totals.tool_errors == 0


@pytest.mark.scenario("S17")
@pytest.mark.requirement("R16")
@pytest.mark.requirement("R12")
def test_a_tool_that_takes_too_long(here: World) -> None:
    """At its limit the model is told, and the loop goes on; what comes later is recorded as late, and changes nothing."""
    first, second = here.gate(), here.gate()
    run = here.run(
        [calls(call("hold", gate=first), call("note", text="b")), calls(call("hold", gate=second)), DONE],
        limits={"tool_ms": 400},
    )
    settled = run.until("ToolSettled")
    started = run.seen("ToolDispatchStarted")[0]
    assert settled.time_ms - started.time_ms >= 400 - ROUNDING_MS
    here.open(first)
    run.until("LateReportRecorded")
    here.open(second)
    completed = run.over()
    assert (completed.status, completed.result) == ("completed", "done")
    assert completed.totals.tool_errors >= 1
    late, in_time = run.results(1)
    assert "time limit of 0.4 s" in late
    assert "may still be going on" in late
    assert not any(word in late for word in ("reject", "user", "cancel"))
    assert in_time == "noted b"
    report = next(each for each in run.seen("ToolReported") if each.id == run.events("LateReportRecorded")[0].report)
    assert report.body.output == f"held {first}"
    assert f"held {first}" not in str(run.messages(-1))


@pytest.mark.scenario("S17")
@pytest.mark.requirement("R12")
def test_a_late_result_while_its_turn_is_still_open(here: World) -> None:
    """The first outcome stays: what the model is told does not depend on how long the other calls take."""
    gate = here.gate()
    run = here.run([calls(call("hold", gate=gate), call("ask", question="?")), DONE], limits={"tool_ms": 400})
    run.until("ToolSettled")
    here.open(gate)
    run.until("LateReportRecorded")
    run.answer(1, "yes")
    completed = run.over()
    late, answer = run.results(1)
    assert "time limit of 0.4 s" in late
    assert answer == "yes"
    assert run.outcomes() == ["timed_out", "succeeded"]
    assert completed.totals.tool_errors == 1
