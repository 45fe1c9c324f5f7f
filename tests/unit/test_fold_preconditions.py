"""Accepted is not effective: the precondition table of design section 2, row by row and clause by clause.

A decision whose precondition does not hold moves the chain and changes nothing else.
"""

from collections.abc import Callable

import pytest

from runfold.core.fold import EFFECTIVE, VOID, WITHOUT_EFFECT, Taken
from runfold.core.phases import Phase
from runfold.events.types import (
    ContextLoaded,
    Decision,
    ModelCallStarted,
    PhaseEntered,
    RunCheckpointed,
    RunFailed,
    RunFinished,
    RunParked,
    RunUnparked,
    TaskReported,
    Totals,
    TurnAdvanced,
)
from tests.builders import (
    Offers,
    Story,
    answered,
    asked_for,
    call,
    calling,
    content,
    dispatched,
    finished,
    reported,
    requested,
    sha,
    waiting,
)

Case = tuple[Story, Decision]


def without_effect(story: Story, event: Decision) -> None:
    before, revision = content(story.state), story.state.revision
    assert story.add(event) is WITHOUT_EFFECT
    assert story.state.last == story.records[-1].event_id, "the chain must move"
    assert story.state.revision == revision + 1
    assert content(story.state) == before, "nothing else may change"


# ---- builders of decisions that are in order


def context(story: Story) -> ContextLoaded:
    found = Offers().context(story.state.task) if story.state.task is not None else None
    assert isinstance(found, ContextLoaded)
    return found


def model_call(turn: int = 1, attempt: int = 1, messages: tuple[str, ...] = ()) -> ModelCallStarted:
    return ModelCallStarted(
        turn=turn, attempt=attempt, model="m", prompt_digest="", transcript_length=1, messages=list(messages)
    )


def ending(status: str = "failed", result_of: str | None = None) -> RunFinished:
    return RunFinished(status=status, result_of=result_of, totals=Totals())


def advance(story: Story, name: str = "") -> TurnAdvanced:
    assert story.state.reply is not None
    return TurnAdvanced(model_call=name or story.state.reply.model_call, turn=1, calls=[])


def loaded() -> Story:
    story = requested()
    story.add(context(story), phase="loading_context")
    return story


def settled() -> Story:
    """All calls are closed; the turn is not advanced."""
    story = dispatched(call("read"))
    story.reports(0)
    return story


def advanced(**task: bool) -> Story:
    story = answered(**task)
    story.add(advance(story))
    return story


def failed(story: Story) -> Story:
    story.add(RunFailed(kind="x", message="", phase=""))
    return story


def cancelled(story: Story) -> Story:
    story.is_cancelled()
    return story


def parked(story: Story) -> Story:
    story.add(RunParked(reason="x", base_offset=0))
    return story


def with_message(story: Story, name: str = "m1") -> Story:
    story.hears(name)
    return story


# ---- when all holds


def _model_call_with_message() -> Case:
    return with_message(advanced()), model_call(2, messages=("m1",))


def _repeated_dispatch() -> Case:
    story = dispatched(call("fetch"))
    return story, story.dispatch(0)


EFFECTIVE_CASES: dict[str, Callable[[], Case]] = {
    "ContextLoaded": lambda: (s := requested(), context(s)),
    "PhaseEntered awaiting tools": lambda: (_dispatching(), PhaseEntered(phase="awaiting_tools", turn=1)),
    "PhaseEntered awaiting a message": lambda: (
        advanced(interactive=True),
        PhaseEntered(phase="awaiting_message", turn=1),
    ),
    "ModelCallStarted, first": lambda: (loaded(), model_call()),
    "ModelCallStarted, another attempt": lambda: (calling(), model_call(attempt=2)),
    "ModelCallStarted, next turn with a message": _model_call_with_message,
    "ModelCallStarted, after waiting": lambda: (with_message(waiting()), model_call(2, messages=("m1",))),
    "ToolDispatchStarted": lambda: (s := asked_for(call("read")), s.dispatch(0)),
    "ToolDispatchStarted again, idempotent": _repeated_dispatch,
    "ToolDispatchStarted again, a wait": lambda: (s := dispatched(call("wait")), s.dispatch(0)),
    "ToolSettled, not started": lambda: (s := asked_for(call("read")), s.settlement(0)),
    "ToolSettled, started": lambda: (s := dispatched(call("read")), s.settlement(0)),
    "TurnAdvanced": lambda: (s := settled(), advance(s)),
    "RunFailed": lambda: (calling(), RunFailed(kind="x", message="", phase="")),
    "RunFinished, failed": lambda: (calling(), ending()),
    "RunFinished, completed": lambda: (s := answered(), ending("completed", s.model_call)),
    "RunFinished, cancelled": lambda: (cancelled(calling()), ending("cancelled")),
    "TaskReported": lambda: (finished(), TaskReported(completion="c")),
    "RunParked": lambda: (calling(), RunParked(reason="x", base_offset=0)),
    "RunUnparked": lambda: (parked(calling()), RunUnparked(skipped=[])),
}


