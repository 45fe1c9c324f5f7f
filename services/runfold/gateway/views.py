"""A run's state as the answer to GET /runs/{id}. Pure."""

from dataclasses import asdict

from runfold.core.ending import totals_of
from runfold.core.state import RunState, ToolCall
from runfold.core.waits import open_calls, status_of
from runfold.events.types import TaskCompleted
from runfold.gateway.models import AsOf, Child, Completion, OpenApproval, OpenCall, Run, Totals, Waiting
from runfold.gateway.tracked import Tracked


def run_view(tracked: Tracked, position: int) -> Run:
    """`position`: everything before it on the partition was folded."""
    state = tracked.state
    task, finished = state.task, state.finished
    reply = state.reply
    calls = [] if finished is not None or reply is None else open_calls(state)
    model_call = reply.model_call if reply is not None else ""
    return Run(
        run_id=state.run_id,
        status=status_of(state),
        phase=state.phase,
        turn=state.turn,
        agent=tracked.agent or (task.agent if task is not None else ""),
        model=tracked.model,
        interactive=task is not None and task.interactive,
        is_closed=state.closed,
        is_cancelled=state.cancel is not None,
        requested_at_ms=state.requested_at_ms,
        finished_at_ms=state.finished_at_ms if finished is not None else None,
        kind=finished.kind if finished is not None else "",
        reason=_reason(state),
        totals=Totals(**asdict(finished.totals if finished is not None else totals_of(state))),
        open_calls=[_open_call(model_call, call) for call in calls],
        open_approvals=[_open_approval(model_call, call) for call in calls if call.waits_for == "approval"],
        mailbox=[Waiting(command_id=message.command_id, sender=message.sender) for message in state.mailbox],
        children=children_of(tracked),
        parent=task.parent if task is not None else None,
        labels=dict(task.labels) if task is not None else {},
        as_of=AsOf(partition=tracked.partition, offset=position),
    )


def completion_view(completed: TaskCompleted | None) -> Completion | None:
    return None if completed is None else Completion(**asdict(completed))


def children_of(tracked: Tracked) -> list[Child]:
    return [Child(run_id=child, status=status) for child, status in tracked.children.items()]


def _reason(state: RunState) -> str:
    if state.finished is not None:
        return state.finished.reason
    if state.parked is not None:
        return f"parked: {state.parked.reason}"
    if state.halt is not None:
        return f"not followed any further: {state.halt.reason}; upgrade this gateway"
    return ""


def waits_for(call: ToolCall) -> str:
    """Whom an open call waits for, in a word."""
    if call.waits_for:
        return call.waits_for
    if not call.dispatches:
        return "turn"
    return "external" if call.tool is not None and call.tool.tool_class == "external" else "tool"


def _open_call(model_call: str, call: ToolCall) -> OpenCall:
    is_dispatched = bool(call.dispatches)
    return OpenCall(
        model_call=model_call,
        position=call.position,
        tool=call.name,
        tool_class=call.tool.tool_class if call.tool is not None else "",
        arguments=call.arguments,
        arguments_sha256=call.arguments_sha256,
        waits_for=waits_for(call),
        dispatch=call.dispatches[-1] if is_dispatched else None,
        dispatched_at_ms=call.dispatched_at_ms if is_dispatched else None,
        due_at_ms=call.dispatched_at_ms + call.time_limit_ms if is_dispatched else None,
        claimed_by=call.claimed_by or None,
        child=call.child or None,
    )


def _open_approval(model_call: str, call: ToolCall) -> OpenApproval:
    return OpenApproval(
        approval=call.approval,
        model_call=model_call,
        position=call.position,
        tool=call.name,
        arguments=call.arguments,
        arguments_sha256=call.arguments_sha256,
        reason=call.tool.approval_reason if call.tool is not None else "",
        asked_at_ms=call.approval_at_ms,
        expires_at_ms=call.approval_at_ms + call.approval_ms,
    )
