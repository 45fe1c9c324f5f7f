"""Deciding while no tool call is open: the first call, attempts, answers, messages."""

import pytest

from runfold.core.decide_model import backoff_ms
from runfold.core.pending import completion_of
from runfold.core.phases import Phase
from runfold.core.transcript import UserMessage
from runfold.events.types import Item, ModelCallStarted, PhaseEntered, RunFailed, RunFinished, ToolDispatchStarted
from tests.builders import BEGAN_MS, answered, call, calling, dispatched, names, only, requested, text, waiting

requirement = pytest.mark.requirement
NEXT_CALL = ["TurnAdvanced", "ModelCallStarted"]


# ---- beginning


@requirement("R1")
@requirement("R2")
def test_a_run_loads_its_context_and_calls_the_model() -> None:
    """Each transition is a decision whose phase differs from the one before."""
    story = requested()
    phases = [story.state.phase]
    for name in ("ContextLoaded", "ModelCallStarted"):
        assert names(story.steps_once()) == [name]
        phases.append(story.state.phase)
    assert phases == [Phase.QUEUED, Phase.LOADING_CONTEXT, Phase.CALLING_MODEL]
    assert story.steps_once() == []


def test_a_run_waits_for_its_time() -> None:
    """`not_before` holds back the start, and the core says when to ask again."""
    story = requested(not_before_ms=BEGAN_MS + 5_000)
    assert story.wake_after_ms() == 5_000
    assert story.later(4_999).goes_on() == []
    assert names(story.later(1).goes_on()) == ["ContextLoaded", "ModelCallStarted"]


@requirement("R34")
def test_a_malformed_request_is_rejected_with_its_reason() -> None:
    """Nobody waits for a completion that never comes."""
    ended = only(requested(problem="no input").goes_on(), RunFinished)
    assert (ended.status, ended.reason) == ("rejected", "no input")


def test_an_unknown_agent_is_rejected() -> None:
    """What the deployment does not offer is said, not failed."""
    ended = only(requested(agent="nobody").goes_on(), RunFinished)
    assert ended.status == "rejected"
    assert "nobody" in ended.reason


def test_a_model_call_refers_to_the_transcript_and_never_repeats_it() -> None:
    """The log grows linearly: what a call records does not depend on what was said."""
    short, long = calling(input="x"), calling(input="x" * 100_000)
    bodies = [story.records[-1].body for story in (short, long)]
    assert all(isinstance(body, ModelCallStarted) and body.transcript_length == 1 for body in bodies)
    assert len(str(bodies[0])) == len(str(bodies[1]))
    assert bodies[0] != bodies[1], "the digests differ"


# ---- attempts


@requirement("R31")
def test_a_failure_that_can_pass_is_tried_again_after_a_pause() -> None:
    """The next attempt is of the same turn, recorded like the first."""
    story = calling()
    story.fails()
    assert story.state.call is not None
    pause_ms = backoff_ms(story.state.call)
    assert story.wake_after_ms() == pause_ms
    assert story.later(pause_ms - 1).goes_on() == []
    again = only(story.later(1).goes_on(), ModelCallStarted)
    assert (again.turn, again.attempt) == (1, 2)
    assert story.state.counters.model_failures == 1


@requirement("R31")
def test_the_servers_own_delay_is_kept() -> None:
    """Who says when to come back knows best."""
    story = calling()
    story.fails("rate_limited", retry_after_ms=45_000)
    assert story.wake_after_ms() == 45_000


@requirement("R31")
def test_a_failure_that_cannot_pass_is_not_repeated() -> None:
    """A bad request stays bad."""
    story = calling()
    story.fails("bad_request", retryable=False)
    assert names(story.goes_on()) == ["RunFailed", "RunFinished"]


@requirement("R31")
def test_an_attempt_that_would_pass_the_turns_limit_is_not_waited_for() -> None:
    """A pause beyond the deadline is a failure now, not in ten minutes."""
    story = calling()
    story.fails("rate_limited", retry_after_ms=600_000)
    assert "would pass the turn's limit" in only(story.goes_on(), RunFailed).message


def test_pauses_grow_and_have_a_bound() -> None:
    """Half a second at first, thirty at most, with a jitter that the call's own id decides."""
    story = calling(limits={"model_attempts": 50})
    pauses = []
    for _ in range(9):
        story.fails()
        wake_ms = story.wake_after_ms()
        assert wake_ms is not None
        pauses.append(wake_ms)
        story.later(wake_ms).goes_on()
    assert 375 <= pauses[0] <= 500
    assert 22_500 <= pauses[-1] <= 30_000
    assert pauses[:4] == sorted(pauses[:4])


