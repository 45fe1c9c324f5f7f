"""Deciding while tools are open: refuse, dispatch, settle, advance."""

from typing import Any

import pytest

from runfold.core.pending import pending_tools
from runfold.core.phases import Phase
from runfold.core.transcript import Results, check_order
from runfold.events.types import (
    Event,
    ModelCallStarted,
    PhaseEntered,
    RunFailed,
    RunFinished,
    ToolDispatchStarted,
    ToolSettled,
    TurnAdvanced,
)
from tests.builders import SESSION_MS, Story, asked_for, call, calling, dispatched, names, only, sha, text

requirement = pytest.mark.requirement


def positions(events: list[Event]) -> list[int]:
    return [event.position for event in events if isinstance(event, ToolDispatchStarted)]


def outcomes(story: Story) -> list[str]:
    assert story.state.reply is not None
    return [call.outcome for call in story.state.reply.calls]


def results(story: Story) -> list[tuple[str, str]]:
    last = [entry for entry in story.state.transcript if isinstance(entry, Results)][-1]
    return [(result.outcome, result.output) for result in last.results]


# ---- starting


@requirement("R3")
@requirement("R11")
def test_a_start_is_recorded_before_the_tool_is_started() -> None:
    """Planned, started and settled are three facts: the dispatch names reply, call, arguments and key."""
    story = asked_for(call("read", '{"path": "a"}'))
    assert pending_tools(story.state) == []
    events = story.goes_on()
    assert [call.position for call in pending_tools(story.state)] == [0]
    started = only(events, ToolDispatchStarted)
    assert (started.model_call, started.position, started.attempt) == (story.model_call, 0, 1)
    assert started.arguments_sha256 == sha('{"path": "a"}')
    assert started.time_limit_ms == 120_000
    assert outcomes(story) == [""]


@requirement("R2")
def test_no_phase_is_left_out() -> None:
    """One call: the dispatch enters `dispatching_tools`, PhaseEntered says the next. Several: the last dispatch does."""
    one, two = asked_for(call("read")), asked_for(call("read"), call("read"))
    assert names(one.goes_on()) == ["ToolDispatchStarted", "PhaseEntered"]
    assert names(two.goes_on()) == ["ToolDispatchStarted", "ToolDispatchStarted"]
    assert [record.phase for record in one.records[-2:]] == ["dispatching_tools", "awaiting_tools"]
    assert [record.phase for record in two.records[-2:]] == ["dispatching_tools", "awaiting_tools"]


@requirement("R2")
def test_the_phase_is_reached_when_only_the_first_of_a_chain_landed() -> None:
    """Any prefix of a chain may survive; the rest is decided anew from there."""
    story = asked_for(call("read"))
    first = story.decided().steps[0]
    story.ours.add("first")
    story.add(first.event, phase=first.phase, name="first")
    assert [type(event) for event in story.goes_on()] == [PhaseEntered]
    assert story.state.phase is Phase.AWAITING_TOOLS


@requirement("R14")
def test_so_many_calls_run_at_once_and_no_more() -> None:
    """Eight in flight; the next starts when one comes back."""
    story = asked_for(*[call("read")] * 10)
    assert positions(story.goes_on()) == list(range(8))
    story.reports(3)
    assert positions(story.goes_on()) == [8]
    story.reports(0)
    story.reports(8)
    assert positions(story.goes_on()) == [9]


@requirement("R14")
def test_between_batches_a_cancel_is_heard() -> None:
    """What has not started never does."""
    story = asked_for(*[call("read")] * 3, limits={"tools_in_flight": 1})
    story.goes_on()
    story.is_cancelled()
    events = story.goes_on()
    assert [event.outcome for event in events if isinstance(event, ToolSettled)] == [
        "interrupted",
        "cancelled",
        "cancelled",
    ]
    assert positions(events) == []


@requirement("R15")
def test_independent_calls_run_side_by_side() -> None:
    """Nobody waits for a neighbour that only reads."""
    assert positions(asked_for(call("read"), call("save"), call("read")).goes_on()) == [0, 1, 2]


@requirement("R15")
def test_calls_that_change_state_run_one_after_the_other_in_call_order() -> None:
    """The second starts when the first is closed, however it was closed."""
    story = asked_for(call("save"), call("save"), call("read"), call("save"))
    assert positions(story.goes_on()) == [0, 2]
    story.reports(2)
    assert story.goes_on() == []
    story.reports(0, "no", outcome="failed")
    assert positions(story.goes_on()) == [1]
    story.later(120_000)
    assert positions(story.goes_on()) == [3]


# ---- refusing


REFUSED = {
    "unknown tool": (call("teleport"), "unknown_tool", "There is no tool 'teleport'"),
    "no JSON": (call("read", "{"), "invalid_arguments", "not valid JSON"),
    "no object": (call("read", "[1]"), "invalid_arguments", "must be a JSON object"),
    "not a number": (call("read", '{"a": NaN}'), "invalid_arguments", "NaN is not JSON"),
    "breaks the schema": (call("read", '{"bad": 1}'), "invalid_arguments", "'bad' is not allowed"),
}


