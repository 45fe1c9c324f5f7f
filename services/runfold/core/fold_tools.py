"""How decisions about single tool calls change a state: ask a person, dispatch, settle. See `fold_decisions.py`."""

from runfold.core.children import delegate
from runfold.core.phases import DISPATCH_PHASES, TOOL_PHASES, Phase
from runfold.core.state import RunState, ToolCall
from runfold.core.waits import open_call, tend_clock
from runfold.events.envelope import Record
from runfold.events.types import ApprovalRequired, ToolDispatchStarted, ToolSettled


def is_ending(state: RunState) -> bool:
    return state.failure is not None or state.finished is not None or state.parked is not None


def is_stopped(state: RunState) -> bool:
    """Nothing new may start: the run is cancelled, paused, set aside, or ends."""
    return state.cancel is not None or state.is_paused or is_ending(state)


def _open_call(state: RunState, event: ApprovalRequired | ToolDispatchStarted | ToolSettled) -> ToolCall | None:
    """The call it names, if that is an open call of the effective reply."""
    return open_call(state, event.model_call, event.position)


def approval_required(state: RunState, record: Record, event: ApprovalRequired) -> bool:
    """Effective for an open, undispatched call of the effective reply, that nobody was asked about; not cancelled."""
    call = _open_call(state, event)
    if call is None or call.dispatches or call.approval or state.phase not in TOOL_PHASES:
        return False
    if state.cancel is not None or is_ending(state) or event.arguments_sha256 != call.arguments_sha256:
        return False
    call.approval = record.event_id
    call.approval_at_ms = record.time_ms
    call.approval_ms = event.time_limit_ms
    _enter_dispatching(state)
    tend_clock(state, record.time_ms)
    return True


def _enter_dispatching(state: RunState) -> None:
    if state.phase is Phase.CALLING_MODEL:
        state.phase = Phase.DISPATCHING_TOOLS


def tool_dispatch_started(state: RunState, record: Record, event: ToolDispatchStarted) -> bool:
    """Effective for an open call of the effective reply, approved where a person was asked, not dispatched before
    unless its tool may be started again; the run neither cancelled nor paused nor ended."""
    call = _open_call(state, event)
    if call is None or is_stopped(state):
        return False
    if state.phase not in TOOL_PHASES or (call.approval and call.decision != "approved"):
        return False
    if event.attempt != call.attempt + 1 or event.arguments_sha256 != call.arguments_sha256:
        return False
    if call.attempt and not (call.tool is not None and (call.tool.idempotent or call.tool.resumable)):
        return False
    call.attempt = event.attempt
    call.dispatches = (*call.dispatches, record.event_id)
    call.claim = call.claimed_by = ""
    call.dispatched_at_ms = record.time_ms
    call.time_limit_ms = event.time_limit_ms
    if event.attempt == 1:
        state.counters.tool_calls += 1
    if state.reply is not None and state.reply.has_waits:
        if call.tool is not None and call.tool.waits_for == "child":
            delegate(state, call)
        tend_clock(state, record.time_ms)
    state.phase = DISPATCH_PHASES.get(record.phase, Phase.DISPATCHING_TOOLS)
    return True


# What ToolSettled may say: timed_out and interrupted (the effect is unknown), cancelled, over_limit (the run ends),
# limited (the run goes on), invalid_arguments, unknown_tool, cut_off, rejected and expired (a person's no), waited.
NOT_ERRORS = frozenset(
    {"cancelled", "over_limit", "limited", "rejected", "waited"}
)  # outcomes of their own: no tool misbehaved


def tool_settled(state: RunState, record: Record, event: ToolSettled) -> bool:
    """Effective if the call is open; as expired, if no decision of its approval stands before."""
    call = _open_call(state, event)
    if call is None or state.parked is not None or (event.outcome == "expired" and call.decision):
        return False
    call.outcome = event.outcome
    call.output = event.message
    state.counters.tool_errors += event.outcome not in NOT_ERRORS
    if event.outcome == "over_limit":
        state.is_over_limit = True
    _enter_dispatching(state)
    if state.reply is not None and state.reply.has_waits:
        tend_clock(state, record.time_ms)
    return True
