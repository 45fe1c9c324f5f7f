"""People in the loop: approvals, questions, pauses; and what else a run waits for: children, times, claims."""

import pytest

from runfold.core.children import child_requests, unwanted_children
from runfold.core.fold import WITHOUT_EFFECT
from runfold.core.pending import completion_of
from runfold.core.waits import status_of
from runfold.events.types import (
    ApprovalDecided,
    ApprovalRequired,
    Item,
    ModelCallStarted,
    RunFinished,
    RunLost,
    RunParked,
    RunUnparked,
    ToolDispatchStarted,
    ToolSettled,
    TurnAdvanced,
)
from tests.builders import Story, asked_for, call, calling, dispatched, names, only, requested, sha, text, waiting

requirement = pytest.mark.requirement
PAY = call("pay", '{"a": 11}')
ERASE = call("erase")


def outcomes(story: Story) -> list[str]:
    assert story.state.reply is not None
    return [call.outcome for call in story.state.reply.calls]


def starts(events: list[object]) -> list[int]:
    return [event.position for event in events if isinstance(event, ToolDispatchStarted)]


# ---- approvals


@requirement("R25")
def test_a_call_that_needs_approval_waits_for_it_and_its_siblings_do_not() -> None:
    """What is asked names the digest of the arguments; the free call runs meanwhile."""
    story = asked_for(PAY, call("read"))
    events = story.goes_on()
    asked = only(events, ApprovalRequired)
    assert (asked.position, asked.reason, asked.time_limit_ms) == (0, "it costs money", 300_000)
    assert asked.arguments_sha256 == sha('{"a": 11}')
    assert starts(events) == [1]
    assert status_of(story.state) == "waiting_approval"
    story.decides(0, approved=True)
    assert starts(story.goes_on()) == [0]
    story.reports(0)
    story.reports(1)
    assert only(story.goes_on(), TurnAdvanced)


@requirement("R25")
def test_the_predicate_decides_who_is_asked() -> None:
    """Below the amount nobody is."""
    events = asked_for(call("pay", '{"a": 10}')).goes_on()
    assert starts(events) == [0]
    assert "ApprovalRequired" not in names(events)


@requirement("R25")
def test_a_rejection_is_a_result_for_the_model() -> None:
    """With the person's reason; the tool never starts; rejected is not an error of the tool."""
    story = asked_for(ERASE)
    story.goes_on()
    story.decides(0, approved=False, reason="not on a Friday")
    events = story.goes_on()
    settled = only(events, ToolSettled)
    assert (settled.outcome, starts(events)) == ("rejected", [])
    assert "not on a Friday" in settled.message
    assert only(events, ModelCallStarted)
    assert story.state.counters.tool_errors == 0


@requirement("R25")
def test_an_approval_expires_as_a_no_that_nobody_said() -> None:
    """After 300 s, recorded as expired; what a person says later changes nothing."""
    story = asked_for(ERASE)
    story.goes_on()
    assert story.wake_after_ms() == 300_000
    story.later(299_999)
    assert story.goes_on() == []
    story.later(1)
    assert only(story.goes_on(), ToolSettled).outcome == "expired"
    story.add(ApprovalDecided(command_id="late", approval="e4", arguments_sha256=sha(), approved=True))
    assert story.goes_on() == []
    assert story.state.counters.tool_calls == 0


@requirement("R25")
def test_a_decision_just_before_the_expiry_wins() -> None:
    """Expired has no effect where a person's word stands before it in the log."""
    story = asked_for(ERASE)
    story.goes_on()
    story.decides(0, approved=True)
    assert story.add(story.settlement(0, "expired")) is WITHOUT_EFFECT
    assert starts(story.goes_on()) == [0]


@requirement("R25")
@pytest.mark.parametrize("second", [True, False])
def test_the_first_decision_wins(second: bool) -> None:
    """Two people, two tabs, the same or the opposite: the second changes nothing."""
    story = asked_for(ERASE)
    story.goes_on()
    story.decides(0, approved=True)
    story.decides(0, approved=second)
    assert starts(story.goes_on()) == [0]
    story.decides(0, approved=False)
    assert story.goes_on() == []


