"""How each accepted decision changes a state, and when it has an effect at all: the precondition table, row by row.

A rule answers whether the decision was effective. If not it has changed nothing. `decide` never yields a decision that
its own state makes ineffective; what can still happen is a fact that landed just before it.
"""

from collections.abc import Callable
from typing import Any

from runfold.core.fold_tools import approval_required, is_ending, is_stopped, tool_dispatch_started, tool_settled
from runfold.core.limits import limits_from
from runfold.core.phases import BEFORE_MODEL_CALL, ENTERED, PHASES, Phase
from runfold.core.sandbox import replay_started, sandbox_ready, sandbox_replaced
from runfold.core.state import ModelCall, OpenReply, RunState
from runfold.core.transcript import Result, Results, UserMessage
from runfold.core.waits import stand_still, tend_clock, turn_ms
from runfold.events.envelope import Record
from runfold.events.types import (
    ApprovalRequired,
    ContextLoaded,
    ModelCallStarted,
    PhaseEntered,
    ReplayStarted,
    RunCheckpointed,
    RunFailed,
    RunFinished,
    RunParked,
    RunUnparked,
    SandboxReady,
    SandboxReplaced,
    TaskReported,
    ToolDispatchStarted,
    ToolSettled,
    TurnAdvanced,
)


def _context_loaded(state: RunState, record: Record, event: ContextLoaded) -> bool:
    """Effective if the run has a task and nothing was decided about it yet."""
    if state.phase is not Phase.QUEUED or state.task is None or is_ending(state):
        return False
    state.phase = Phase.LOADING_CONTEXT
    state.context = event
    state.limits = limits_from(event.limits)
    return True


def _phase_entered(state: RunState, record: Record, event: PhaseEntered) -> bool:
    """Effective if it is a transition of the phase the run is in, and what the phase waits for is there."""
    phase = PHASES.get(event.phase)
    if phase is None or state.phase not in ENTERED.get(phase, ()) or is_ending(state):
        return False
    if phase is Phase.AWAITING_MESSAGE:
        if not state.answer or state.reply is not None or not (state.task and state.task.interactive):
            return False
        state.idle_since_ms = record.time_ms
    state.phase = phase
    return True


def _model_call_started(state: RunState, record: Record, event: ModelCallStarted) -> bool:
    """Effective if the last reply's turn is advanced, nothing ends the run, and its messages are in the mailbox."""
    if state.reply is not None or state.phase not in BEFORE_MODEL_CALL or state.context is None:
        return False
    if is_stopped(state):
        return False
    if event.turn not in (state.turn, state.turn + 1):
        return False
    if (event.turn == state.turn) != (state.phase is Phase.CALLING_MODEL):
        return False
    taken = _messages(state, event.messages)
    if taken is None:
        return False
    for message in taken:
        state.transcript.append(UserMessage(text=message.text, parts=message.parts, ref=message.ref))
    if event.last_turn and not state.last_turn:
        state.last_turn = event.last_turn
        state.transcript.append(UserMessage(text=LAST_TURN.format(reason=event.last_turn)))
    if event.turn != state.turn:
        state.turn = event.turn
        state.turn_started_at_ms = record.time_ms
    state.call = ModelCall(id=record.event_id, turn=event.turn, attempt=event.attempt, started_at_ms=record.time_ms)
    state.counters.model_calls += 1
    state.answer = ""
    state.phase = Phase.CALLING_MODEL
    return True


NUDGE_AFTER = 5  # turns that are all the same
NUDGE = (
    "You have now made the same calls {times} times in a row, with the same results. Repeating them will not change "
    "anything: do something else, or answer with what you know."
)
LAST_TURN = (
    "This run has reached a limit: {reason}. No tool can be called any more. "
    "Say in a few sentences what was done so far, and what is left to do."
)


def _messages(state: RunState, wanted: list[str]) -> list[Any] | None:
    """Take the named messages out of the mailbox; None, and nothing taken, if one is not there."""
    if not wanted:
        return []
    there = {message.command_id: message for message in state.mailbox}
    if any(command_id not in there for command_id in wanted):
        return None
    taken = set(wanted)
    state.mailbox = [message for message in state.mailbox if message.command_id not in taken]
    return [there[command_id] for command_id in wanted]


def _turn_advanced(state: RunState, record: Record, event: TurnAdvanced) -> bool:
    """Effective if it names the effective reply and none of its calls is open."""
    reply = state.reply
    if reply is None or reply.model_call != event.model_call or is_ending(state):
        return False
    if any(not call.outcome for call in reply.calls):
        return False
    _close_turn(state, reply, record.time_ms)
    state.phase = Phase.ADVANCING_TURN
    return True


