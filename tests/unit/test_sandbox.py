"""A lost workspace is rebuilt by repeating what changed it, as far as that goes; the model is told how far."""

from dataclasses import replace

import pytest

from runfold.core.fold import WITHOUT_EFFECT
from runfold.core.pending import claimable
from runfold.core.transcript import UserMessage, check_order
from runfold.events.types import ReplayStarted, RunFinished, SandboxReady, SandboxReplaced, TurnAdvanced
from tests.builders import SESSION_MS, Story, call, dispatched, names, only

pytestmark = [pytest.mark.requirement("R22"), pytest.mark.requirement("R23")]


def worked(*outputs: str) -> Story:
    """A run that has changed its workspace in a turn of its own for each output."""
    story = dispatched(call("run"))
    for output in outputs:
        story.claims(0, f"n{len(story.records)}")
        story.add(story.report(0, output))
        story.goes_on()
        story.replies(call("run"))
        story.goes_on()
    return story


def notes(story: Story) -> list[str]:
    return [entry.text for entry in story.state.transcript[1:] if isinstance(entry, UserMessage)]


def test_what_changed_the_workspace_is_repeated_in_order() -> None:
    """Each by its own ReplayStarted, claimed under its own id; then the call that needs it starts."""
    story = worked("one", "two").loses_its_workspace()
    events = story.goes_on()
    assert names(events) == ["SandboxReplaced", "ReplayStarted"]
    assert only(events, SandboxReplaced).calls == 2
    (first,) = claimable(story.state)
    assert first.dispatch == story.state.replay.current != ""
    story.replays("one")
    assert only(story.goes_on(), ReplayStarted).number == 2
    story.replays("two")
    ready = only(story.goes_on(), SandboxReady)
    assert ready.restored == 2
    assert [each.model_call for each in claimable(story.state)] == [story.state.reply.model_call]


def test_the_model_is_told_at_the_end_of_the_turn() -> None:
    """After the results, so that the history stays in order."""
    story = worked("one").loses_its_workspace()
    story.goes_on()
    story.replays("one")
    story.goes_on()
    story.add(story.report(0, "three"))
    story.goes_on()
    assert "1 of 1 calls that had changed it were repeated." in notes(story)[-1]
    assert check_order(story.state.transcript) is None


@pytest.mark.parametrize(("outcome", "said"), [("succeeded", "had another result"), ("failed", "failed this time")])
def test_the_first_difference_or_failure_ends_it(outcome: str, said: str) -> None:
    """The model is told how far it came; the rest is not repeated, and the run goes on."""
    story = worked("one", "two", "three").loses_its_workspace()
    story.goes_on()
    story.replays("one")
    story.goes_on()
    story.replays("other", outcome=outcome)
    ready = only(story.goes_on(), SandboxReady)
    assert ready.restored == 1
    assert said in ready.message
    assert "1 of 3" in ready.message


@pytest.mark.parametrize("how", ["it takes too long", "its owner dies"])
def test_a_repetition_that_does_not_end_is_given_up(how: str) -> None:
    """A time limit, or nobody left who could report: the run never hangs on it."""
    story = worked("one").loses_its_workspace()
    story.goes_on()
    assert story.state.replay is not None
    if how == "its owner dies":
        story.state.replay.claim = "n"
        story.changes_owner().later(2 * SESSION_MS)
        said = "interrupted"
    else:
        story.later(120_000)
        said = "in time"
    assert said in only(story.goes_on(), SandboxReady).message


def test_only_successful_changes_are_repeated() -> None:
    """What failed, or changed nothing in the workspace, is not."""
    story = dispatched(call("run"), call("save"))
    story.claims(0, "n")
    story.add(story.report(0, "broken", outcome="failed"))
    story.goes_on()
    story.reports(1)
    story.goes_on()
    story.replies(call("run"))
    story.goes_on()
    story.loses_its_workspace()
    events = story.goes_on()
    assert only(events, SandboxReplaced).calls == 0
    assert "ReplayStarted" not in names(events)
    assert only(events, SandboxReady).restored == 0