@requirement("R25")
@pytest.mark.parametrize("other", [{"arguments_sha256": sha("{}1")}, {"approval": "another"}, {"approval": ""}])
def test_an_approval_names_what_was_shown(other: dict[str, str]) -> None:
    """Another approval, other arguments: refused, and the call goes on waiting."""
    story = asked_for(ERASE)
    story.goes_on()
    story.decides(0, approved=True, **other)
    assert story.goes_on() == []
    assert status_of(story.state) == "waiting_approval"


@requirement("R25")
def test_several_approvals_are_open_at_once_and_decided_in_any_order() -> None:
    """One rejected next to one approved and a free one: results in call order."""
    story = asked_for(ERASE, call("read"), ERASE)
    assert names(story.goes_on()).count("ApprovalRequired") == 2
    story.reports(1)
    story.decides(2, approved=True)
    assert starts(story.goes_on()) == [2]
    story.decides(0, approved=False)
    story.goes_on()
    story.reports(2)
    story.goes_on()
    last = story.state.transcript[-1]
    assert [result.outcome for result in last.results] == ["rejected", "succeeded", "succeeded"]


@requirement("R25")
def test_a_dispatch_without_the_yes_has_no_effect() -> None:
    """Whoever appends it: the fold holds the gate too."""
    story = asked_for(ERASE)
    story.steps_once()
    assert story.add(story.dispatch(0, tool="erase"), phase="awaiting_tools") is WITHOUT_EFFECT
    story.decides(0, approved=False)
    assert story.add(story.dispatch(0, tool="erase"), phase="awaiting_tools") is WITHOUT_EFFECT


@requirement("R30")
def test_waiting_for_people_is_not_the_runs_time() -> None:
    """The turn's clock stands while only a person is waited for, and runs while a tool does."""
    story = asked_for(ERASE, call("read"), limits={"turn_ms": 10_000, "approval_ms": 900_000})
    story.goes_on()
    story.later(4_000)
    story.reports(1)
    story.later(500_000)
    assert story.goes_on() == []
    story.decides(0, approved=True)
    assert starts(story.goes_on()) == [0]
    story.later(5_000)
    story.reports(0)
    story.goes_on()
    assert story.state.counters.active_ms == 9_000


@requirement("R30")
def test_the_turns_limit_still_holds_for_what_is_the_runs_time() -> None:
    """Four seconds before the wait and six after it are ten."""
    story = asked_for(ERASE, call("read"), limits={"turn_ms": 10_000})
    story.goes_on()
    story.later(4_000)
    story.reports(1)
    story.later(100_000)
    story.decides(0, approved=True)
    story.goes_on()
    story.later(6_000)
    assert only(story.goes_on(), RunFinished).kind == "turn_limit"


@requirement("R27")
def test_a_cancel_is_heard_while_an_approval_is_open() -> None:
    """The call is settled as cancelled; a late yes starts nothing."""
    story = asked_for(ERASE)
    story.goes_on()
    story.is_cancelled()
    events = story.goes_on()
    assert only(events, ToolSettled).outcome == "cancelled"
    assert only(events, RunFinished).status == "cancelled"
    assert story.state.counters.tool_calls == 0


# ---- questions and times


@requirement("R19")
def test_a_question_waits_for_its_answer() -> None:
    """The answer is the call's result; the first one counts."""
    story = dispatched(call("ask", '{"question": "which?"}'))
    assert status_of(story.state) == "waiting_answer"
    story.changes_owner().later(60_000)
    assert story.goes_on() == []
    story.answers(0, "the blue one")
    story.answers(0, "no, the red one")
    story.goes_on()
    assert story.state.transcript[-1].results[0].output == "the blue one"


@requirement("R16")
def test_nobody_answers() -> None:
    """After 1,800 s the model is told so."""
    story = dispatched(call("ask"))
    assert story.wake_after_ms() == 1_800_000
    story.later(1_800_000)
    assert "Nobody answered" in only(story.goes_on(), ToolSettled).message


def test_only_a_question_can_be_answered() -> None:
    """A tool's result is its own."""
    story = dispatched(call("read"))
    story.answers(0, "I know better")
    assert outcomes(story) == [""]


