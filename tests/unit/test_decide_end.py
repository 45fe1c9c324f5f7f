"""How a run ends: limits, expiry, cancel, faults; whatever the phase, and always with every call settled."""

from collections.abc import Callable

import pytest

from runfold.core.limits import Limits, limit_problem, limits_from
from runfold.core.pending import completion_of
from runfold.core.phases import Phase
from runfold.events.types import RunFailed, RunFinished, RunParked, RunUnparked, ToolSettled, UnparkRequested
from tests.builders import (
    BEGAN_MS,
    Story,
    answered,
    asked_for,
    call,
    calling,
    dispatched,
    finished,
    names,
    only,
    requested,
    text,
    waiting,
)

requirement = pytest.mark.requirement


def loading() -> Story:
    story = requested()
    story.steps_once()
    return story


def between_attempts() -> Story:
    story = calling()
    story.fails("rate_limited", retry_after_ms=60_000)
    return story


def dispatching() -> Story:
    story = asked_for(call("read"), call("read"))
    step = story.decided().steps[0]
    story.add(step.event, phase=step.phase)
    return story


def advancing() -> Story:
    story = dispatched(call("read"))
    story.reports(0)
    story.steps_once()
    return story


def not_yet() -> Story:
    return requested(not_before_ms=BEGAN_MS + 60_000)


WHEREVER: dict[str, Callable[[], Story]] = {
    "queued": requested,
    "before its time": not_yet,
    "loading context": loading,
    "calling the model": calling,
    "between attempts": between_attempts,
    "reply read, nothing dispatched": lambda: asked_for(call("read")),
    "dispatching": dispatching,
    "awaiting tools": lambda: dispatched(call("read"), call("save")),
    "all settled": lambda: (s := dispatched(call("read")), s.reports(0))[0],
    "advancing": advancing,
    "answered": answered,
    "awaiting a message": waiting,
}


# ---- cancel


@requirement("R27")
@requirement("R10")
@pytest.mark.parametrize("told", WHEREVER.values(), ids=WHEREVER)
def test_a_cancel_is_heard_in_every_phase(told: Callable[[], Story]) -> None:
    """The run stops at the next boundary, reports it truthfully, and no call stays open."""
    story = told()
    story.is_cancelled()
    ended = only(story.goes_on(), RunFinished)
    assert (ended.status, ended.reason, ended.result_of) == ("cancelled", "changed my mind", None)
    assert story.state.phase is Phase.REPORTING
    assert story.state.reply is None
    completion = completion_of(story.state)
    assert completion is not None
    assert completion.status == "cancelled"


def test_a_cancel_says_of_each_open_call_what_is_known() -> None:
    """What ran may have had its effect; what did not start has none."""
    story = asked_for(call("save"), call("save"))
    story.goes_on()
    story.is_cancelled()
    settled = [event for event in story.goes_on() if isinstance(event, ToolSettled)]
    assert [event.outcome for event in settled] == ["interrupted", "cancelled"]
    assert "unknown" in settled[0].message
    assert "Not started" in settled[1].message


def test_a_settled_call_keeps_its_result_at_the_end() -> None:
    """Ending changes no outcome that is known."""
    story = dispatched(call("read"), call("read"))
    story.reports(0, "42")
    story.is_cancelled()
    assert [event.position for event in story.goes_on() if isinstance(event, ToolSettled)] == [1]


def test_an_end_that_broke_off_is_gone_on_with() -> None:
    """After a crash in the middle of ending the rest is decided from there."""
    story = dispatched(call("read"), call("read"))
    story.is_cancelled()
    step = story.decided().steps[0]
    story.add(step.event, phase=step.phase)
    story.changes_owner()
    assert names(story.goes_on()) == ["ToolSettled", "RunFinished"]


def test_a_fault_and_a_cancel_end_as_what_came_first() -> None:
    """A run that failed is not made a cancelled one by a late wish."""
    story = calling()
    story.fails("bad_request", retryable=False)
    story.steps_once()
    story.is_cancelled()
    assert only(story.goes_on(), RunFinished).status == "failed"


# ---- expiry


@requirement("R10")
@pytest.mark.parametrize("told", WHEREVER.values(), ids=WHEREVER)
def test_an_expired_task_stops_in_every_phase(told: Callable[[], Story]) -> None:
    """Wall clock or not: the owner said until when the result is wanted."""
    story = told()
    assert story.state.task is not None
    story.later(1)
    story.state.task = type(story.state.task)(task_id="run", agent="agent", expires_at_ms=story.now_ms)
    ended = only(story.goes_on(), RunFinished)
    assert (ended.status, ended.kind) == ("timed_out", "expired")
    assert "done so far" in ended.reason


def test_the_core_asks_to_be_woken_at_the_expiry() -> None:
    """Also while it waits for something later."""
    expires = {"expires_at_ms": BEGAN_MS + 1_000}
    assert calling(**expires).wake_after_ms() == 1_000
    assert dispatched(call("read"), **expires).wake_after_ms() == 1_000
    assert waiting(**expires).wake_after_ms() == 1_000
    assert requested(not_before_ms=BEGAN_MS + 5_000, **expires).wake_after_ms() == 1_000


def test_an_expired_task_never_starts() -> None:
    """A task that waited too long in the queue costs nothing more."""
    assert names(requested(expires_at_ms=BEGAN_MS).goes_on()) == ["RunFinished"]


# ---- limits


@requirement("R30")
def test_the_limits_are_those_that_were_promised() -> None:
    """Numbers that users plan with do not drift."""
    limits = Limits()
    assert (limits.tool_ms, limits.turn_ms, limits.run_ms) == (120_000, 600_000, 3_600_000)
    assert (limits.idle_ms, limits.tool_calls, limits.tokens) == (1_800_000, 100, 1_000_000)


