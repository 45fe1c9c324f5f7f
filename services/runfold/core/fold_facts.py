"""How each fact changes a state. One function a fact; facts that no longer matter change nothing but their identity.

Identities: RunRequested by run; ModelReplied and ModelFailed by model call; ToolReported by dispatch, source and
nonce; commands by command id; ToolClaimed by dispatch: the first counts. Only cancel, pause, resume, message and close
may stand before their run's RunRequested: they are simply kept in a state without a base.
"""

import hashlib
from collections.abc import Callable
from typing import Any

from runfold.core.fold_people import PEOPLE_RULES, close_call
from runfold.core.limits import limits_from
from runfold.core.sandbox import replay_reported
from runfold.core.state import LateReport, OpenReply, RunState, ToolCall
from runfold.core.transcript import Reply, UserMessage, calls_of, parse_arguments, size_of, text_of
from runfold.events.envelope import Record
from runfold.events.types import (
    Item,
    LateReportRecorded,
    ModelFailed,
    ModelReplied,
    PartitionOpened,
    RunLost,
    RunRequested,
    ToolReported,
    Usage,
)

CLAIMED_CLASSES = frozenset({"process", "job", "sandbox"})  # the claim is the fence: any owner may start them
CHARS_PER_TOKEN = 4  # estimate where a provider reports no usage
NO_ARGUMENTS_SHA256 = hashlib.sha256(b"{}").hexdigest()


def _run_requested(state: RunState, record: Record, event: RunRequested) -> None:
    if state.last:
        return
    state.last = record.event_id
    state.task = event
    state.requested_at_ms = record.time_ms
    state.traceparent = record.traceparent
    state.limits = limits_from(event.limits)
    state.transcript.append(UserMessage(text=event.input, parts=event.input_parts, ref=event.input_ref))


def _run_lost(state: RunState, record: Record, event: RunLost) -> None:
    if not state.last:
        state.last = record.event_id
        state.requested_at_ms = record.time_ms
        state.lost = event.reason


def _model_replied(state: RunState, record: Record, event: ModelReplied) -> None:
    if event.model_call in state.replied:
        return
    state.replied.add(event.model_call)
    _charge(state, event.usage, sum(len(item.text) + len(item.arguments) for item in event.items))
    call = state.call
    if call is None or call.id != event.model_call or state.finished is not None:
        return  # superseded or never effective: paid for, and that is all
    calls = calls_of(event.items)
    text = text_of(event.items)
    is_refusal = any(item.kind == "refusal" for item in event.items)
    is_empty = not calls and not text.strip()
    state.transcript.append(Reply(model_call=call.id, turn=call.turn, items=event.items))
    tool_calls = _tool_calls(state, calls) if calls else []
    state.reply = OpenReply(
        model_call=call.id,
        turn=call.turn,
        finish_reason=event.finish_reason,
        is_empty=is_empty,
        is_refusal=is_refusal,
        calls=tool_calls,
        has_waits=any(c.tool is not None and (c.tool.waits_for or c.tool.approval) for c in tool_calls),
        has_claims=any(c.tool is not None and c.tool.tool_class in CLAIMED_CLASSES for c in tool_calls),
    )
    state.answer = "" if calls else call.id
    state.answer_is_refusal = is_refusal
    state.answer_finish_reason = event.finish_reason
    state.empty_replies = state.empty_replies + 1 if is_empty else 0
    state.cut_replies = state.cut_replies + 1 if calls and event.finish_reason == "length" else 0


def _tool_calls(state: RunState, items: list[Item]) -> list[ToolCall]:
    tools = {tool.name: tool for tool in state.context.tools} if state.context is not None else {}
    calls = []
    for position, item in enumerate(items):
        arguments, _, problem = parse_arguments(item.arguments)
        digest = NO_ARGUMENTS_SHA256 if arguments == "{}" else hashlib.sha256(arguments.encode()).hexdigest()
        calls.append(
            ToolCall(
                position=position,
                name=item.name,
                arguments=arguments,
                arguments_sha256=digest,
                problem=problem,
                tool=tools.get(item.name),
            )
        )
    return calls


def _charge(state: RunState, told: Usage | None, said: int) -> None:
    """Count the usage of a reply, effective or not, or of one that broke off: it was paid for. `said`: its characters."""
    counters = state.counters
    usage = told or Usage()
    known_in, known_out = usage.input_tokens, usage.output_tokens
    if known_in is None and known_out is None and usage.total_tokens is None:
        counters.tokens_estimated = True
        for entry in state.transcript[counters.sized_entries :]:
            counters.sized_chars += size_of(entry)
        counters.sized_entries = len(state.transcript)
        known_in, known_out = counters.sized_chars // CHARS_PER_TOKEN, said // CHARS_PER_TOKEN
    counters.input_tokens += known_in or 0
    counters.output_tokens += known_out or 0
    counters.tokens += max(usage.total_tokens or 0, (known_in or 0) + (known_out or 0))


def _model_failed(state: RunState, record: Record, event: ModelFailed) -> None:
    if event.model_call in state.replied:
        return
    state.replied.add(event.model_call)
    state.counters.model_failures += 1
    if event.chars or event.usage is not None:
        _charge(state, event.usage, event.chars)
    call = state.call
    if call is not None and call.id == event.model_call:
        call.failed = event
        call.failed_at_ms = record.time_ms


def _tool_reported(state: RunState, record: Record, event: ToolReported) -> None:
    identity = f"{event.dispatch}/{event.nonce or event.source}"  # two may watch one process: it ended once
    if identity in state.reports or not state.last:
        return
    state.reports.add(identity)
    if replay_reported(state, event):
        return
    reply = state.reply
    if reply is not None and reply.model_call == event.model_call and 0 <= event.position < len(reply.calls):
        call = reply.calls[event.position]
        if event.dispatch not in call.dispatches:
            return  # a dispatch that never counted: nothing can have been started for it
        if event.nonce and call.claim and event.nonce != call.claim:
            return  # of a process that was refused: it may do nothing, so it has nothing to say
        if not call.outcome and state.finished is None:
            call.output_ref = event.output_ref
            close_call(state, call, event.outcome, event.output, record.time_ms)
            return
    state.late[record.event_id] = late_report(record, event)


def late_report(record: Record, event: ToolReported) -> LateReport:
    """What is to be recorded of a report that came after its call was closed."""
    return LateReport(
        model_call=event.model_call, position=event.position, dispatch=event.dispatch, report=record.event_id
    )


def _late_report_recorded(state: RunState, record: Record, event: LateReportRecorded) -> None:
    state.late.pop(event.report, None)


def _of_the_partition(state: RunState, record: Record, event: PartitionOpened) -> None:
    """Belongs to no run."""


FACT_RULES: dict[type, Callable[[RunState, Record, Any], None]] = {
    RunRequested: _run_requested,
    RunLost: _run_lost,
    ModelReplied: _model_replied,
    ModelFailed: _model_failed,
    ToolReported: _tool_reported,
    LateReportRecorded: _late_report_recorded,
    PartitionOpened: _of_the_partition,
    **PEOPLE_RULES,
}
