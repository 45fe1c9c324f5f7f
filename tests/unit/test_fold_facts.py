"""Facts: taken once, by their identity, in any order; what no longer matters changes nothing."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from runfold.core.fold import FACT
from runfold.core.pending import completion_of, is_call_wanted, pending_tools
from runfold.core.phases import Phase
from runfold.events.types import (
    CancelRequested,
    CloseRequested,
    Fact,
    LateReportRecorded,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    PartitionOpened,
    RunLost,
    RunRequested,
    UnparkRequested,
    Usage,
)
from tests.builders import (
    Story,
    answered,
    call,
    calling,
    content,
    dispatched,
    finished,
    names,
    reported,
    requested,
    text,
    waiting,
)

requirement = pytest.mark.requirement


def _changes_nothing(story: Story, event: Fact) -> None:
    before = content(story.state)
    assert story.add(event) is FACT
    assert content(story.state) == before


# ---- identities


@requirement("R33")
def test_a_repeated_request_starts_nothing() -> None:
    """The run goes on as it was, whatever the second request says."""
    story = calling()
    _changes_nothing(story, RunRequested(task_id="run", agent="agent", input="something else"))
    assert story.goes_on() == []


TWICE: dict[str, Callable[[], Story]] = {
    "ModelReplied": answered,
    "ModelFailed": lambda: (s := calling(), s.fails())[0],
    "ToolReported": lambda: (s := dispatched(call("read"), call("read")), s.reports(0))[0],
    "MessageReceived": lambda: (s := calling(), s.hears("m1"))[0],
    "CancelRequested": lambda: (s := calling(), s.is_cancelled())[0],
    "CloseRequested": lambda: (s := waiting(), s.is_closed())[0],
    "RunRequested": requested,
}


@pytest.mark.parametrize("told", TWICE.values(), ids=TWICE)
def test_a_fact_that_is_delivered_twice_counts_once(told: Callable[[], Story]) -> None:
    """Writers repeat what they are not sure of."""
    story = told()
    before = content(story.state)
    story.again(story.records[-1])
    assert content(story.state) == before


def test_a_command_sent_twice_under_other_event_ids_counts_once() -> None:
    """A person's retry is the same command: its identity is its own id, not the record's."""
    story = calling()
    story.hears("m1")
    _changes_nothing(story, MessageReceived(command_id="m1", text="again"))
    assert len(story.state.mailbox) == 1


# ---- replies


def test_only_a_reply_to_the_last_call_counts() -> None:
    """An attempt that was superseded may answer late: it is paid for, and that is all."""
    story = calling()
    first = story.model_call
    story.later(300_000).goes_on()
    assert story.model_call != first
    story.replies(text("too late"), tokens=70, to=first)
    assert story.state.reply is None
    assert story.state.counters.tokens == 70
    story.replies(text("in time"), tokens=5)
    assert story.state.reply is not None
    assert story.state.counters.tokens == 75


@requirement("R31")
def test_the_usage_of_a_reply_is_counted_once() -> None:
    """A repeated record costs nothing more."""
    story = calling()
    story.replies(text("done"), tokens=70)
    story.replies(text("done"), tokens=70, to=story.model_call)
    assert story.state.counters.tokens == 70


def test_where_the_provider_counts_nothing_tokens_are_estimated() -> None:
    """A limit that a silent provider switches off is none."""
    story = calling(input="x" * 400)
    story.add(ModelReplied(model_call=story.model_call, items=[text("y" * 40)], finish_reason="stop"))
    assert story.state.counters.tokens_estimated
    assert story.state.counters.tokens == 110


def test_the_larger_of_total_and_sum_is_charged() -> None:
    """Some providers count reasoning in the total only."""
    story = calling()
    usage = Usage(input_tokens=10, output_tokens=5, total_tokens=40)
    story.add(ModelReplied(model_call=story.model_call, items=[text("x")], finish_reason="stop", usage=usage))
    assert story.state.counters.tokens == 40
    assert (story.state.counters.input_tokens, story.state.counters.output_tokens) == (10, 5)


def test_a_reply_after_a_failure_of_the_same_call_does_not_count() -> None:
    """One call has one outcome: the first in the log."""
    story = calling()
    story.fails()
    story.replies(text("after all"))
    assert story.state.reply is None
    assert story.state.counters.tokens == 0


def test_a_call_is_wanted_until_it_has_an_outcome_or_the_run_an_end() -> None:
    """A model worker asks before it starts and before it writes."""
    story = calling()
    assert is_call_wanted(story.state, story.model_call)
    assert not is_call_wanted(story.state, "another")
    story.is_cancelled()
    assert not is_call_wanted(story.state, story.model_call)
    assert not is_call_wanted(answered().state, answered().model_call)


# ---- reports


@requirement("R7")
def test_call_and_result_are_two_facts_and_one_row() -> None:
    """The reply says what was asked, the report what came of it; the transcript has both side by side."""
    story = dispatched(call("read"))
    assert story.state.reply is not None
    row = story.state.reply.calls[0]
    assert (row.name, row.outcome) == ("read", "")
    story.reports(0, "42")
    assert (row.name, row.outcome, row.output) == ("read", "succeeded", "42")
    assert story.state.counters.tool_errors == 0


@requirement("R12")
def test_a_report_for_a_closed_call_is_recorded_as_late_and_changes_nothing() -> None:
    """The first outcome stands; what comes after is kept, shown, never acted on."""
    story = dispatched(call("read"))
    report = story.report(0, "after all")
    story.later(120_000).steps_once()
    assert story.state.reply is not None
    assert story.state.reply.calls[0].outcome == "timed_out"
    story.add(report, name="late")
    assert story.state.reply.calls[0].outcome == "timed_out"
    assert set(story.state.late) == {"late"}
    story.add(LateReportRecorded(model_call=report.model_call, position=0, dispatch=report.dispatch, report="late"))
    assert not story.state.late


def test_two_sources_may_report_and_the_first_counts() -> None:
    """Whoever ran a tool and whoever watched it may both say what became of it."""
    story = dispatched(call("read"), call("read"))
    story.add(story.report(0, "first", nonce="a"))
    story.add(story.report(0, "second", nonce="b"))
    assert story.state.reply is not None
    assert story.state.reply.calls[0].output == "first"
    assert len(story.state.late) == 1


def test_a_report_for_a_dispatch_that_never_counted_is_ignored() -> None:
    """Nothing can have been started for a void dispatch: it is nobody's result."""
    story = dispatched(call("read"))
    story.add(replace(story.report(0), dispatch="void"))
    assert story.state.reply is not None
    assert not story.state.reply.calls[0].outcome
    assert not story.state.late


