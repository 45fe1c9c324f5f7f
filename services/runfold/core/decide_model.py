"""Deciding while no tool call is open: call the model, call it again, take its answer, wait for a message."""

import hashlib

from runfold.core.ending import failed, finish, limit_problem, limit_reached, token_problem
from runfold.core.limits import BACKOFF_FIRST_MS, BACKOFF_MAX_MS, MESSAGES_TAKEN_MAX
from runfold.core.phases import Phase
from runfold.core.state import ModelCall, OpenReply, RunState
from runfold.core.steps import NOTHING, Decided, Situation, Step
from runfold.core.transcript import extended_digest
from runfold.events.types import ContextLoaded, ModelCallStarted, PhaseEntered, TurnAdvanced


def decide_model(state: RunState, situation: Situation) -> Decided:
    """The next step of a run none of whose tool calls is open."""
    if state.reply is not None:
        return _decide_answer(state, state.reply)
    if state.phase is Phase.CALLING_MODEL and state.call is not None:
        return _decide_attempt(state, state.call, situation)
    if state.phase is Phase.AWAITING_MESSAGE:
        return _decide_idle(state, situation)
    if state.phase is Phase.ADVANCING_TURN:
        if state.is_over_limit or state.last_turn:
            return _over_limit(state)
        if state.answer and not state.mailbox and state.task is not None and state.task.interactive:
            if state.closed:
                return _completed(state, "closed")
            return Decided(
                [Step(PhaseEntered(phase=Phase.AWAITING_MESSAGE, turn=state.turn), Phase.AWAITING_MESSAGE)], None
            )
    return _start_call(state, turn=state.turn + 1, attempt=1)


def _over_limit(state: RunState) -> Decided:
    """A limit is reached: one last turn to say what was done so far, then the end."""
    if state.last_turn or not state.limits.last_turn_tokens or state.context is None or not state.turn:
        return limit_reached(state)
    return _call(state, state.context, turn=state.turn + 1, attempt=1, last_turn=limit_problem(state))


def _start_call(state: RunState, *, turn: int, attempt: int) -> Decided:
    if state.context is None:
        return NOTHING
    if state.last_turn:
        return _call(state, state.context, turn=turn, attempt=attempt, last_turn=state.last_turn)
    if token_problem(state, state.limits) is not None:
        return limit_reached(state) if attempt > 1 else _over_limit(state)
    return _call(state, state.context, turn=turn, attempt=attempt)


def _call(state: RunState, context: ContextLoaded, *, turn: int, attempt: int, last_turn: str = "") -> Decided:
    messages = [] if last_turn else [message.command_id for message in state.mailbox[:MESSAGES_TAKEN_MAX]]
    started = ModelCallStarted(
        turn=turn,
        attempt=attempt,
        model=context.model,
        prompt_digest=prompt_digest(state),
        transcript_length=len(state.transcript) + len(messages),
        messages=messages,
        last_turn=last_turn,
    )
    return Decided([Step(started, Phase.CALLING_MODEL)], None)


def prompt_digest(state: RunState) -> str:
    """The rolling digest of what the model is about to see, before the messages it takes.

    Entries are only ever added, so the state keeps how far it has come: turn 200 costs the same as turn 1.
    """
    if not state.digest and state.context is not None:
        start = f"{state.context.instructions}\0{state.context.version}"
        state.digest = hashlib.sha256(start.encode()).hexdigest()
    while state.digested < len(state.transcript):
        state.digest = extended_digest(state.digest, state.transcript[state.digested])
        state.digested += 1
    return state.digest


def _decide_attempt(state: RunState, call: ModelCall, situation: Situation) -> Decided:
    """A model call is in flight, or it failed."""
    limits = state.limits
    if call.failed is None:
        limit_ms = min(limits.model_attempt_ms, limits.last_turn_ms) if state.last_turn else limits.model_attempt_ms
        due_ms = call.started_at_ms + limit_ms
        # The call of a dead or revoked owner is superseded at once; that of somebody who may be alive at its limit
        # only: else two who both believe they own the run would call for ever.
        is_orphan = call.started_at_ms <= situation.assigned_at_ms and not situation.is_ours(call.id)
        if is_orphan:
            return _start_call(state, turn=call.turn, attempt=call.attempt + 1)
        if situation.now_ms < due_ms:
            return Decided([], due_ms)
        if state.last_turn:
            return limit_reached(state)
        return _again(state, call, "the model did not answer in time", "model_timed_out")
    if state.last_turn:
        return limit_reached(state)
    if not call.failed.retryable:
        return failed(state, call.failed.kind, call.failed.message)
    due_ms = call.failed_at_ms + max(call.failed.retry_after_ms or 0, backoff_ms(call))
    if due_ms >= state.turn_started_at_ms + limits.turn_ms:
        return failed(state, call.failed.kind, f"{call.failed.message}; the next attempt would pass the turn's limit")
    if situation.now_ms < due_ms:
        return Decided([], due_ms)
    return _again(state, call, call.failed.message, call.failed.kind)


def _again(state: RunState, call: ModelCall, message: str, kind: str) -> Decided:
    if call.attempt >= state.limits.model_attempts:
        return failed(state, kind, f"{message}; that was attempt {call.attempt} of {state.limits.model_attempts}")
    return _start_call(state, turn=call.turn, attempt=call.attempt + 1)


def backoff_ms(call: ModelCall) -> int:
    """Exponential, with jitter that the call's id decides: the same for every process, different for every run."""
    whole_ms = min(BACKOFF_MAX_MS, BACKOFF_FIRST_MS * 2 ** min(call.attempt - 1, 16))
    share = hashlib.sha256(call.id.encode()).digest()[0] / 255
    return int(whole_ms * (0.75 + 0.25 * share))


def _decide_answer(state: RunState, reply: OpenReply) -> Decided:
    """The model replied without calls."""
    if state.last_turn:
        return limit_reached(state)
    if reply.finish_reason == "content_filter":
        return failed(state, "content_filter", "the provider's content filter stopped the reply")
    if reply.is_empty:
        if state.empty_replies > state.limits.empty_replies:
            return failed(state, "empty_reply", f"the model replied with nothing {state.empty_replies} times in a row")
        return _advance(state, reply)
    interactive = state.task is not None and state.task.interactive
    if state.mailbox or (interactive and not state.closed):
        return _advance(state, reply)
    return _completed(state, "")


def _advance(state: RunState, reply: OpenReply) -> Decided:
    advanced = TurnAdvanced(model_call=reply.model_call, turn=reply.turn, calls=[])
    return Decided([Step(advanced, Phase.ADVANCING_TURN)], None)


def _decide_idle(state: RunState, situation: Situation) -> Decided:
    if state.mailbox:
        return _start_call(state, turn=state.turn + 1, attempt=1)
    if state.closed:
        return _completed(state, "closed")
    due_ms = state.idle_since_ms + state.limits.idle_ms
    return Decided([], due_ms) if situation.now_ms < due_ms else _completed(state, "idle")


def _completed(state: RunState, kind: str) -> Decided:
    return finish(state, "completed", kind=kind, reason="", result_of=state.answer)