@requirement("R12")
@requirement("R19")
def test_a_wait_ends_by_time_whoever_owns_the_run() -> None:
    """Nothing is lost with the process that began it."""
    story = dispatched(call("sleep", '{"seconds": 90}'))
    story.later(40_000).changes_owner()
    assert story.wake_after_ms() == 50_000
    story.later(50_000)
    assert only(story.goes_on(), ToolSettled).outcome == "waited"
    assert story.state.counters.tool_errors == 0


# ---- pause


@requirement("R27")
@pytest.mark.parametrize("reply", [[text("done")], [call("read")]])
def test_a_paused_run_takes_what_comes_and_starts_nothing(reply: list[Item]) -> None:
    """The reply in flight is kept; its calls, or its answer, wait for the resume."""
    story = calling()
    story.is_paused()
    assert status_of(story.state) == "paused"
    story.replies(*reply)
    assert story.goes_on() == []
    story.later(3_600_000 * 5)
    assert story.goes_on() == []
    story.is_resumed()
    assert names(story.goes_on())


@requirement("R27")
def test_decisions_made_before_the_pause_was_seen_have_no_effect() -> None:
    """A dispatch or a model call that lands behind the pause starts nothing."""
    story = asked_for(call("read"))
    story.is_paused()
    assert story.add(story.dispatch(0), phase="awaiting_tools") is WITHOUT_EFFECT
    story = requested()
    story.steps_once()
    decided = story.decided().steps[0]
    story.is_paused()
    assert story.add(decided.event, phase=decided.phase) is WITHOUT_EFFECT


@requirement("R27")
def test_tool_limits_run_on_while_paused_and_other_clocks_stand() -> None:
    """A tool that overruns is settled; turn, approval and idle clocks go on after the resume."""
    story = dispatched(call("quick"), ERASE, limits={"turn_ms": 20_000})
    story.later(1_000)
    story.is_paused()
    story.later(4_000)
    assert only(story.goes_on(), ToolSettled).outcome == "timed_out"
    story.later(3_600_000)
    assert story.goes_on() == []
    story.is_resumed()
    assert story.goes_on() == []
    assert story.wake_after_ms() == 299_000
    story.decides(1, approved=True)
    assert starts(story.goes_on()) == [1]


@requirement("R27")
def test_an_idle_run_does_not_idle_while_paused() -> None:
    """The idle clock stands."""
    story = waiting()
    story.later(1_000_000)
    story.is_paused()
    story.later(5_000_000)
    story.is_resumed()
    assert story.wake_after_ms() == 800_000


@requirement("R27")
def test_a_pause_ends_in_a_cancel_after_seven_days() -> None:
    """Nothing waits for ever."""
    story = calling()
    story.is_paused()
    story.replies(call("read"))
    assert story.wake_after_ms() == 7 * 24 * 3_600_000
    story.later(7 * 24 * 3_600_000)
    events = story.goes_on()
    assert (only(events, RunFinished).status, only(events, RunFinished).kind) == ("cancelled", "pause_limit")


@requirement("R27")
def test_a_paused_run_can_be_cancelled() -> None:
    """At once."""
    story = dispatched(call("read"))
    story.is_paused()
    story.is_cancelled()
    assert only(story.goes_on(), RunFinished).status == "cancelled"


def test_a_pause_before_the_run_holds_it_at_its_beginning() -> None:
    """It may stand before RunRequested."""
    story = Story()
    story.is_paused()
    story.add(requested().records[0].body)
    assert story.goes_on() == []
    story.is_resumed()
    assert "ModelCallStarted" in names(story.goes_on())


# ---- children


@requirement("R28")
def test_a_delegation_asks_for_a_task_and_waits_visibly() -> None:
    """The same id whoever asks; the parent's budget is shared by the siblings."""
    story = dispatched(
        call("delegate", '{"agent": "helper", "task": "one"}'),
        call("delegate", '{"task": "two"}'),
        limits={"tokens": 1_010},
    )
    assert status_of(story.state) == "waiting_child"
    first, second = child_requests(story.state)
    assert (first.agent, first.input, second.agent) == ("helper", "one", "agent")
    assert first.parent == "run" and first.depth == 1
    assert first.task_id != second.task_id
    assert first.limits["tokens"] == 500
    story.changes_owner().later(100_000)
    assert story.goes_on() == []
    assert child_requests(story.state) == [first, second]


