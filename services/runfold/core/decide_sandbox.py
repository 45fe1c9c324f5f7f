"""Deciding about a run's workspace: is it lost, what is to be repeated, when is it as good as it gets. See `sandbox.py`."""

from runfold.core.limits import shortened
from runfold.core.sandbox import changes, is_in_use
from runfold.core.state import OpenReply, Replay, RunState, ToolCall
from runfold.core.steps import NOTHING, Decided, Situation, Step
from runfold.events.types import ReplayStarted, SandboxReady, SandboxReplaced


def decide_sandbox(state: RunState, reply: OpenReply, situation: Situation) -> Decided:
    """The next step of a rebuild, its first if the workspace is lost and somebody needs it."""
    replay = state.replay
    is_lost = state.sandbox != "" and situation.sandbox not in ("", state.sandbox)
    if replay is not None and not is_lost:
        return _go_on(state, replay, situation)
    if not is_lost:
        return NOTHING
    needed = [c for c in reply.calls if not c.outcome and not c.claim and c.tool is not None and c.tool.workspace]
    if not needed or is_in_use(state):
        return NOTHING  # what runs elsewhere in the old one is waited for first
    replaced = SandboxReplaced(sandbox=situation.sandbox, calls=len(changes(state)))
    return Decided([Step(replaced, state.phase)], None)


def is_held_up(state: RunState, call: ToolCall) -> bool:
    """Does this call wait for its workspace? Its time limit begins when that is ready."""
    return state.replay is not None and not call.claim and call.tool is not None and call.tool.workspace


def _go_on(state: RunState, replay: Replay, situation: Situation) -> Decided:
    if replay.current:
        due_ms = replay.started_at_ms + replay.time_limit_ms
        if situation.now_ms >= due_ms:
            return _ready(state, replay, f"call {replay.restored + 1} did not end in time")
        if replay.claim and not situation.is_held(replay.current):
            since_ms = max(situation.assigned_at_ms, replay.started_at_ms)
            lost_ms = since_ms + 2 * situation.session_timeout_ms
            if situation.now_ms >= lost_ms:
                return _ready(state, replay, f"call {replay.restored + 1} was interrupted")
            due_ms = min(due_ms, lost_ms)
        return Decided([], due_ms)
    if replay.problem or replay.restored >= replay.calls:
        return _ready(state, replay, replay.problem)
    change = changes(state)[replay.restored]
    started = ReplayStarted(
        sandbox=state.sandbox,
        model_call=change.model_call,
        position=change.position,
        number=replay.restored + 1,
        time_limit_ms=change.tool.time_limit_ms or state.limits.tool_ms,
    )
    return Decided([Step(started, state.phase)], None)


def _ready(state: RunState, replay: Replay, problem: str) -> Decided:
    message = (
        "The workspace was lost with the machine it was on, and a new one was made. "
        f"{replay.restored} of {replay.calls} calls that had changed it were repeated"
    )
    message += f"; then it stopped: {problem}. Look before you rely on a file. " if problem else ". "
    message += "Running processes and connections are gone."
    ready = SandboxReady(sandbox=state.sandbox, restored=replay.restored, message=shortened(message))
    return Decided([Step(ready, state.phase)], None)