def test_a_change_of_the_open_reply_is_repeated_too() -> None:
    """The first of two calls changed it, the second needs it."""
    story = dispatched(call("run"), call("run"))
    story.claims(0, "n")
    story.add(story.report(0, "one"))
    story.goes_on()
    story.loses_its_workspace()
    assert only(story.goes_on(), SandboxReplaced).calls == 1


def test_nothing_is_rebuilt_that_nobody_needs() -> None:
    """A run that only reads elsewhere goes on without."""
    story = worked("one")
    story.claims(0, "n")
    story.add(story.report(0, "two"))
    story.goes_on()
    story.replies(call("read"))
    story.loses_its_workspace()
    assert "SandboxReplaced" not in names(story.goes_on())


def test_two_owners_do_not_rebuild_twice() -> None:
    """The second replacement has no effect; a repetition for another sandbox neither."""
    story = worked("one").loses_its_workspace()
    replaced = only(story.steps_once(), SandboxReplaced)
    assert story.add(replaced, phase=str(story.state.phase)) is WITHOUT_EFFECT
    assert story.state.reply is not None
    other = ReplayStarted(sandbox="other", model_call="m", position=0, number=1, time_limit_ms=1)
    assert story.add(other, phase=str(story.state.phase)) is WITHOUT_EFFECT


def test_a_report_of_a_repetition_closes_no_call() -> None:
    """And one that comes twice counts once."""
    story = worked("one").loses_its_workspace()
    story.goes_on()
    story.replays("one")
    assert story.state.reply is not None
    assert story.state.reply.calls[0].outcome == ""
    assert story.state.replay is not None and story.state.replay.restored == 1


def test_a_cancel_ends_a_rebuild() -> None:
    """Nothing more is claimed."""
    story = worked("one").loses_its_workspace()
    story.goes_on()
    story.is_cancelled()
    assert claimable(story.state) == []
    assert only(story.goes_on(), RunFinished).status == "cancelled"


def test_the_turn_may_end_while_a_rebuild_is_under_way() -> None:
    """The call that needed it ran out of time: the run goes on, and the rebuild when somebody needs it again."""
    story = worked("one").loses_its_workspace()
    story.goes_on()
    story.add(story.settlement(0, "timed_out"))
    assert only(story.goes_on(), TurnAdvanced)


def test_a_replacement_that_missed_a_change_has_no_effect() -> None:
    """Decided on top of a call that was given up, whose report stands in the log before: it would lose that change."""
    story = worked("one").loses_its_workspace()
    replaced = only(story.steps_once(), SandboxReplaced)
    late = worked("one", "two").loses_its_workspace()
    assert late.add(replaced, phase=str(late.state.phase)) is WITHOUT_EFFECT
    assert only(late.goes_on(), SandboxReplaced).calls == 2


def test_a_workspace_in_use_is_not_replaced() -> None:
    """A claim that stands before the replacement: the call runs in the old one, and its outcome is waited for."""
    story = worked("one").loses_its_workspace()
    replaced = only(story.steps_once(), SandboxReplaced)
    other = worked("one")
    other.claims(0, "n")
    assert other.add(replaced, phase=str(other.state.phase)) is WITHOUT_EFFECT
    other.loses_its_workspace()
    assert "SandboxReplaced" not in names(other.goes_on())


def test_a_rebuild_whose_machine_is_lost_begins_anew_elsewhere() -> None:
    """Repeating is safe in an empty workspace; what the dead owner's repetition says later counts for nothing."""
    story = worked("one", "two").loses_its_workspace()
    story.goes_on()
    story.replays("one")
    story.goes_on()
    assert story.state.replay is not None
    stale = story.state.replay.current
    story.loses_its_workspace()
    events = story.goes_on()
    assert only(events, SandboxReplaced).calls == 2
    assert only(events, ReplayStarted).number == 1
    late = story.report(0, "two") if story.state.reply and story.state.reply.calls[0].dispatches else None
    assert late is not None
    story.add(replace(late, dispatch=stale))
    assert story.state.replay.restored == 0