def test_a_failed_tool_is_counted_as_an_error() -> None:
    """Alerts are made of this number."""
    story = dispatched(call("read"))
    story.reports(0, "no such file", outcome="failed")
    assert story.state.counters.tool_errors == 1


@requirement("R11")
def test_a_start_without_an_outcome_is_visible() -> None:
    """Started and unknown is a state of its own, for people and for whoever goes on."""
    story = dispatched(call("read"), call("save"))
    assert [call.name for call in pending_tools(story.state)] == ["read", "save"]
    story.reports(0)
    assert [call.name for call in pending_tools(story.state)] == ["save"]
    story.is_cancelled()
    assert pending_tools(story.state) == []


# ---- early facts


@requirement("R10")
def test_a_cancel_before_its_run_cancels_it() -> None:
    """Whoever asked may have changed their mind before anybody read the request."""
    story = Story()
    story.is_cancelled()
    assert not story.state.last
    story.add(RunRequested(task_id="run", agent="agent"))
    assert [e.status for e in story.goes_on() if hasattr(e, "status")] == ["cancelled"]


@requirement("R26")
def test_a_message_before_its_run_waits_for_it() -> None:
    """It is taken with the first call of the model."""
    story = Story()
    story.hears("m1")
    story.add(RunRequested(task_id="run", agent="agent"))
    story.goes_on()
    assert [entry.text for entry in story.state.transcript if hasattr(entry, "text")] == ["", "message m1"]
    assert story.state.mailbox == []


def test_a_close_before_its_run_closes_it() -> None:
    """An interactive run that is closed before it began gives one answer."""
    story = Story()
    story.is_closed()
    story.add(RunRequested(task_id="run", agent="agent", interactive=True))
    story.goes_on()
    story.replies(text("hello"))
    assert "RunFinished" in names(story.goes_on())


def test_a_message_after_the_close_is_recorded_and_changes_nothing() -> None:
    """Its sender is told that nobody listens any more."""
    story = calling(interactive=True)
    story.is_closed()
    story.hears("m1")
    assert story.state.mailbox == []


@pytest.mark.parametrize(
    "event", [PartitionOpened(owner="e"), UnparkRequested(command_id="u", mode="retry")], ids=lambda e: type(e).__name__
)
def test_what_does_not_concern_a_run_leaves_it_alone(event: Fact) -> None:
    """Partition markers belong to no run; who is not parked cannot be unparked."""
    story = calling()
    story.state.commands.add("u")
    _changes_nothing(story, event)


def test_a_lost_run_ends_as_lost() -> None:
    """Its beginning is gone and an operator has accepted that: it is reported as failed, not kept for ever."""
    story = Story()
    story.add(RunLost(reason="retention"))
    ended = story.goes_on()
    assert names(ended) == ["RunFinished"]
    assert story.state.finished is not None
    assert (story.state.finished.status, story.state.finished.kind) == ("failed", "lost")


def test_a_run_that_goes_on_cannot_be_lost() -> None:
    """Somebody has its beginning."""
    _changes_nothing(calling(), RunLost(reason="retention"))


# ---- terminal is terminal

LATE: dict[str, Callable[[Story], Fact]] = {
    "cancel": lambda s: CancelRequested(command_id="c9"),
    "reply": lambda s: ModelReplied(model_call="e2", items=[text("other")], finish_reason="stop"),
    "failure": lambda s: ModelFailed(model_call="e2", kind="x", message="", retryable=True),
    "message": lambda s: MessageReceived(command_id="m9"),
    "close": lambda s: CloseRequested(command_id="x9"),
    "request": lambda s: RunRequested(task_id="run", agent="agent"),
    "loss": lambda s: RunLost(reason="x"),
}


@requirement("R8")
@pytest.mark.parametrize("fact", LATE.values(), ids=LATE)
@pytest.mark.parametrize("end", [finished, reported])
def test_terminal_is_terminal(fact: Callable[[Story], Fact], end: Callable[[], Story]) -> None:
    """What comes after the end is recorded; result, totals and completion stay as they were."""
    story = end()
    result, completion = story.state.finished, completion_of(story.state)
    story.add(fact(story))
    assert story.state.finished == result
    assert completion_of(story.state) == completion
    assert story.goes_on() == []
    assert story.state.phase in (Phase.REPORTING, Phase.DONE)
    assert not story.state.mailbox
    assert story.state.cancel is None