@requirement("R30")
def test_a_task_may_set_its_limits_by_name() -> None:
    """A wrong name is refused at the door, never ignored in silence."""
    assert limits_from({"tool_calls": 3}).tool_calls == 3
    assert limits_from({}) == Limits()
    assert limit_problem({"tool_calls": 0, "turn_ms": 5}) is None
    assert "unknown limit 'turns'" in str(limit_problem({"turns": 3}))
    assert "must be positive" in str(limit_problem({"turn_ms": 0}))
    assert "must be positive" in str(limit_problem({"tool_calls": -1}))


@requirement("R30")
def test_a_turn_has_600_seconds() -> None:
    """With its attempts, its pauses and its tools; the reason says which turn and what was done."""
    story = calling()
    story.later(250_000).replies(call("wait"))
    story.goes_on()
    assert story.wake_after_ms() == 350_000
    assert story.later(349_999).goes_on() == []
    ended = only(story.later(1).goes_on(), RunFinished)
    assert (ended.status, ended.kind) == ("timed_out", "turn_limit")
    assert "turn 1 passed its limit of 600 s" in ended.reason
    assert "1 tool calls started" in ended.reason


@requirement("R30")
def test_a_run_has_3600_seconds_of_active_time() -> None:
    """The sum of the turns, the one that is going on included."""
    story = calling()
    for _ in range(8):
        story.replies(call("wait"))
        story.goes_on()
        story.later(400_000).reports(0)
        story.goes_on()
    story.replies(call("wait"))
    story.goes_on()
    assert story.wake_after_ms() == 400_000
    ended = only(story.later(400_000).goes_on(), RunFinished)
    assert (ended.status, ended.kind) == ("timed_out", "run_limit")
    assert "3600 s of active time" in ended.reason
    assert ended.totals.turns == 9


@requirement("R30")
def test_waiting_for_a_person_is_no_active_time() -> None:
    """Hours between messages do not use up a run's hour."""
    story = waiting()
    for number in range(5):
        story.later(1_700_000).hears(f"m{number}")
        story.goes_on()
        story.later(1_000).replies(text("yes"))
        assert "RunFinished" not in names(story.goes_on())
    assert story.state.counters.active_ms == 5_000


def test_each_turn_has_its_own_time() -> None:
    """The clock of a turn begins with its first call of the model."""
    story = calling()
    story.later(290_000).replies(call("read"))
    story.goes_on()
    story.later(100_000).reports(0)
    story.goes_on()
    story.later(290_000)
    assert story.wake_after_ms() == 10_000
    assert story.state.turn == 2


# ---- faults


@requirement("R9")
def test_a_fault_becomes_an_event_and_the_run_reports_it() -> None:
    """Failure reporting is a phase like the others; the run does not stay seemingly active."""
    story = calling()
    story.fails("bad_request", retryable=False)
    failed = only(story.steps_once(), RunFailed)
    assert (failed.kind, failed.message, failed.phase) == ("bad_request", "no", "calling_model")
    assert story.state.phase is Phase.REPORTING_FAILURE
    story.changes_owner()
    ended = only(story.steps_once(), RunFinished)
    assert (ended.status, ended.kind, ended.reason) == ("failed", "bad_request", "no")
    assert story.state.phase is Phase.REPORTING_FAILURE
    story.completion = "c1"
    assert names(story.goes_on()) == ["TaskReported"]


@requirement("R9")
def test_a_fault_while_tools_run_settles_them() -> None:
    """Whatever went wrong, every call in the transcript has one result."""
    story = dispatched(call("read"))
    story.add(RunFailed(kind="bug", message="x", phase="awaiting_tools"), phase="reporting_failure")
    assert names(story.goes_on()) == ["ToolSettled", "RunFinished"]


def test_a_long_message_of_a_provider_still_fits_a_record() -> None:
    """What replaces something too large always fits."""
    story = calling()
    story.add(RunFailed(kind="bug", message="x" * 10_000_000, phase=""), phase="reporting_failure")
    assert len(only(story.goes_on(), RunFinished).reason) == 4_000


# ---- reporting


@requirement("R8")
def test_the_result_is_derived_from_the_answer_in_the_transcript() -> None:
    """The completion carries the text of the item that the end names."""
    story = finished(labels={"team": "a"}, parent="p")
    completion = completion_of(story.state)
    assert completion is not None
    assert (completion.task_id, completion.status, completion.result) == ("run", "completed", "done")
    assert (completion.labels, completion.parent) == ({"team": "a"}, "p")


def test_a_run_that_broke_off_still_hands_over_its_last_text() -> None:
    """Work that was said is not thrown away with the run."""
    story = calling()
    story.replies(text("half way"), call("read"))
    story.goes_on()
    story.is_cancelled()
    story.goes_on()
    completion = completion_of(story.state)
    assert completion is not None
    assert (completion.status, completion.result, completion.finish_reason) == ("cancelled", "half way", "")


# ---- set aside


def test_a_parked_run_decides_nothing_until_it_is_unparked() -> None:
    """Not even its time limits; then it goes on where it was."""
    story = calling()
    story.add(RunParked(reason="x", base_offset=0), phase="calling_model")
    story.is_cancelled()
    assert story.later(10_000_000).goes_on() == []
    assert story.wake_after_ms() is None
    story.add(UnparkRequested(command_id="u1", mode="retry"))
    events = story.goes_on()
    assert names(events) == ["RunUnparked", "RunFinished"]
    assert only(events, RunUnparked).skipped == []
    assert only(events, RunFinished).status == "cancelled"
