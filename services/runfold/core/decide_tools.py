"""Deciding while a reply with tool calls is open: refuse, ask a person, dispatch, settle, advance.

Every call ends with exactly one outcome: its tool's report, or a ToolSettled made from state and time. Calls that
change state run one after the other in call order; the others side by side, at most `tools_in_flight` at once.
"""

from collections.abc import Sequence

from runfold.core.children import delegation_problem
from runfold.core.decide_sandbox import decide_sandbox, is_held_up
from runfold.core.decide_waits import ask, is_approved, settle_call, settle_waits, tool_of
from runfold.core.ending import failed, token_problem
from runfold.core.fold_facts import CLAIMED_CLASSES
from runfold.core.limits import Limits
from runfold.core.phases import Phase
from runfold.core.state import OpenReply, RunState, ToolCall
from runfold.core.steps import NOTHING, Catalog, Decided, Situation, Step, earliest
from runfold.core.transcript import parse_arguments
from runfold.events.types import (
    ApprovalRequired,
    PhaseEntered,
    ToolDispatchStarted,
    ToolSettled,
    ToolSpec,
    TurnAdvanced,
)


def decide_tools(state: RunState, situation: Situation, catalog: Catalog) -> Decided:
    """The next steps of a run with an open reply that has calls."""
    reply = state.reply
    if reply is None:
        raise ValueError("decide_tools needs an open reply")
    if all(call.outcome for call in reply.calls):
        return _advance(state, reply)
    settled, wake_at_ms = _settle_passed(state, reply, situation)
    if reply.has_waits:
        decided, due_ms = settle_waits(reply, situation)
        settled += decided
        wake_at_ms = earliest(wake_at_ms, due_ms)
    if settled:
        return _chain(state, settled, [], None)
    rebuilding = decide_sandbox(state, reply, situation)
    if rebuilding.steps:
        return rebuilding
    refused = _refuse(state, reply, catalog)
    refused_positions = {event.position for event in refused}
    waiting = [call for call in reply.calls if not call.outcome and call.position not in refused_positions]
    asked = ask(state, reply, waiting) if reply.has_waits else []
    dispatched = [_dispatch(state, reply, call) for call in _startable(waiting, state, situation)]
    return _chain(state, [*refused, *asked], dispatched, earliest(wake_at_ms, rebuilding.wake_at_ms))


def settle_while_paused(state: RunState, situation: Situation) -> Decided:
    """The limits of what runs already run on; people's clocks stand."""
    if state.reply is None or not state.reply.calls:
        return NOTHING
    settled, wake_at_ms = _settle_passed(state, state.reply, situation)
    return _chain(state, settled, [], None) if settled else Decided([], wake_at_ms)


def _advance(state: RunState, reply: OpenReply) -> Decided:
    if reply.finish_reason == "length" and state.cut_replies >= max(1, state.limits.cut_replies):
        return failed(state, "truncated", f"{state.cut_replies} replies in a row were cut off inside their tool calls")
    if reply.finish_reason == "content_filter":
        return failed(state, "content_filter", "the provider's content filter stopped the reply")
    advanced = TurnAdvanced(model_call=reply.model_call, turn=reply.turn, calls=list(range(len(reply.calls))))
    return Decided([Step(advanced, Phase.ADVANCING_TURN)], None)


def _chain(
    state: RunState,
    settled: Sequence[ToolSettled | ApprovalRequired],
    dispatched: list[ToolDispatchStarted],
    wake_at_ms: int | None,
) -> Decided:
    """The steps with their phases. A batch enters `dispatching_tools` with its first and `awaiting_tools` with its last
    decision; where that is one and the same, PhaseEntered says the second, so that no phase is skipped."""
    phase = state.phase
    steps = []
    for event in settled:
        phase = Phase.DISPATCHING_TOOLS if phase is Phase.CALLING_MODEL else phase
        steps.append(Step(event, phase))
    last = len(dispatched) - 1
    for index, started in enumerate(dispatched):
        is_entered = phase is Phase.DISPATCHING_TOOLS
        phase = Phase.AWAITING_TOOLS if index == last and is_entered else Phase.DISPATCHING_TOOLS
        steps.append(Step(started, phase))
    if phase is Phase.DISPATCHING_TOOLS and (dispatched or not steps):
        steps.append(Step(PhaseEntered(phase=Phase.AWAITING_TOOLS, turn=state.turn), Phase.AWAITING_TOOLS))
    return Decided(steps, wake_at_ms)


# ---- calls that never start


def _refuse(state: RunState, reply: OpenReply, catalog: Catalog) -> list[ToolSettled]:
    """Outcomes for undispatched calls that must not run."""
    refused = []
    budget = state.limits.tool_calls - state.counters.tool_calls
    tokens = token_problem(state, state.limits)
    delegations = 0
    for call in reply.calls:
        if call.outcome or call.dispatches:
            continue
        outcome, message = _refusal(state, reply, call, catalog)
        if not outcome and state.last_turn:
            outcome, message = "over_limit", "Not started: no tool can be called any more."
        if not outcome and tokens is not None:
            outcome, message = "over_limit", f"Not started: {tokens}."
        if not outcome and budget <= 0:
            outcome, message = (
                "over_limit",
                f"Not started: the limit of {state.limits.tool_calls} tool calls is reached.",
            )
        if not outcome and call.tool is not None and call.tool.waits_for == "child":
            problem = delegation_problem(state, delegations)
            outcome, message = ("limited", f"Not started: {problem}.") if problem is not None else ("", "")
            delegations += 1
        if not outcome:
            budget -= is_approved(call)  # one that waits for a person may never start
            continue
        refused.append(settle_call(reply, call, outcome, message))
    return refused