@requirement("R17")
@pytest.mark.parametrize(("item", "outcome", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_run_is_a_result_for_the_model(item: Any, outcome: str, message: str) -> None:
    """The model sees why, and the run goes on; good calls beside it run."""
    story = asked_for(item, call("read"))
    events = story.goes_on()
    assert positions(events) == [1]
    settled = only(events, ToolSettled)
    assert settled.outcome == outcome
    assert message in settled.message
    story.reports(1)
    assert names(story.goes_on()) == ["TurnAdvanced", "ModelCallStarted"]


@requirement("R17")
def test_a_failed_tool_is_a_result_for_the_model() -> None:
    """The model may try something else; the run has not failed."""
    story = dispatched(call("read"))
    story.reports(0, "no such file", outcome="failed")
    assert names(story.goes_on()) == ["TurnAdvanced", "ModelCallStarted"]
    assert results(story) == [("failed", "no such file")]


def test_when_all_calls_are_refused_the_turn_advances_at_once() -> None:
    """Nothing is waited for that was never started."""
    events = asked_for(call("teleport"), call("read", "{")).goes_on()
    assert names(events) == ["ToolSettled", "ToolSettled", "TurnAdvanced", "ModelCallStarted"]


@pytest.mark.parametrize("arguments", ["", "  ", "null", "{}", '"{}"', '""'])
def test_no_arguments_are_an_empty_object(arguments: str) -> None:
    """Models write nothing in many ways."""
    assert only(asked_for(call("read", arguments)).goes_on(), ToolDispatchStarted).arguments_sha256 == sha("{}")


def test_a_cut_reply_starts_nothing() -> None:
    """Arguments may be half: the model is told to send the call again; after three in a row the run fails."""
    story = calling()
    for _ in range(2):
        story.replies(call("read", '{"a": 1'), call("read"), finish="length")
        events = story.goes_on()
        assert names(events) == ["ToolSettled", "ToolSettled", "TurnAdvanced", "ModelCallStarted"]
        assert {event.outcome for event in events if isinstance(event, ToolSettled)} == {"cut_off"}
    story.replies(call("read"), finish="length")
    assert only(story.goes_on(), RunFailed).kind == "truncated"


def test_a_filtered_reply_starts_nothing_and_fails_the_run() -> None:
    """What a content filter left of a reply is not acted on."""
    story = calling()
    story.replies(call("save"), finish="content_filter")
    events = story.goes_on()
    assert positions(events) == []
    assert only(events, RunFailed).kind == "content_filter"


@requirement("R30")
def test_of_three_calls_after_ninety_nine_one_runs_and_the_run_ends() -> None:
    """The limit is met exactly; the model's last results and the run's reason both say which limit it was."""
    story = calling()
    for _ in range(33):
        story.replies(*[call("read")] * 3)
        story.goes_on()
        for position in range(3):
            story.reports(position)
        assert only(story.goes_on(), ModelCallStarted)
    assert story.state.counters.tool_calls == 99
    story.replies(*[call("read")] * 3)
    events = story.goes_on()
    assert positions(events) == [0]
    assert [event.position for event in events if isinstance(event, ToolSettled)] == [1, 2]
    assert outcomes(story) == ["", "over_limit", "over_limit"]
    story.reports(0, "the last one")
    assert only(story.goes_on(), ModelCallStarted).last_turn
    story.replies(text("so far, so good"))
    ended = only(story.goes_on(), RunFinished)
    assert (ended.status, ended.kind) == ("limit_exceeded", "tool_call_limit")
    assert "limit of 100 tool calls" in ended.reason
    assert ended.totals.tool_calls == 100
    assert results(story)[0] == ("succeeded", "the last one")
    assert all(outcome == "over_limit" and "100 tool calls" in output for outcome, output in results(story)[1:])
    assert check_order(story.state.transcript) is None


@requirement("R30")
def test_no_tool_starts_beyond_the_token_limit() -> None:
    """A run that has used up its tokens does no more work that it cannot use."""
    story = calling(limits={"tokens": 100})
    story.replies(call("read"), tokens=100)
    events = story.goes_on()
    assert positions(events) == []
    story.replies(text("I had to stop."))
    finished = only(story.goes_on(), RunFinished)
    assert (finished.status, finished.kind) == ("limit_exceeded", "token_limit")
    assert finished.reason.startswith("the run used 100 tokens of its limit of 100; done so far")


# ---- outcomes


@requirement("R6")
@requirement("R4")
def test_the_model_is_called_again_only_when_every_sibling_is_settled() -> None:
    """Exactly one next call for a batch, after the last outcome."""
    story = dispatched(call("read"), call("read"), call("read"))
    story.reports(2)
    assert story.goes_on() == []
    story.reports(0)
    assert story.goes_on() == []
    story.reports(1)
    events = story.goes_on()
    assert names(events) == ["TurnAdvanced", "ModelCallStarted"]
    assert only(events, TurnAdvanced).calls == [0, 1, 2]


@requirement("R5")
def test_results_enter_the_transcript_in_call_order() -> None:
    """Completion order stays in the log as evidence; the model sees call order."""
    story = dispatched(call("read"), call("read"), call("read"))
    for position in (2, 0, 1):
        story.reports(position, f"result {position}")
    evidence = [record.body.position for record in story.records if record.type == "ToolReported"]  # type: ignore[union-attr]
    story.goes_on()
    assert evidence == [2, 0, 1]
    assert [output for _, output in results(story)] == ["result 0", "result 1", "result 2"]


@requirement("R16")
@requirement("R30")
def test_a_passed_time_limit_is_a_known_outcome() -> None:
    """120 seconds; the model learns of it, and that the work may still be going on."""
    story = dispatched(call("read"))
    assert story.wake_after_ms() == 120_000
    assert story.later(119_999).goes_on() == []
    events = story.later(1).goes_on()
    settled = only(events, ToolSettled)
    assert settled.outcome == "timed_out"
    assert "120 s" in settled.message
    assert "may still be going on" in settled.message
    assert names(events)[-1] == "ModelCallStarted"


@requirement("R16")
def test_a_tools_own_time_limit_comes_first() -> None:
    """A quick tool need not be waited for two minutes; a sibling keeps its own time."""
    story = dispatched(call("read"), call("quick"))
    assert story.wake_after_ms() == 5_000
    assert names(story.later(5_000).goes_on()) == ["ToolSettled"]
    assert outcomes(story) == ["", "timed_out"]
    assert story.wake_after_ms() == 115_000


@requirement("R16")
def test_a_result_in_time_is_not_overtaken_by_the_limit() -> None:
    """What stands in the log before the decision counts, even if nobody had read it."""
    story = dispatched(call("read"))
    story.later(120_000)
    story.reports(0, "just in time")
    story.goes_on()
    assert results(story) == [("succeeded", "just in time")]


# ---- after a change of owner


@requirement("R2")
@requirement("R11")
@requirement("R12")
def test_an_open_call_of_a_dead_owner_is_interrupted_never_repeated() -> None:
    """Two session timeouts after the takeover: until then the old owner may still report."""
    story = dispatched(call("save")).later(10_000).changes_owner()
    assert story.wake_after_ms() == 2 * SESSION_MS
    assert story.later(2 * SESSION_MS - 1).goes_on() == []
    events = story.later(1).goes_on()
    assert only(events, ToolSettled).outcome == "interrupted"
    assert positions(events) == []
    assert "not known" in results(story)[0][1]


@requirement("R12")
def test_the_old_owner_may_still_report_after_the_takeover() -> None:
    """A result that arrives in that time is the result."""
    story = dispatched(call("save")).changes_owner().later(SESSION_MS)
    assert story.goes_on() == []
    story.reports(0, "done")
    story.goes_on()
    assert results(story) == [("succeeded", "done")]


@requirement("R12")
@requirement("R13")
@pytest.mark.parametrize("name", ["fetch", "wait"])
def test_idempotent_tools_and_waits_are_started_again(name: str) -> None:
    """Under the same call and the same key: the tool can tell that it is the same."""
    story = dispatched(call(name))
    first = only((record.body for record in story.records if record.body is not None), ToolDispatchStarted)
    story.changes_owner().later(2 * SESSION_MS)
    again = only(story.goes_on(), ToolDispatchStarted)
    assert (again.position, again.attempt) == (0, 2)
    assert again.idempotency_key == first.idempotency_key
    assert story.state.counters.tool_calls == 1, "the same call"
    story.reports(0, "done")
    story.goes_on()
    assert results(story) == [("succeeded", "done")]


@requirement("R12")
def test_the_first_attempt_of_a_restarted_call_may_answer() -> None:
    """Either attempt's result is the call's result; the other is late."""
    story = dispatched(call("fetch"))
    first = story.report(0, "from the first")
    story.changes_owner().later(2 * SESSION_MS).goes_on()
    second = story.report(0, "from the second")
    story.add(first)
    story.add(second)
    assert len(story.state.late) == 1
    story.goes_on()
    assert results(story) == [("succeeded", "from the first")]


@requirement("R12")
def test_a_call_that_was_never_dispatched_is_dispatched_by_the_new_owner() -> None:
    """Nothing was promised, so nothing can have run."""
    story = asked_for(call("save")).changes_owner()
    assert positions(story.goes_on()) == [0]


def test_a_call_of_a_living_owner_is_left_alone() -> None:
    """Its own process is not gone however long it takes."""
    story = dispatched(call("save"))
    assert story.later(119_999).goes_on() == []
