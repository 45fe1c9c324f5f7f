"""Deciding about calls that wait: for a person's yes, for a time. Nothing runs for them; state and time are enough."""

from runfold.core.approval import needs_approval
from runfold.core.limits import shortened
from runfold.core.state import OpenReply, RunState, ToolCall
from runfold.core.steps import Situation, earliest
from runfold.core.transcript import parse_arguments
from runfold.events.types import ApprovalRequired, ToolSettled, ToolSpec


def settle_call(reply: OpenReply, call: ToolCall, outcome: str, message: str) -> ToolSettled:
    return ToolSettled(model_call=reply.model_call, position=call.position, outcome=outcome, message=shortened(message))


def ask(state: RunState, reply: OpenReply, waiting: list[ToolCall]) -> list[ApprovalRequired]:
    """Questions to a person, all at once: those that are decided first need not wait for each other."""
    return [
        ApprovalRequired(
            model_call=reply.model_call,
            position=call.position,
            reason=shortened(tool_of(call).approval_reason),
            arguments_sha256=call.arguments_sha256,
            time_limit_ms=state.limits.approval_ms,
        )
        for call in waiting
        if not call.dispatches and not call.approval and _needs_approval(call)
    ]


def _needs_approval(call: ToolCall) -> bool:
    rule = tool_of(call).approval
    return bool(rule) and needs_approval(rule, parse_arguments(call.arguments)[1] or {})


def settle_waits(reply: OpenReply, situation: Situation) -> tuple[list[ToolSettled], int | None]:
    """Outcomes of approvals that were decided or expired and of waits whose time came, and when the next is due."""
    found = []
    wake_at_ms: int | None = None
    for call in reply.calls:
        if call.outcome:
            continue
        due_ms: int | None = None
        if call.approval and not call.dispatches:
            if call.decision == "rejected":
                why = f": {call.decision_reason}" if call.decision_reason else ""
                found.append(settle_call(reply, call, "rejected", f"Not started: a person rejected this call{why}."))
                continue
            if not call.decision:
                due_ms = call.approval_at_ms + call.approval_ms
                if situation.now_ms >= due_ms:
                    message = f"Not started: nobody approved this call within {call.approval_ms / 1000:g} s."
                    found.append(settle_call(reply, call, "expired", message))
        elif call.waits_for == "time":
            wait_ms = _wait_ms(call)
            due_ms = call.dispatched_at_ms + wait_ms
            if situation.now_ms >= due_ms:
                found.append(settle_call(reply, call, "waited", f"Waited {wait_ms / 1000:g} s."))
        if due_ms is not None and situation.now_ms < due_ms:
            wake_at_ms = earliest(wake_at_ms, due_ms)
    return found, wake_at_ms


def _wait_ms(call: ToolCall) -> int:
    seconds = (parse_arguments(call.arguments)[1] or {}).get("seconds", 0)
    return int(max(0.0, float(seconds)) * 1000) if isinstance(seconds, int | float) else 0


def is_approved(call: ToolCall) -> bool:
    if call.approval:
        return call.decision == "approved"
    return not _needs_approval(call)


def tool_of(call: ToolCall) -> ToolSpec:
    if call.tool is None:
        raise ValueError("a call without its tool is refused before it is dispatched")
    return call.tool