def _refusal(state: RunState, reply: OpenReply, call: ToolCall, catalog: Catalog) -> tuple[str, str]:
    if reply.finish_reason == "length":
        return "cut_off", "Not started: the reply was cut off at its length limit. Send the call again, shorter."
    if reply.finish_reason == "content_filter":
        return "cut_off", "Not started: the provider's content filter stopped the reply."
    if call.tool is None:
        known = ", ".join(tool.name for tool in state.context.tools) if state.context is not None else ""
        return "unknown_tool", f"There is no tool {call.name!r}. Known tools: {known or 'none'}."
    if call.problem:
        return "invalid_arguments", f"Not started: {call.problem}."
    _, arguments, _ = parse_arguments(call.arguments)
    problem = catalog.argument_problem(call.tool, arguments or {})
    return ("invalid_arguments", f"Not started: {problem}.") if problem is not None else ("", "")


# ---- calls that start


def _startable(waiting: list[ToolCall], state: RunState, situation: Situation) -> list[ToolCall]:
    """Undispatched calls whose turn it is, and dispatched ones that may be started again."""
    room = state.limits.tools_in_flight - sum(bool(call.dispatches) and not call.waits_for for call in waiting)
    startable = []
    is_changing = False  # an earlier call that changes state is still open
    for call in waiting:
        changes = call.tool is not None and call.tool.changes_state
        if call.dispatches:
            if _may_restart(call) and situation.now_ms >= _orphaned_at_ms(call, situation):
                startable.append(call)
        elif room > 0 and not (changes and is_changing) and is_approved(call):
            startable.append(call)
            room -= 1
        is_changing = is_changing or changes
    return startable


def _dispatch(state: RunState, reply: OpenReply, call: ToolCall) -> ToolDispatchStarted:
    tool = tool_of(call)
    return ToolDispatchStarted(
        model_call=reply.model_call,
        position=call.position,
        attempt=call.attempt + 1,
        arguments_sha256=call.arguments_sha256,
        tool=call.name,
        tool_class=tool.tool_class,
        time_limit_ms=tool.time_limit_ms or _default_limit_ms(tool, state.limits),
        idempotency_key=f"{reply.model_call}-{call.position}",
    )


def _default_limit_ms(tool: ToolSpec, limits: Limits) -> int:
    match tool.waits_for:
        case "person":
            return limits.question_ms
        case "child":
            return limits.child_ms
        case "time":
            return limits.run_ms
    return limits.external_ms if tool.tool_class == "external" else limits.tool_ms


# ---- calls that do not come back


def _settle_passed(state: RunState, reply: OpenReply, situation: Situation) -> tuple[list[ToolSettled], int | None]:
    """Outcomes for started calls whose time is over, and when the next one's will be."""
    found = []
    wake_at_ms: int | None = None
    for call in reply.calls:
        if call.outcome or not call.dispatches or is_held_up(state, call):
            continue
        due_ms = call.dispatched_at_ms + call.time_limit_ms
        orphaned_ms = _orphaned_at_ms(call, situation)
        if situation.now_ms >= due_ms:
            limit_s = call.time_limit_ms / 1000
            message = PASSED.get(call.waits_for, PASSED[""]).format(limit=f"{limit_s:g} s")
            found.append(settle_call(reply, call, "timed_out", message))
        elif situation.now_ms >= orphaned_ms and not _may_restart(call):
            message = "The process that ran this call is gone. Whether it had its effect is not known."
            found.append(settle_call(reply, call, "interrupted", message))
        else:
            wake_at_ms = earliest(wake_at_ms, min(due_ms, orphaned_ms))
    return found, wake_at_ms


FAR_FUTURE_MS = 1 << 62
PASSED = {
    "": "No result within the time limit of {limit}. The work may still be going on.",
    "person": "Nobody answered within {limit}.",
    "child": "The task did not end within {limit}; it was asked to stop.",
}


def _orphaned_at_ms(call: ToolCall, situation: Situation) -> int:
    """When a call that another process started counts as abandoned: its owner may still report till then.

    Waits need no process. A call whose effect must be claimed is started by any owner while nobody claimed it. External
    tools are somebody else's.
    """
    dispatch = call.dispatches[-1]
    tool_class = tool_of(call).tool_class
    if tool_class in CLAIMED_CLASSES:
        is_waited_for = not call.claim or situation.is_held(dispatch)
    else:
        is_waited_for = situation.is_ours(dispatch) or tool_class == "external" or call.waits_for != ""
    if is_waited_for:
        return FAR_FUTURE_MS
    return max(situation.assigned_at_ms, call.dispatched_at_ms) + 2 * situation.session_timeout_ms


def _may_restart(call: ToolCall) -> bool:
    return call.tool is not None and (call.tool.idempotent or call.tool.resumable)
