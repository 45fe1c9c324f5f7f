"""What ought to be in flight, from state alone: safe to ask after any crash, always asked at the moment of acting.

The state asked must be the read-back one: then every effect rests on a decision that was accepted and effective.
Whether this process is the one to act (and has not done so already) is the executor's business.
"""

from runfold.core.state import RunState, ToolCall
from runfold.core.transcript import Reply, text_of
from runfold.events.types import TaskCompleted


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
    return [call for call in state.reply.calls if call.dispatches and not call.outcome]


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
        parent=task.parent if task is not None else None,
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