@requirement("R28")
def test_the_childs_outcome_is_the_calls_result_and_its_cost_the_parents() -> None:
    """Its failure is a result for the model, not a failure of the parent."""
    story = dispatched(call("delegate"), call("delegate"))
    before = story.state.counters.tokens
    story.child_ends(0, result="42", tokens=7)
    story.child_ends(1, "failed", result=None, tokens=5)
    story.goes_on()
    done, broken = story.state.transcript[-1].results
    assert (done.outcome, done.output) == ("succeeded", "42")
    assert broken.outcome == "failed" and "ended as failed" in broken.output
    assert story.state.counters.tokens == before + 12
    assert status_of(story.state) == "running"


@requirement("R28")
def test_a_cancel_reaches_the_children() -> None:
    """Those that were not seen to end; and those whose call was closed by its time limit."""
    story = dispatched(call("delegate"), call("delegate"), call("delegate"))
    assert story.state.reply is not None
    children = [c.child for c in story.state.reply.calls]
    story.child_ends(1)
    assert unwanted_children(story.state) == []
    story.is_cancelled()
    assert unwanted_children(story.state) == sorted([children[0], children[2]])
    events = story.goes_on()
    assert [event.outcome for event in events if isinstance(event, ToolSettled)] == ["cancelled", "cancelled"]
    assert unwanted_children(story.state) == sorted([children[0], children[2]])


@requirement("R28")
def test_a_child_that_takes_too_long_is_given_up_and_stopped() -> None:
    """The parent goes on."""
    story = dispatched(call("delegate"), limits={"child_ms": 50_000})
    story.later(50_000)
    assert only(story.goes_on(), ToolSettled).outcome == "timed_out"
    assert len(unwanted_children(story.state)) == 1
    assert child_requests(story.state) == []


@requirement("R28")
@pytest.mark.parametrize(("task", "said"), [({"depth": 4}, "4 deep"), ({"limits": {"children": 0}}, "0 delegations")])
def test_depth_and_number_of_delegations_are_limited(task: dict[str, object], said: str) -> None:
    """The model is told which limit it was, and goes on without."""
    story = asked_for(call("delegate"), **task)
    events = story.goes_on()
    settled = only(events, ToolSettled)
    assert settled.outcome == "limited"
    assert said in settled.message
    assert only(events, ModelCallStarted).last_turn == ""


# ---- claims


@requirement("R11")
def test_the_first_claim_wins() -> None:
    """A second process of the same dispatch may not start; its report counts for nothing."""
    story = dispatched(call("run"))
    story.claims(0, "n1")
    story.claims(0, "n2")
    assert story.state.reply is not None
    assert story.state.reply.calls[0].claim == "n1"
    story.add(story.report(0, "from the wrong one", nonce="n2"))
    assert outcomes(story) == [""]
    story.add(story.report(0, "from the right one", nonce="n1"))
    assert outcomes(story) == ["succeeded"]


@requirement("R12")
def test_a_dispatch_that_nobody_claimed_is_for_any_owner_to_start() -> None:
    """It never started: nobody waits for a dead process, and nothing is told to be uncertain."""
    story = dispatched(call("run"))
    story.changes_owner().later(60_000)
    assert story.goes_on() == []
    story.claims(0, "n1")
    assert only(story.goes_on(), ToolSettled).outcome == "interrupted"


@pytest.mark.parametrize("when", ["cancelled", "closed", "another dispatch"])
def test_a_claim_comes_too_late(when: str) -> None:
    """For a cancelled run, a closed call, another dispatch: the answer is no."""
    story = dispatched(call("run"), call("read"))
    match when:
        case "cancelled":
            story.is_cancelled()
            story.claims(0, "n1")
        case "closed":
            story.add(story.settlement(0))
            story.claims(0, "n1")
        case _:
            story.claims(0, "n1", dispatch="other")
    assert story.state.reply is not None
    assert story.state.reply.calls[0].claim == ""


