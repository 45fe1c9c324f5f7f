"""What a run waits for beside its model and its tools, and the clock that stands meanwhile.

The turn's clock counts model calls, backoffs and tools. It stands while the run is paused or parked, and while every open
call waits for a person, a child or a time. Standing is kept as a shift of the turn's start, so that whoever reads the clock need not
know of it.
"""

from runfold.core.state import RunState, ToolCall

WAITS = frozenset({"person", "child", "approval", "time"})  # nothing runs: they do not count as the run's time


def tend_clock(state: RunState, time_ms: int) -> None:
    """After something changed: stop the turn's clock, or let it go on."""
    since_ms = state.clock_stands_since_ms
    is_held = state.is_paused or state.parked is not None
    if state.turn_started_at_ms >= 0 and (is_held or _nothing_runs(state)):
        if since_ms < 0:
            state.clock_stands_since_ms = time_ms
    elif since_ms >= 0:
        state.clock_stands_since_ms = -1
        if state.turn_started_at_ms >= 0:
            state.turn_started_at_ms += max(0, time_ms - since_ms)


def _nothing_runs(state: RunState) -> bool:
    reply = state.reply
    if reply is None or not reply.has_waits:
        return False
    found = [call.waits_for in WAITS for call in reply.calls if not call.outcome]
    return bool(found) and all(found)


def turn_ms(state: RunState, now_ms: int) -> int:
    """How long the turn has taken by its clock."""
    if state.turn_started_at_ms < 0:
        return 0
    until_ms = now_ms if state.clock_stands_since_ms < 0 else state.clock_stands_since_ms
    return max(0, until_ms - state.turn_started_at_ms)


def pause(state: RunState, time_ms: int) -> None:
    state.paused_since_ms = time_ms
    tend_clock(state, time_ms)


def resume(state: RunState, time_ms: int) -> None:
    since_ms, state.paused_since_ms = state.paused_since_ms, -1
    stand_still(state, since_ms, time_ms)
    tend_clock(state, time_ms)


def stand_still(state: RunState, since_ms: int, until_ms: int) -> None:
    """The idle clock and those of open approvals stood as well."""
    stood_ms = max(0, until_ms - since_ms)
    state.idle_since_ms += stood_ms
    for call in open_calls(state):
        if call.approval and not call.decision:
            call.approval_at_ms += stood_ms


def open_calls(state: RunState) -> list[ToolCall]:
    return [] if state.reply is None else [call for call in state.reply.calls if not call.outcome]


def open_call(state: RunState, model_call: str, position: int) -> ToolCall | None:
    """The call of the effective reply, if it is open and the run goes on."""
    reply = state.reply
    if reply is None or reply.model_call != model_call or not 0 <= position < len(reply.calls):
        return None
    call = reply.calls[position]
    return None if call.outcome or state.finished is not None else call


def call_of_child(state: RunState, child: str) -> ToolCall | None:
    """The open call that delegated this task."""
    return next((call for call in open_calls(state) if call.child == child), None)


def status_of(state: RunState) -> str:
    """A run's status, as the views and the gateway show it."""
    if state.finished is not None:
        return state.finished.status
    if state.parked is not None:
        return "parked"
    if state.is_paused:
        return "paused"
    waits = {call.waits_for for call in open_calls(state)}
    if "approval" in waits:
        return "waiting_approval"
    if "person" in waits:
        return "waiting_answer"
    if "child" in waits:
        return "waiting_child"
    if state.phase == "awaiting_message":
        return "waiting_message"
    return "queued" if state.phase == "queued" else "running"
