"""How a run ends: what ends it whatever the phase, and the settling of open calls that every end begins with."""

from runfold.core.limits import Limits, shortened
from runfold.core.phases import Phase
from runfold.core.state import RunState
from runfold.core.steps import NOTHING, Decided, Situation, Step, earliest
from runfold.core.waits import turn_ms
from runfold.events.types import RunFailed, RunFinished, ToolSettled, Totals


def decide_end(state: RunState, situation: Situation) -> Decided | None:
    """The end that must come now, whatever the phase; None while the run goes on."""
    now_ms, task, limits = situation.now_ms, state.task, state.limits
    if state.failure is not None:
        return finish(state, "failed", kind=state.failure.kind, reason=state.failure.message)
    if state.lost:
        return finish(state, "failed", kind="lost", reason=state.lost)
    if task is None:
        return NOTHING
    if task.problem is not None:
        return finish(state, "rejected", kind="bad_request", reason=task.problem)
    if state.cancel is not None:
        return finish(state, "cancelled", kind="cancelled", reason=state.cancel.reason or "cancelled")
    if task.expires_at_ms is not None and now_ms >= task.expires_at_ms:
        return finish(state, "timed_out", kind="expired", reason=_so_far(state, "the task's expiry time passed"))
    if state.turn_started_at_ms >= 0:
        in_turn_ms = turn_ms(state, now_ms)
        if in_turn_ms >= limits.turn_ms:
            reason = f"turn {state.turn} passed its limit of {_seconds(limits.turn_ms)}"
            return finish(state, "timed_out", kind="turn_limit", reason=_so_far(state, reason))
        if state.counters.active_ms + in_turn_ms >= limits.run_ms:
            reason = f"the run passed its limit of {_seconds(limits.run_ms)} of active time"
            return finish(state, "timed_out", kind="run_limit", reason=_so_far(state, reason))
    return None


def end_due_ms(state: RunState) -> int | None:
    """When `decide_end` will have something to say by time alone."""
    due_ms = state.task.expires_at_ms if state.task is not None else None
    if state.turn_started_at_ms >= 0 and state.clock_stands_since_ms < 0:
        left_ms = min(state.limits.turn_ms, state.limits.run_ms - state.counters.active_ms)
        due_ms = earliest(due_ms, state.turn_started_at_ms + left_ms)
    return due_ms


def finish(state: RunState, status: str, *, kind: str, reason: str, result_of: str | None = None) -> Decided:
    """Settle what is open, then end."""
    steps = _settle_all(state, status)
    phase = Phase.REPORTING_FAILURE if state.phase is Phase.REPORTING_FAILURE else Phase.REPORTING
    finished = RunFinished(
        status=status, kind=kind, reason=shortened(reason), result_of=result_of, totals=totals_of(state)
    )
    steps.append(Step(finished, phase))
    return Decided(steps, None)


WHOM = {"person": "an answer", "child": "its task", "approval": "a person's approval", "time": "its time"}


def _settle_all(state: RunState, status: str) -> list[Step]:
    """Every open call gets an outcome that says what is known: nothing ran, or nobody knows."""
    steps: list[Step] = []
    if state.reply is None:
        return steps
    phase = Phase.DISPATCHING_TOOLS if state.phase is Phase.CALLING_MODEL else state.phase
    for call in state.reply.calls:
        if call.outcome:
            continue
        if call.waits_for:
            outcome, message = (
                "cancelled",
                f"The run ended ({status}) while this call waited for {WHOM[call.waits_for]}.",
            )
        elif call.dispatches:
            outcome, message = "interrupted", f"The run ended ({status}) while this call ran; its effect is unknown."
        else:
            outcome, message = "cancelled", f"Not started: the run ended ({status})."
        settled = ToolSettled(
            model_call=state.reply.model_call, position=call.position, outcome=outcome, message=message
        )
        steps.append(Step(settled, phase))
    return steps


def totals_of(state: RunState) -> Totals:
    counters = state.counters
    return Totals(
        turns=state.turn,
        model_calls=counters.model_calls,
        model_failures=counters.model_failures,
        tool_calls=counters.tool_calls,
        tool_errors=counters.tool_errors,
        tokens=counters.tokens,
        input_tokens=counters.input_tokens,
        output_tokens=counters.output_tokens,
        tokens_estimated=counters.tokens_estimated,
        active_ms=counters.active_ms,
    )


def failed(state: RunState, kind: str, message: str) -> Decided:
    """The run cannot go on: a fault, as data. Its end follows from the state after it."""
    fault = RunFailed(kind=kind, message=shortened(message), phase=state.phase)
    return Decided([Step(fault, Phase.REPORTING_FAILURE)], None)


def limit_reached(state: RunState) -> Decided:
    """The end of a run that used up what it was given. Which limit it was follows from the state."""
    reason = state.last_turn or limit_problem(state)
    kind = "tool_call_limit" if reason == _call_limit(state) else "token_limit"
    return finish(state, "limit_exceeded", kind=kind, reason=_so_far(state, reason), result_of=state.answer or None)


def limit_problem(state: RunState) -> str:
    """Which limit a run has reached that has reached one."""
    return token_problem(state, state.limits) or _call_limit(state)


def _call_limit(state: RunState) -> str:
    return f"the limit of {state.limits.tool_calls} tool calls is reached"


def token_problem(state: RunState, limits: Limits) -> str | None:
    if state.counters.tokens < limits.tokens:
        return None
    return f"the run used {state.counters.tokens:,} tokens of its limit of {limits.tokens:,}"


def _so_far(state: RunState, reason: str) -> str:
    counters = state.counters
    return f"{reason}; done so far: {state.turn} turns, {counters.tool_calls} tool calls started, {counters.tokens:,} tokens"


def _seconds(duration_ms: int) -> str:
    return f"{duration_ms / 1000:g} s"