def test_attempts_have_a_bound() -> None:
    """The message says which attempt was the last."""
    story = calling(limits={"model_attempts": 2})
    story.fails()
    story.later(1_000).goes_on()
    story.fails()
    assert "attempt 2 of 2" in only(story.later(1_000).goes_on(), RunFailed).message


@requirement("R31")
def test_a_model_that_does_not_answer_is_asked_again_at_the_attempts_limit() -> None:
    """300 seconds an attempt by our own clock, whatever the connection says."""
    story = calling()
    assert story.wake_after_ms() == 300_000
    assert story.later(299_999).goes_on() == []
    assert only(story.later(1).goes_on(), ModelCallStarted).attempt == 2


@requirement("R36")
def test_the_call_of_a_dead_owner_is_made_again_at_once() -> None:
    """A new owner has no connection to wait on."""
    story = calling().later(1_000).changes_owner()
    assert only(story.goes_on(), ModelCallStarted).attempt == 2


def test_the_call_of_another_living_owner_is_waited_for() -> None:
    """Two who both believe they own a run must not call for ever."""
    story = calling()
    story.assigned_at_ms, story.ours = story.now_ms - 1, set()
    assert story.later(10_000).goes_on() == []
    assert only(story.later(290_000).goes_on(), ModelCallStarted).attempt == 2


@requirement("R30")
def test_the_token_limit_ends_the_run_before_the_next_call() -> None:
    """The reason says which limit and what was done."""
    story = calling(limits={"tokens": 100})
    story.replies(call("read"), tokens=40)
    story.goes_on()
    story.reports(0)
    story.goes_on()
    story.replies(text(""), tokens=60)
    assert only(story.goes_on(), ModelCallStarted).last_turn == "the run used 100 tokens of its limit of 100"
    story.replies(text("I read it."), tokens=5)
    ended = only(story.goes_on(), RunFinished)
    assert (ended.status, ended.kind) == ("limit_exceeded", "token_limit")
    assert "100 tokens of its limit of 100" in ended.reason
    assert "3 turns, 1 tool calls started" in ended.reason
    assert ended.result_of == story.state.answer != ""


@requirement("R30")
@pytest.mark.parametrize("happens", ["it fails", "it is slow", "it calls", "it says nothing", "there is none"])
def test_the_last_turn_is_a_courtesy_and_never_holds_the_end_up(happens: str) -> None:
    """One attempt, no tool, a time limit of its own; whatever comes of it, the run ends by its limit."""
    story = calling(limits={"tokens": 100, **({"last_turn_tokens": 0} if happens == "there is none" else {})})
    story.replies(call("read"), tokens=100)
    events = story.goes_on()
    match happens:
        case "it fails":
            story.fails()
        case "it is slow":
            story.later(60_000)
        case "it calls":
            story.replies(call("save"), text("one more"))
        case "it says nothing":
            story.replies(text(" "))
    events += story.goes_on()
    assert not [event for event in events if isinstance(event, ToolDispatchStarted)]
    ended = only(events, RunFinished)
    assert (ended.status, ended.kind) == ("limit_exceeded", "token_limit")


# ---- answers


@requirement("R8")
def test_a_final_answer_ends_the_run_and_names_its_result() -> None:
    """The answer is durable in the transcript; the end refers to it and copies nothing."""
    story = answered()
    ended = only(story.goes_on(), RunFinished)
    assert (ended.status, ended.result_of) == ("completed", story.model_call)
    assert story.state.phase is Phase.REPORTING


@requirement("R8")
def test_a_run_is_over_when_its_completion_is_acknowledged() -> None:
    """Until then reporting goes on, and the model is never run again for it."""
    story = answered()
    story.goes_on()
    assert story.later(86_400_000).goes_on() == []
    assert story.wake_after_ms() is None
    story.completion = "c1"
    assert names(story.goes_on()) == ["TaskReported"]
    assert story.state.phase is Phase.DONE
    assert story.goes_on() == []


def test_an_empty_reply_is_asked_for_again_twice() -> None:
    """Then it is a fault; anything said in between starts the count anew."""
    story = calling()
    for _ in range(2):
        story.replies(text("  "))
        assert names(story.goes_on()) == NEXT_CALL
    story.replies()
    assert only(story.goes_on(), RunFailed).kind == "empty_reply"


def test_empty_replies_count_in_a_row_only() -> None:
    """A model that goes on working is not failing."""
    story = calling()
    for _ in range(4):
        story.replies()
        story.goes_on()
        story.replies(call("read"))
        story.goes_on()
        story.reports(0)
        assert names(story.goes_on()) == NEXT_CALL