def _close_turn(state: RunState, reply: OpenReply, time_ms: int) -> None:
    if reply.calls:
        results = [
            Result(position=call.position, name=call.name, output=call.output, outcome=call.outcome)
            for call in reply.calls
        ]
        state.transcript.append(Results(model_call=reply.model_call, turn=reply.turn, results=results))
        _notice_repeats(state, reply)
    for note in state.notes:
        state.transcript.append(UserMessage(text=note))
    state.notes = []
    state.reply = None
    _stop_clock(state, time_ms)


def _notice_repeats(state: RunState, reply: OpenReply) -> None:
    """A model that makes the same calls and gets the same results again and again is told so, now and then."""
    calls = tuple(f"{call.name} {call.arguments_sha256} {call.outcome} {call.output}" for call in reply.calls)
    state.same_calls = state.same_calls + 1 if calls == state.last_calls else 0
    state.last_calls = calls
    if state.same_calls and (state.same_calls + 1) % NUDGE_AFTER == 0:
        state.notes.append(NUDGE.format(times=state.same_calls + 1))


def _stop_clock(state: RunState, time_ms: int) -> None:
    state.counters.active_ms += turn_ms(state, time_ms)
    state.turn_started_at_ms = -1
    state.clock_stands_since_ms = -1


def _run_failed(state: RunState, record: Record, event: RunFailed) -> bool:
    """Effective if the run has not ended."""
    if is_ending(state):
        return False
    state.failure = event
    state.phase = Phase.REPORTING_FAILURE
    return True


def _run_finished(state: RunState, record: Record, event: RunFinished) -> bool:
    """Effective if no call is open; for *completed* also: not cancelled, an answer without calls, nothing unread."""
    if state.finished is not None or not state.last or state.parked is not None:
        return False
    reply = state.reply
    if reply is not None and any(not call.outcome for call in reply.calls):
        return False
    if event.status == "completed":
        if state.cancel is not None or state.failure is not None or not state.answer:
            return False
        if event.result_of != state.answer:
            return False
        if state.mailbox:  # said before the end: it is answered first
            return False
    if reply is not None:
        _close_turn(state, reply, record.time_ms)
    _stop_clock(state, record.time_ms)
    state.finished = event
    state.finished_id = record.event_id
    state.finished_at_ms = record.time_ms
    if state.phase is not Phase.REPORTING_FAILURE:
        state.phase = Phase.REPORTING
    return True


def _task_reported(state: RunState, record: Record, event: TaskReported) -> bool:
    """Effective if RunFinished was."""
    if state.finished is None or state.reported:
        return False
    state.reported = True
    state.phase = Phase.DONE
    return True


def _run_checkpointed(state: RunState, record: Record, event: RunCheckpointed) -> bool:
    """For a reader that has the state it changes nothing; see `restore.py` for one that has not."""
    return True


def _run_parked(state: RunState, record: Record, event: RunParked) -> bool:
    """Effective if the run is going on."""
    if state.parked is not None or state.reported:
        return False
    state.parked = event
    state.parked_at_ms = record.time_ms
    state.unpark = None
    tend_clock(state, record.time_ms)
    return True


def _run_unparked(state: RunState, record: Record, event: RunUnparked) -> bool:
    """Effective if the run is parked."""
    if state.parked is None:
        return False
    state.parked = None
    state.unpark = None
    if not state.is_paused:  # else the resume makes up for it
        stand_still(state, state.parked_at_ms, record.time_ms)
    tend_clock(state, record.time_ms)
    return True


DECISION_RULES: dict[type, Callable[[RunState, Record, Any], bool]] = {
    ContextLoaded: _context_loaded,
    PhaseEntered: _phase_entered,
    ModelCallStarted: _model_call_started,
    ApprovalRequired: approval_required,
    ToolDispatchStarted: tool_dispatch_started,
    ToolSettled: tool_settled,
    SandboxReplaced: sandbox_replaced,
    ReplayStarted: replay_started,
    SandboxReady: sandbox_ready,
    TurnAdvanced: _turn_advanced,
    RunFailed: _run_failed,
    RunFinished: _run_finished,
    TaskReported: _task_reported,
    RunCheckpointed: _run_checkpointed,
    RunParked: _run_parked,
    RunUnparked: _run_unparked,
}