def test_an_external_tool_is_waited_for_whoever_owns_the_run() -> None:
    """Somebody else runs it: no process of ours is missed."""
    story = dispatched(call("elsewhere"), limits={"turn_ms": 9_000_000, "run_ms": 9_000_000})
    story.changes_owner().later(60_000)
    assert story.goes_on() == []
    assert story.wake_after_ms() == 3_600_000 - 60_000
    story.later(3_600_000 - 60_000)
    assert only(story.goes_on(), ToolSettled).outcome == "timed_out"


# ---- set aside, and what a limit leaves


@requirement("R30")
def test_clocks_stand_while_a_run_is_set_aside() -> None:
    """Who repairs it takes the time that takes: turn and approval go on where they stood."""
    story = asked_for(ERASE)
    story.goes_on()
    story.later(100_000)
    story.add(RunParked(reason="x", base_offset=0), phase=str(story.state.phase))
    story.later(3_600_000)
    story.add(RunUnparked(skipped=[]), phase=str(story.state.phase))
    assert story.goes_on() == []
    assert story.wake_after_ms() == 200_000
    story = calling()
    story.add(RunParked(reason="x", base_offset=0), phase="calling_model")
    story.later(3_600_000)
    story.add(RunUnparked(skipped=[]), phase="calling_model")
    story.replies(text("done"))
    assert only(story.goes_on(), RunFinished).status == "completed"


@requirement("R30")
def test_a_call_that_waits_for_a_person_takes_no_place_of_one_that_can_run() -> None:
    """It may never start: the limit that ends the run is one that was reached."""
    story = asked_for(ERASE, call("read"), limits={"tool_calls": 1})
    events = story.goes_on()
    assert starts(events) == [1]
    assert (only(events, ToolSettled).position, only(events, ToolSettled).outcome) == (0, "over_limit")
    assert story.state.counters.tool_calls == 1


@requirement("R30")
def test_no_tool_starts_in_the_last_turn() -> None:
    """Whatever the model asks for, and whatever budget is left."""
    story = calling(limits={"tokens": 100})
    story.replies(text(""), tokens=100)
    story.goes_on()
    assert story.state.last_turn
    story.state.counters.tokens = 0
    story.replies(call("read"))
    events = story.goes_on()
    assert starts(events) == []
    assert only(events, RunFinished).status == "limit_exceeded"


@requirement("R16")
def test_a_long_wait_is_not_the_runs_time() -> None:
    """Nothing runs meanwhile: the turn's limit does not end the run under it."""
    story = dispatched(call("sleep", '{"seconds": 900}'))
    story.later(900_000)
    assert only(story.goes_on(), ToolSettled).outcome == "waited"


@requirement("R28")
def test_the_parents_task_bounds_its_children_too() -> None:
    """What a task sets is meant for all of its work."""
    story = dispatched(call("delegate"), limits={"run_ms": 60_000, "depth": 1})
    (request,) = child_requests(story.state)
    assert (request.limits["run_ms"], request.limits["depth"]) == (60_000, 1)


@requirement("R28")
def test_a_delegated_text_can_always_be_written() -> None:
    """Half a surrogate pair, escaped inside the arguments."""
    story = dispatched(call("delegate", '{"task": "look at \\ud83d"}'))
    (request,) = child_requests(story.state)
    request.input.encode()


@requirement("R28")
def test_the_parent_of_a_lost_child_is_told() -> None:
    """Its request is gone; its id says whose it was."""
    parent = dispatched(call("delegate"))
    child = Story(child_requests(parent.state)[0].task_id)
    child.add(RunLost(reason="gone"))
    child.goes_on()
    completed = completion_of(child.state)
    assert completed is not None and completed.parent == "run"


@requirement("R27")
@requirement("R31")
@pytest.mark.parametrize("word", ["cancel", "pause"])
def test_people_are_heard_during_a_backoff(word: str) -> None:
    """A cancel ends the run at once; a paused run tries again after the resume and not before."""
    story = calling()
    story.fails(retry_after_ms=60_000)
    assert story.goes_on() == []
    if word == "cancel":
        story.is_cancelled()
        assert only(story.goes_on(), RunFinished).status == "cancelled"
        return
    story.is_paused()
    story.later(3_600_000)
    assert story.goes_on() == []
    story.is_resumed()
    assert only(story.goes_on(), ModelCallStarted).attempt == 2
