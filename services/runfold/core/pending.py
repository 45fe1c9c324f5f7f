"""What ought to be in flight, from state alone: safe to ask after any crash, always asked at the moment of acting.

The state asked must be the read-back one: then every effect rests on a decision that was accepted and effective.
Whether this process is the one to act (and has not done so already) is the executor's business.
"""

from dataclasses import dataclass

from runfold.core.children import parent_by_id
from runfold.core.fold_facts import CLAIMED_CLASSES
from runfold.core.sandbox import changes
from runfold.core.state import Replay, RunState, ToolCall
from runfold.core.transcript import Reply, text_of
from runfold.events.types import TaskCompleted, ToolSpec


def is_call_wanted(state: RunState, call_id: str) -> bool:
    """Does the run still wait for this model call?"""
    call = state.call
    return (
        call is not None
        and call.id == call_id
        and call.failed is None
        and state.reply is None
        and call_id not in state.replied
        and state.cancel is None
        and state.failure is None
        and state.finished is None
        and state.parked is None
    )


def pending_tools(state: RunState) -> list[ToolCall]:
    """Calls whose tool is to run: dispatched, open, of a run that nothing ends."""
    if state.reply is None or state.cancel is not None or state.failure is not None or state.finished is not None:
        return []
    if state.parked is not None:
        return []
    found = [call for call in state.reply.calls if call.dispatches and not call.outcome]
    if state.replay is None:
        return found
    return [call for call in found if call.claim or not (call.tool is not None and call.tool.workspace)]


@dataclass(slots=True, kw_only=True)
class Claimable:
    """A call whose effect begins behind a claim: of the open reply, or the repetition of an earlier one."""

    dispatch: str
    model_call: str
    position: int
    attempt: int
    tool: ToolSpec
    arguments: str
    time_limit_ms: int
    claim: str
    claimed_by: str


def claimable(state: RunState) -> list[Claimable]:
    """What may be claimed, or was and is to run. Calls in a workspace wait while that is being rebuilt."""
    found = [
        Claimable(
            dispatch=call.dispatches[-1],
            model_call=state.reply.model_call,
            position=call.position,
            attempt=call.attempt,
            tool=call.tool,
            arguments=call.arguments,
            time_limit_ms=call.time_limit_ms,
            claim=call.claim,
            claimed_by=call.claimed_by,
        )
        for call in pending_tools(state)
        if state.reply is not None and call.tool is not None and call.tool.tool_class in CLAIMED_CLASSES
    ]
    replay = pending_replay(state)
    if replay is not None:
        change = changes(state)[replay.restored]
        found.append(
            Claimable(
                dispatch=replay.current,
                model_call=replay.model_call,
                position=replay.position,
                attempt=1,
                tool=change.tool,
                arguments=change.arguments,
                time_limit_ms=replay.time_limit_ms,
                claim=replay.claim,
                claimed_by=replay.claimed_by,
            )
        )
    return found


def pending_replay(state: RunState) -> Replay | None:
    """The repetition that is to run, of a run that nothing ends."""
    replay = state.replay
    if replay is None or not replay.current or replay.problem or state.cancel is not None or state.parked is not None:
        return None
    return replay if state.failure is None and state.finished is None else None


def completion_id(state: RunState) -> str:
    """The same for every process that publishes it: readers drop repeats by it."""
    return f"completed-{state.finished_id}"


def completion_of(state: RunState, *, text_max: int | None = None, note: str = "") -> TaskCompleted | None:
    """The TaskCompleted that is to be published, while it is not reported yet; its text cut if it must be."""
    finished = state.finished
    if finished is None or state.reported:
        return None
    task = state.task
    result = _result_text(state)
    if result is not None and text_max is not None and len(result) > text_max:
        result = result[:text_max] + note
    return TaskCompleted(
        task_id=state.run_id,
        status=finished.status,
        kind=finished.kind,
        reason=finished.reason,
        result=result,
        refusal=state.answer_is_refusal and finished.status == "completed",
        finish_reason=state.answer_finish_reason if finished.status == "completed" else "",
        totals=finished.totals,
        labels=task.labels if task is not None else {},
        parent=task.parent if task is not None else parent_by_id(state.run_id),
        request_digest=task.request_digest if task is not None else "",
        finished_at_ms=state.finished_at_ms,
    )


def _result_text(state: RunState) -> str | None:
    """The answer; where the run ended otherwise, the last text there was. Derived from the transcript, never copied."""
    for entry in reversed(state.transcript):
        if isinstance(entry, Reply):
            text = text_of(entry.items)
            if text or (state.finished is not None and state.finished.result_of == entry.model_call):
                return text
    return None
