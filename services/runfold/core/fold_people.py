"""How each fact of a person changes a state, and those of claims and children. See `fold_facts.py`.

Commands count once, by their command id; a ToolClaimed by its dispatch: the first counts.
"""

from collections.abc import Callable
from typing import Any

from runfold.core.sandbox import replay_claimed
from runfold.core.state import RunState, ToolCall
from runfold.core.waits import call_of_child, open_call, pause, resume, tend_clock
from runfold.events.envelope import Record
from runfold.events.types import (
    ApprovalDecided,
    CancelRequested,
    ChildCompleted,
    CloseRequested,
    MessageReceived,
    PauseRequested,
    QuestionAnswered,
    ResumeRequested,
    ToolClaimed,
    ToolFenced,
    UnparkRequested,
)


def close_call(state: RunState, call: ToolCall, outcome: str, output: str, time_ms: int) -> None:
    """An open call has its outcome; nothing later changes it."""
    call.outcome = outcome
    call.output = output
    state.counters.tool_errors += outcome != "succeeded"
    if state.reply is not None and state.reply.has_waits:
        tend_clock(state, time_ms)


def _tool_claimed(state: RunState, record: Record, event: ToolClaimed) -> None:
    if replay_claimed(state, event):
        return
    call = open_call(state, event.model_call, event.position)
    if call is None or call.claim or not call.dispatches or call.dispatches[-1] != event.dispatch:
        return
    if state.cancel is None and state.failure is None and state.parked is None:
        call.claim = event.nonce
        call.claimed_by = event.process
        if call.tool is not None and call.tool.workspace and not state.sandbox:
            state.sandbox = event.process


def _tool_fenced(state: RunState, record: Record, event: ToolFenced) -> None:
    """For people: a second process was refused."""


def _approval_decided(state: RunState, record: Record, event: ApprovalDecided) -> None:
    if not _is_new(state, event.command_id) or state.reply is None or state.finished is not None:
        return
    for call in state.reply.calls:
        if not event.approval or call.approval != event.approval or call.outcome or call.decision:
            continue
        if event.arguments_sha256 == call.arguments_sha256:  # what runs is exactly what was shown
            call.decision = "approved" if event.approved else "rejected"
            call.decision_reason = event.reason
            tend_clock(state, record.time_ms)


def _question_answered(state: RunState, record: Record, event: QuestionAnswered) -> None:
    if not _is_new(state, event.command_id):
        return
    call = open_call(state, event.model_call, event.position)
    if call is not None and call.waits_for == "person":
        close_call(state, call, "succeeded", event.text, record.time_ms)


def _child_completed(state: RunState, record: Record, event: ChildCompleted) -> None:
    if event.child not in state.open_children:
        return
    state.open_children.discard(event.child)
    counters, totals = state.counters, event.totals
    counters.tokens += totals.tokens
    counters.input_tokens += totals.input_tokens
    counters.output_tokens += totals.output_tokens
    counters.tool_calls += totals.tool_calls
    counters.tokens_estimated = counters.tokens_estimated or totals.tokens_estimated
    call = call_of_child(state, event.child)
    if call is not None and state.finished is None:
        well = event.status == "completed"
        said = event.result or ("It answered with nothing." if well else "")
        text = said if well else f"The task ended as {event.status}: {event.reason or event.kind}. {said}".strip()
        close_call(state, call, "succeeded" if well else "failed", text, record.time_ms)


def _pause_requested(state: RunState, record: Record, event: PauseRequested) -> None:
    if _is_new(state, event.command_id) and not state.is_paused and state.finished is None:
        pause(state, record.time_ms)


def _resume_requested(state: RunState, record: Record, event: ResumeRequested) -> None:
    if _is_new(state, event.command_id) and state.is_paused and state.finished is None:
        resume(state, record.time_ms)


def _message_received(state: RunState, record: Record, event: MessageReceived) -> None:
    if _is_new(state, event.command_id) and not state.closed and state.finished is None:
        state.mailbox.append(event)


def _close_requested(state: RunState, record: Record, event: CloseRequested) -> None:
    if _is_new(state, event.command_id):
        state.closed = True


def _cancel_requested(state: RunState, record: Record, event: CancelRequested) -> None:
    if _is_new(state, event.command_id) and state.cancel is None and state.finished is None:
        state.cancel = event


def _unpark_requested(state: RunState, record: Record, event: UnparkRequested) -> None:
    if not _is_new(state, event.command_id) or state.parked is None:
        return
    if state.unpark is None or state.unpark.mode != "skip" or event.mode == "skip":
        state.unpark = event  # a retry takes no skip back that somebody may be acting on


def _is_new(state: RunState, command_id: str) -> bool:
    if command_id in state.commands:
        return False
    state.commands.add(command_id)
    return True


PEOPLE_RULES: dict[type, Callable[[RunState, Record, Any], None]] = {
    ToolClaimed: _tool_claimed,
    ToolFenced: _tool_fenced,
    MessageReceived: _message_received,
    CloseRequested: _close_requested,
    CancelRequested: _cancel_requested,
    PauseRequested: _pause_requested,
    ResumeRequested: _resume_requested,
    ApprovalDecided: _approval_decided,
    QuestionAnswered: _question_answered,
    ChildCompleted: _child_completed,
    UnparkRequested: _unpark_requested,
}