def _dispatching() -> Story:
    story = asked_for(call("read"))
    story.add(story.dispatch(0), phase="dispatching_tools")
    return story


@pytest.mark.parametrize("case", EFFECTIVE_CASES.values(), ids=EFFECTIVE_CASES)
def test_a_decision_whose_precondition_holds_is_effective(case: Callable[[], Case]) -> None:
    """Every row of the table can be met."""
    story, event = case()
    before = content(story.state)
    assert story.add(event) is EFFECTIVE
    assert content(story.state) != before


# ---- one broken clause each

BROKEN: dict[str, Callable[[], Case]] = {
    "ContextLoaded: there is one already": lambda: (s := loaded(), context(s)),
    "PhaseEntered: no transition from here": lambda: (calling(), PhaseEntered(phase="awaiting_tools", turn=1)),
    "PhaseEntered: made by other decisions only": lambda: (settled(), PhaseEntered(phase="advancing_turn", turn=1)),
    "PhaseEntered: no such phase": lambda: (calling(), PhaseEntered(phase="asleep", turn=1)),
    "PhaseEntered: not an interactive run": lambda: (advanced(), PhaseEntered(phase="awaiting_message", turn=1)),
    "PhaseEntered: no answer to wait after": lambda: (
        _advanced_after_tools(interactive=True),
        PhaseEntered(phase="awaiting_message", turn=1),
    ),
    "PhaseEntered: failed": lambda: (failed(_dispatching()), PhaseEntered(phase="awaiting_tools", turn=1)),
    "ModelCallStarted: no context": lambda: (requested(), model_call()),
    "ModelCallStarted: the last reply's turn is not advanced": lambda: (answered(), model_call(2)),
    "ModelCallStarted: tools run": lambda: (dispatched(call("read")), model_call(2)),
    "ModelCallStarted: cancelled": lambda: (cancelled(calling()), model_call(attempt=2)),
    "ModelCallStarted: failed": lambda: (failed(calling()), model_call(attempt=2)),
    "ModelCallStarted: ended": lambda: (finished(), model_call(2)),
    "ModelCallStarted: parked": lambda: (parked(calling()), model_call(attempt=2)),
    "ModelCallStarted: its message is not in the mailbox": lambda: (
        with_message(advanced()),
        model_call(2, messages=("m1", "m2")),
    ),
    "ModelCallStarted: a turn is left out": lambda: (advanced(), model_call(3)),
    "ModelCallStarted: an attempt of a turn that is over": lambda: (advanced(), model_call(1)),
    "ModelCallStarted: a new turn while the call is in flight": lambda: (calling(), model_call(2)),
    "ToolDispatchStarted: not the effective reply": lambda: (
        s := asked_for(call("read")),
        s.dispatch(0, model_call="another"),
    ),
    "ToolDispatchStarted: no reply": lambda: (calling(), _stray_dispatch()),
    "ToolDispatchStarted: no such call": lambda: (s := asked_for(call("read")), s.dispatch(1)),
    "ToolDispatchStarted: a negative position": lambda: (
        s := asked_for(call("read")),
        s.dispatch(-1),
    ),
    "ToolDispatchStarted: closed": lambda: (s := settled(), s.dispatch(0)),
    "ToolDispatchStarted: dispatched before": lambda: (s := dispatched(call("read")), s.dispatch(0)),
    "ToolDispatchStarted: not the next attempt": lambda: (s := dispatched(call("fetch")), s.dispatch(0, attempt=3)),
    "ToolDispatchStarted: the same attempt twice": lambda: (s := dispatched(call("fetch")), s.dispatch(0, attempt=1)),
    "ToolDispatchStarted: other arguments": lambda: (
        s := asked_for(call("read")),
        s.dispatch(0, arguments_sha256=sha('{"other": 1}')),
    ),
    "ToolDispatchStarted: cancelled": lambda: (s := cancelled(asked_for(call("read"))), s.dispatch(0)),
    "ToolDispatchStarted: failed": lambda: (s := failed(asked_for(call("read"))), s.dispatch(0)),
    "ToolSettled: closed by a report": lambda: (s := settled(), s.settlement(0)),
    "ToolSettled: no such call": lambda: (s := asked_for(call("read")), s.settlement(7)),
    "ToolSettled: not the effective reply": lambda: (
        s := asked_for(call("read")),
        s.settlement(0, model_call="another"),
    ),
    "TurnAdvanced: a call is open": lambda: (s := dispatched(call("read")), advance(s)),
    "TurnAdvanced: not the effective reply": lambda: (s := settled(), advance(s, "another")),
    "TurnAdvanced: no reply": lambda: (calling(), TurnAdvanced(model_call="e2", turn=1, calls=[])),
    "TurnAdvanced: failed": lambda: (s := failed(settled()), advance(s)),
    "RunFailed: failed already": lambda: (failed(calling()), RunFailed(kind="y", message="", phase="")),
    "RunFailed: ended": lambda: (finished(), RunFailed(kind="y", message="", phase="")),
    "RunFinished: a call is open": lambda: (dispatched(call("read")), ending()),
    "RunFinished: ended": lambda: (finished(), ending()),
    "RunFinished completed: cancelled": lambda: (s := cancelled(answered()), ending("completed", s.model_call)),
    "RunFinished completed: failed": lambda: (s := failed(answered()), ending("completed", s.model_call)),
    "RunFinished completed: the reply has calls": lambda: (s := settled(), ending("completed", s.model_call)),
    "RunFinished completed: no reply": lambda: (s := calling(), ending("completed", s.model_call)),
    "RunFinished completed: another answer": lambda: (answered(), ending("completed", "another")),
    "RunFinished completed: an interactive run has an unread message": lambda: (
        s := with_message(waiting()),
        ending("completed", s.model_call),
    ),
    "RunFinished completed: somebody spoke before the end": lambda: (
        s := with_message(answered()),
        ending("completed", s.model_call),
    ),
    "TaskReported: not ended": lambda: (calling(), TaskReported(completion="c")),
    "TaskReported: reported": lambda: (reported(), TaskReported(completion="c")),
    "RunParked: parked": lambda: (parked(calling()), RunParked(reason="y", base_offset=1)),
    "RunParked: over": lambda: (reported(), RunParked(reason="y", base_offset=1)),
    "RunUnparked: not parked": lambda: (calling(), RunUnparked(skipped=[])),
}


