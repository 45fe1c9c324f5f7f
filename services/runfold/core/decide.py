"""State and time to decisions: what an executor should append next.

Pure, and from state alone (level, not edge): any process that folds the same records decides the same, after any
crash. Deciding twice decides nothing: once the steps are folded, the next answer is empty. Steps form a chain, each
following the one before; any prefix of it may survive, and `decide` goes on from there.

What must be known of the deciding process is in `Situation`. What must be known of the deployment (agents, argument
schemas) is behind `Catalog`; it is asked before a decision is made, never while folding.
"""

from runfold.core.decide_model import decide_model
from runfold.core.decide_tools import decide_tools, settle_while_paused
from runfold.core.ending import decide_end, end_due_ms, finish
from runfold.core.limits import shortened
from runfold.core.phases import Phase
from runfold.core.state import RunState
from runfold.core.steps import NOTHING, Catalog, Decided, Situation, Step, earliest
from runfold.events.types import RunParked, RunUnparked, TaskReported


def decide(state: RunState, situation: Situation, catalog: Catalog) -> Decided:
    """What follows from this state now."""
    if not state.last or state.reported:
        return NOTHING
    if state.parked is not None or state.halt is not None:
        return _decide_parking(state, situation)
    if state.finished is not None:
        if not situation.completion:
            return NOTHING
        return Decided([Step(TaskReported(completion=situation.completion), Phase.DONE)], None)
    ending = decide_end(state, situation)
    if ending is not None:
        return ending
    if state.is_paused:
        return _decide_paused(state, situation)
    if state.phase is Phase.QUEUED:
        return _decide_context(state, situation, catalog)
    if state.reply is not None and state.reply.calls:
        decided = decide_tools(state, situation, catalog)
    else:
        decided = decide_model(state, situation)
    return Decided(decided.steps, earliest(decided.wake_at_ms, end_due_ms(state)))


def _decide_paused(state: RunState, situation: Situation) -> Decided:
    """Nothing new starts; the limits of what runs already run on, and the pause has one of its own."""
    due_ms = state.paused_since_ms + state.limits.pause_ms
    if situation.now_ms >= due_ms:
        reason = f"paused for longer than {state.limits.pause_ms / 1000:g} s"
        return finish(state, "cancelled", kind="pause_limit", reason=reason)
    settled = settle_while_paused(state, situation)
    return Decided(settled.steps, earliest(earliest(settled.wake_at_ms, due_ms), end_due_ms(state)))


def _decide_parking(state: RunState, situation: Situation) -> Decided:
    if state.parked is None and state.halt is not None:
        parked = RunParked(
            reason=shortened(state.halt.reason), base_offset=situation.base_offset, bad_offset=state.halt.offset
        )
        return Decided([Step(parked, state.phase)], None)
    if state.unpark is not None and state.halt is None:
        return Decided([Step(RunUnparked(skipped=list(state.skipped)), state.phase)], None)
    return NOTHING


def _decide_context(state: RunState, situation: Situation, catalog: Catalog) -> Decided:
    task = state.task
    if task is None:
        return NOTHING
    if task.not_before_ms is not None and situation.now_ms < task.not_before_ms:
        return Decided([], earliest(task.not_before_ms, task.expires_at_ms))
    context = catalog.context(task)
    if isinstance(context, str):
        return finish(state, "rejected", kind="bad_request", reason=context)
    return Decided([Step(context, Phase.LOADING_CONTEXT)], None)