def test_a_content_filter_fails_the_run() -> None:
    """Half an answer is not taken for one."""
    story = calling()
    story.replies(text("half an ans"), finish="content_filter")
    assert only(story.goes_on(), RunFailed).kind == "content_filter"


def test_an_answer_cut_at_its_length_is_an_answer() -> None:
    """The completion says how it ended; the owner decides what that is worth."""
    story = calling()
    story.replies(text("a long sto"), finish="length")
    assert only(story.goes_on(), RunFinished).status == "completed"
    assert story.state.answer_finish_reason == "length"


def test_a_refusal_is_an_answer() -> None:
    """The model may say no: that is its result, and marked as what it is."""
    story = calling()
    story.replies(Item(kind="refusal", text="I will not"))
    assert only(story.goes_on(), RunFinished).status == "completed"
    completion = completion_of(story.state)
    assert completion is not None
    assert (completion.result, completion.refusal) == ("I will not", True)


# ---- messages


@requirement("R26")
def test_messages_enter_at_the_next_turn_in_order_and_once() -> None:
    """What comes while tools run waits for the turn boundary."""
    story = dispatched(call("read"))
    story.hears("m1")
    story.hears("m2")
    assert story.goes_on() == []
    story.reports(0)
    started = only(story.goes_on(), ModelCallStarted)
    assert started.messages == ["m1", "m2"]
    said = [entry.text for entry in story.state.transcript if isinstance(entry, UserMessage)]
    assert said == ["do it", "message m1", "message m2"]
    assert started.transcript_length == len(story.state.transcript)
    story.replies(text("done"))
    assert names(story.goes_on()) == ["RunFinished"]


@requirement("R26")
def test_a_message_during_the_last_call_is_answered_before_the_end() -> None:
    """Nobody is ignored because the model was about to be done."""
    story = calling()
    story.hears("m1")
    story.replies(text("done"))
    events = story.goes_on()
    assert names(events) == NEXT_CALL
    assert only(events, ModelCallStarted).messages == ["m1"]


@requirement("R26")
def test_messages_wait_out_a_failed_attempt_and_join_the_next() -> None:
    """A repeated attempt sees what came meanwhile; nothing is taken twice."""
    story = calling()
    story.hears("m1")
    story.fails()
    assert only(story.later(1_000).goes_on(), ModelCallStarted).messages == ["m1"]
    story.fails()
    assert only(story.later(2_000).goes_on(), ModelCallStarted).messages == []


@requirement("R40")
def test_an_interactive_run_answers_and_waits() -> None:
    """It goes on in the same transcript when somebody speaks."""
    story = answered(interactive=True)
    events = story.goes_on()
    assert names(events) == ["TurnAdvanced", "PhaseEntered"]
    assert only(events, PhaseEntered).phase == "awaiting_message"
    story.later(60_000).hears("m1")
    started = only(story.goes_on(), ModelCallStarted)
    assert (started.turn, started.attempt, started.messages) == (2, 1, ["m1"])
    assert len(story.state.transcript) == 3


@requirement("R40")
def test_an_interactive_run_ends_when_it_is_closed() -> None:
    """With its last answer as the result."""
    story = waiting()
    story.is_closed()
    ended = only(story.goes_on(), RunFinished)
    assert (ended.status, ended.kind, ended.result_of) == ("completed", "closed", story.model_call)


@requirement("R40")
def test_a_message_from_before_the_close_is_answered_first() -> None:
    """Closing says that no more will come, not that nobody listens."""
    story = waiting()
    story.hears("m1")
    story.is_closed()
    assert only(story.goes_on(), ModelCallStarted).messages == ["m1"]
    story.replies(text("the last word"))
    assert only(story.goes_on(), RunFinished).result_of == story.model_call


@requirement("R40")
@requirement("R30")
def test_an_interactive_run_ends_after_its_idle_limit() -> None:
    """1,800 seconds without a message; the wait itself is no active time."""
    story = waiting()
    assert story.wake_after_ms() == 1_800_000
    active_ms = story.state.counters.active_ms
    assert story.later(1_799_999).goes_on() == []
    assert only(story.later(1).goes_on(), RunFinished).kind == "idle"
    assert story.state.counters.active_ms == active_ms


def test_a_message_starts_the_idle_time_anew() -> None:
    """Idle is counted from the last answer."""
    story = waiting()
    story.later(1_700_000).hears("m1")
    story.goes_on()
    story.replies(text("still here"))
    story.goes_on()
    assert story.wake_after_ms() == 1_800_000