def _stray_dispatch() -> Decision:
    story = asked_for(call("read"))
    return story.dispatch(0)


def _advanced_after_tools(**task: bool) -> Story:
    story = dispatched(call("read"), **task)
    story.reports(0)
    story.add(advance(story))
    return story


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN)
def test_a_decision_with_one_broken_clause_moves_the_chain_and_nothing_else(case: Callable[[], Case]) -> None:
    """A fact that landed just before a decision takes its effect away, never its place."""
    story, event = case()
    without_effect(story, event)


# ---- the chain


def test_the_first_decision_that_follows_the_last_one_wins() -> None:
    """Two executors decide on the same state: only the first is obeyed, whatever it is."""
    story = loaded()
    base = story.state.last
    assert story.add(model_call(), follows=base) is EFFECTIVE
    winner, before = story.state.last, content(story.state)
    assert story.add(model_call(), follows=base) is VOID
    assert story.state.last == winner
    assert content(story.state) == before


def test_what_was_built_on_a_void_decision_is_void() -> None:
    """Chains of two owners cannot mix."""
    story = loaded()
    base = story.state.last
    story.add(model_call(), follows=base)
    story.add(model_call(), follows=base, name="loser")
    before = content(story.state)
    assert story.add(RunFailed(kind="x", message="", phase=""), follows="loser") is VOID
    assert content(story.state) == before


def test_a_decision_without_effect_is_followed_like_any_other() -> None:
    """Its writer saw it accepted and goes on from it; its rival on the same base is void."""
    story = cancelled(calling())
    base = story.state.last
    assert story.add(model_call(attempt=2), follows=base) is WITHOUT_EFFECT
    assert story.add(ending("cancelled"), follows=base) is VOID
    assert story.add(ending("cancelled")) is EFFECTIVE


def test_a_decision_before_its_run_is_void() -> None:
    """Nothing is built on a run that nobody asked for, not even on an empty id."""
    story = Story()
    assert story.add(model_call(), follows="") is VOID
    assert not story.state.last


def test_a_checkpoint_changes_nothing_for_who_has_the_state() -> None:
    """It moves the chain; its content is what the reader knows."""
    story = dispatched(call("read"))
    before = content(story.state)
    checkpoint = RunCheckpointed(part=1, parts=1, as_of_offset=len(story.records), state=b"")
    assert story.add(checkpoint) is EFFECTIVE
    assert content(story.state) == before
    assert story.state.last == story.records[-1].event_id


def _unknown(story: Story) -> Taken:
    record = story.record(model_call(), phase="teleporting")
    record.type, record.body = "RunTeleported", None
    return story.take(record)


def test_an_unknown_decision_counts_in_the_chain_and_parks_the_run() -> None:
    """A newer executor's decision is not guessed at: the run waits for a reader that knows it."""
    story = calling()
    assert _unknown(story) is WITHOUT_EFFECT
    assert story.state.last == story.records[-1].event_id
    parking = story.goes_on()
    assert [type(event) for event in parking] == [RunParked]
    assert isinstance(parking[0], RunParked)
    assert parking[0].bad_offset == len(story.records) - 2


def test_nothing_but_parking_is_built_on_what_could_not_be_folded() -> None:
    """Whatever follows the unknown decision was decided by somebody who knew it."""
    story = calling()
    _unknown(story)
    without_effect(story, RunFailed(kind="x", message="", phase=""))
    assert story.add(RunParked(reason="x", base_offset=0)) is EFFECTIVE


def test_an_unknown_fact_is_skipped() -> None:
    """Facts of a newer version change nothing for an older reader."""
    story = calling()
    before = content(story.state)
    record = story.record(RunFailed(kind="x", message="", phase=""))
    record.follows, record.type, record.body = None, "MoonRose", None
    story.take(record)
    assert content(story.state) == before
    assert story.state.halt is None
    assert story.state.phase is Phase.CALLING_MODEL
