"""Bugs to plant: each puts a looser rule into the code for as long as its context lasts.

The simulation must notice every one of them; `test_planted_bugs.py` says so. Most are readings of the protocol that
look right until two owners, a lost append or a crash meet (the comments name the law that breaks).
"""

import hashlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from runfold.core import decide_model, decide_tools, fold, fold_decisions, fold_facts, fold_tools, restore
from runfold.core.checkpoint import packed
from runfold.core.pending import pending_tools
from runfold.core.phases import Phase
from runfold.events.types import (
    ApprovalDecided,
    ModelCallStarted,
    ModelReplied,
    QuestionAnswered,
    RunCheckpointed,
    RunFinished,
    ToolClaimed,
    ToolDispatchStarted,
    ToolReported,
    ToolSettled,
    TurnAdvanced,
)
from runfold.executor import claims, effects, loop, outward
from runfold.executor.checkpoints import Checkpoints
from runfold.executor.claims import Claims
from runfold.executor.loop import Executor
from runfold.executor.partition import Partition
from runfold.executor.run import Run
from runfold.executor.writer import Writer
from tests.simulation.actors import SimulatedProcesses

BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {}


def planted(function: Callable[[], Iterator[None]]) -> Callable[[], AbstractContextManager[None]]:
    bug = contextmanager(function)
    BUGS[function.__name__] = bug
    return bug


@contextmanager
def instead(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute, or the item of a dict, for a while another."""
    is_item = isinstance(owner, dict)
    before = owner[name] if is_item else getattr(owner, name)
    set_value = owner.__setitem__ if is_item else lambda key, new: setattr(owner, key, new)
    set_value(name, value)
    try:
        yield
    finally:
        set_value(name, before)


@planted
def act_before_read_back() -> Iterator[None]:
    """A tool is started when its dispatch is sent."""
    append = Executor._append

    def eager(self: Executor, owned: Any, run: Run, step: Any, now_ms: int) -> None:
        append(self, owned, run, step, now_ms)
        if isinstance(step.event, ToolDispatchStarted):
            run.to_start.append(run.in_flight[-1].event_id)
            state, run.state = run.state, run.ahead
            self.effects.start_tools(run, now_ms)
            run.state = state

    with instead(Executor, "_append", eager):
        yield


@planted
def accept_any_decision() -> Iterator[None]:
    """`follows` is not looked at."""
    take = fold.take

    def loose(state: Any, record: Any) -> Any:
        if record.follows is not None and state.last:
            record.follows = state.last
        return take(state, record)

    with instead(loop, "take", loose), instead(restore, "take", loose):
        yield


@planted
def take_a_second_report() -> Iterator[None]:
    """A later report replaces the outcome that a call already has."""
    take = fold_facts.FACT_RULES[ToolReported]

    def loose(state: Any, record: Any, event: Any) -> None:
        take(state, record, event)
        if state.reply is not None and state.reply.model_call == event.model_call:
            call = state.reply.calls[event.position]
            if event.dispatch in call.dispatches:
                call.outcome, call.output = event.outcome, event.output

    with instead(fold_facts.FACT_RULES, ToolReported, loose):  # type: ignore[arg-type]
        yield


@planted
def forget_the_mark() -> Iterator[None]:
    """The position is committed as the mark."""
    with instead(Partition, "mark", lambda self, memory_ms: self.position):
        yield


@planted
def advance_before_settles_are_read_back() -> Iterator[None]:
    """P08: the model is told what was decided, not what the log holds."""
    with instead(loop, "_has_settles_in_flight", lambda run: False):
        yield


@planted
def dispatch_by_position() -> Iterator[None]:
    """P01: a dispatch counts for whatever reply is open."""
    open_call = fold_tools._open_call

    def loose(state: Any, event: Any) -> Any:
        if state.reply is not None:
            event.model_call = state.reply.model_call
        return open_call(state, event)

    def unchecked(state: Any, record: Any, event: Any) -> bool:
        call = loose(state, event)
        if call is not None:
            event.arguments_sha256 = call.arguments_sha256
        return rule(state, record, event)

    rule = fold_decisions.DECISION_RULES[ToolDispatchStarted]
    rules = fold_decisions.DECISION_RULES
    with instead(fold_tools, "_open_call", loose), instead(rules, ToolDispatchStarted, unchecked):  # type: ignore[arg-type]
        yield


@planted
def accepted_is_effective() -> Iterator[None]:
    """P02: an accepted dispatch is acted on, whatever stands before it."""
    take = Executor._take

    def eager(self: Executor, owned: Any, run: Run, record: Any, *, is_ours: bool) -> None:
        is_accepted = record.follows is not None and record.follows == run.state.last
        take(self, owned, run, record, is_ours=is_ours)
        body = record.body
        if is_accepted and is_ours and isinstance(body, ToolDispatchStarted) and record.event_id not in run.to_start:
            reply = run.state.reply
            if reply is not None and body.position < len(reply.calls):
                call = reply.calls[body.position]
                call.dispatches = call.dispatches or (record.event_id,)
                run.tools.add(record.event_id)
                self.effects._start_tool(run, call, record.event_id, 0)

    with instead(Executor, "_take", eager):
        yield


@planted
def tail_from_the_checkpoint() -> Iterator[None]:
    """P05: what stands between a checkpoint's as-of offset and its place is taken to be in it.

    (Adopting a checkpoint that has a rival is no bug one can see: it carries a read-back state, true as of its offset.)
    """
    adopted = restore._adopted

    def late(records: list[Any], mark: int) -> Any:
        found = adopted(records, mark)
        if found is not None:
            last = [
                r for r in records if isinstance(r.body, RunCheckpointed) and r.body.as_of_offset == found.base_offset
            ]
            found.base_offset = last[-1].offset
        return found

    with instead(restore, "_adopted", late):
        yield


@planted
def checkpoint_on_an_unread_chain() -> Iterator[None]:
    """P05: the speculative state is checkpointed."""

    def wanted(self: Checkpoints, owned: Partition) -> list[Run]:
        runs = owned.runs.values()
        far = self.settings.checkpoint_records
        return [
            run for run in runs if run.state.last and run.checkpoint_at < 0 and owned.position - run.base_offset >= far
        ]

    def parts(self: Checkpoints, owned: Partition, run: Run) -> Iterator[RunCheckpointed]:
        yield RunCheckpointed(part=1, parts=1, as_of_offset=owned.position, state=packed(run.ahead))

    with instead(Checkpoints, "wanted", wanted), instead(Checkpoints, "parts", parts):
        yield


@planted
def finish_unguarded() -> Iterator[None]:
    """P09: RunFinished ends the run, whatever landed before it."""

    def loose(state: Any, record: Any, event: Any) -> bool:
        if state.finished is not None:
            return False
        if state.reply is not None:
            fold_decisions._close_turn(state, state.reply, record.time_ms)
        state.finished, state.finished_id, state.finished_at_ms = event, record.event_id, record.time_ms
        state.phase = Phase.REPORTING
        return True

    with instead(fold_decisions.DECISION_RULES, RunFinished, loose):  # type: ignore[arg-type]
        yield


@planted
def restart_interrupted_calls() -> Iterator[None]:
    """A call whose owner is gone is started again, whatever its tool is."""

    def loose(state: Any, record: Any, event: Any) -> bool:
        call = fold_tools._open_call(state, event)
        if call is None or call.tool is None:
            return rule(state, record, event)
        tool, call.tool = call.tool, restartable(call.tool)
        try:
            return rule(state, record, event)
        finally:
            call.tool = tool

    def restartable(tool: Any) -> Any:
        return type(tool)(**{name: getattr(tool, name) for name in tool.__slots__} | {"idempotent": True})

    rule = fold_decisions.DECISION_RULES[ToolDispatchStarted]
    rules = fold_decisions.DECISION_RULES
    with instead(decide_tools, "_may_restart", lambda call: True), instead(rules, ToolDispatchStarted, loose):  # type: ignore[arg-type]
        yield


@planted
def ids_from_content() -> Iterator[None]:
    """P10: two owners that decide the same write the same id."""
    decide = Writer.decide

    def named(self: Writer, number: int, state: Any, event: Any, phase: Any, now_ms: int) -> Any:
        before = self.new_id
        text = f"{state.run_id}/{state.last}/{event}"
        self.new_id = lambda: hashlib.sha256(text.encode()).hexdigest()[:16]
        try:
            return decide(self, number, state, event, phase, now_ms)
        finally:
            self.new_id = before

    with instead(Writer, "decide", named):
        yield


@planted
def keep_ahead_after_a_void() -> Iterator[None]:
    """P11: what was built on a void decision is still waited for."""
    with instead(Run, "drop_ahead", lambda self: None):
        yield


@planted
def lost_appends_unnoticed() -> Iterator[None]:
    """A delivery error is logged and that is all."""
    with instead(Executor, "on_append_failed", lambda self, number, run_id, reason: None):
        yield


@planted
def facts_not_sent_again() -> Iterator[None]:
    """A reply or a report that was lost stays lost."""
    with instead(Writer, "send_again", lambda self, number, run_id: None):
        yield


@planted
def message_taken_twice() -> Iterator[None]:
    """A message stays in the mailbox when a model call takes it."""

    def loose(state: Any, wanted: list[str]) -> Any:
        there = {message.command_id: message for message in state.mailbox}
        return [there[name] for name in wanted] if all(name in there for name in wanted) else None

    with instead(fold_decisions, "_messages", loose):
        yield


@planted
def finished_ids_forgotten() -> Iterator[None]:
    """P03: a repeated request of a run that has ended starts it again."""
    met = Executor._met

    def forgetful(self: Executor, owned: Partition, record: Any) -> Any:
        owned.finished.clear()
        return met(self, owned, record)

    with instead(Executor, "_met", forgetful):
        yield


@planted
def early_cancel_dropped() -> Iterator[None]:
    """P17: a cancel before its RunRequested is for nobody."""
    with instead(loop, "EARLY_FACTS", frozenset({"MessageReceived", "CloseRequested"})):
        yield


@planted
def supersede_at_every_decide() -> Iterator[None]:
    """P22: a model call of another process is never waited for."""
    attempt = decide_model._decide_attempt

    def impatient(state: Any, call: Any, situation: Any) -> Any:
        if call.failed is None and not situation.is_ours(call.id):
            return decide_model._start_call(state, turn=call.turn, attempt=call.attempt + 1)
        return attempt(state, call, situation)

    with instead(decide_model, "_decide_attempt", impatient):
        yield


@planted
def start_what_another_dispatched() -> Iterator[None]:
    """Whoever reads a dispatch back starts it."""
    came_back = Executor._came_back

    def eager(self: Executor, owned: Any, run: Run, record: Any) -> None:
        if isinstance(record.body, ToolDispatchStarted):
            run.ours.add(record.event_id)
        came_back(self, owned, run, record)

    with instead(Executor, "_came_back", eager):
        yield


@planted
def start_after_takeover() -> Iterator[None]:
    """What is pending when a partition is taken over is started at once."""
    advance = Executor._advance

    def eager(self: Executor, run: Run) -> None:
        run.to_start += [
            call.dispatches[-1] for call in pending_tools(run.state) if call.dispatches[-1] not in run.tools
        ]
        advance(self, run)

    with instead(Executor, "_advance", eager):
        yield


@planted
def reply_to_a_superseded_call_counts() -> Iterator[None]:
    """Any reply is the reply."""
    take = fold_facts.FACT_RULES[ModelReplied]

    def loose(state: Any, record: Any, event: Any) -> None:
        if state.call is not None and state.reply is None and event.model_call not in state.replied:
            state.call.id = event.model_call
        take(state, record, event)

    with instead(fold_facts.FACT_RULES, ModelReplied, loose):  # type: ignore[arg-type]
        yield


@planted
def advance_with_open_calls() -> Iterator[None]:
    """One report is enough to go on."""

    def loose(state: Any, record: Any, event: TurnAdvanced) -> bool:
        reply = state.reply
        if reply is None or reply.model_call != event.model_call:
            return False
        fold_decisions._close_turn(state, reply, record.time_ms)
        state.phase = Phase.ADVANCING_TURN
        return True

    def hasty(state: Any, situation: Any, catalog: Any) -> Any:
        if state.reply.calls and any(call.outcome for call in state.reply.calls):
            return decide_tools._advance(state, state.reply)
        return tools(state, situation, catalog)

    tools = decide_tools.decide_tools
    from runfold.core import decide as deciding

    rules = fold_decisions.DECISION_RULES
    with instead(rules, TurnAdvanced, loose), instead(deciding, "decide_tools", hasty):  # type: ignore[arg-type]
        yield


@planted
def cancel_ignored_by_dispatch() -> Iterator[None]:
    """P02: a cancel is heard at the next decision only: what is pending is started."""

    def loose(state: Any) -> Any:
        cancel, state.cancel = state.cancel, None
        try:
            return pending_tools(state)
        finally:
            state.cancel = cancel

    rule = fold_decisions.DECISION_RULES[ToolDispatchStarted]

    def uncancelled(state: Any, record: Any, event: Any) -> bool:
        cancel, state.cancel = state.cancel, None
        try:
            return rule(state, record, event)
        finally:
            state.cancel = cancel

    rules = fold_decisions.DECISION_RULES
    with instead(effects, "pending_tools", loose), instead(rules, ToolDispatchStarted, uncancelled):  # type: ignore[arg-type]
        yield


@planted
def repeated_request_looks_fresh() -> Iterator[None]:
    """P04: a request read after the mark is a beginning, though its run ended before."""
    with instead(restore, "_ended_before", lambda run: None):
        yield


@planted
def completion_under_a_new_id() -> Iterator[None]:
    """Readers cannot drop what is published again."""
    numbers = itertools.count()
    with instead(outward, "completion_id", lambda state: f"completed-{next(numbers)}"):
        yield


# ---- people, claims and children


@planted
def start_before_the_claim_is_read_back() -> Iterator[None]:
    """Whoever claims starts, without having seen that nobody else did."""
    claim = Claims._claim

    def eager(self: Claims, run: Run, call: Any, tools: Any, now_ms: int) -> None:
        claim(self, run, call, tools, now_ms)
        call.claim = run.claims[call.dispatch]
        run.tools.add(call.dispatch)
        tools.start(claims._start(run, call), lambda report: None)

    with instead(Claims, "_claim", eager):
        yield


@planted
def the_last_claim_wins() -> Iterator[None]:
    """A second process of the same dispatch takes it over."""
    take = fold_facts.FACT_RULES[ToolClaimed]

    def loose(state: Any, record: Any, event: Any) -> None:
        for call in state.reply.calls if state.reply is not None else ():
            if event.dispatch in call.dispatches:
                call.claim = ""
        take(state, record, event)

    with instead(fold_facts.FACT_RULES, ToolClaimed, loose):  # type: ignore[arg-type]
        yield


@planted
def adopt_whatever_is_asked_for() -> Iterator[None]:
    """A call that another process claimed is started again instead of being looked for."""

    def start_again(self: Any, start: Any, process: str, done: Any) -> bool:
        self.start(start, done)
        return True

    with instead(SimulatedProcesses, "adopt", start_again):
        yield


@planted
def an_approval_of_other_arguments_counts() -> Iterator[None]:
    """What was shown is not compared with what will run."""
    take = fold_facts.FACT_RULES[ApprovalDecided]

    def loose(state: Any, record: Any, event: Any) -> None:
        for call in state.reply.calls if state.reply is not None else ():
            if call.approval == event.approval:
                event = replace(event, arguments_sha256=call.arguments_sha256)
        take(state, record, event)

    with instead(fold_facts.FACT_RULES, ApprovalDecided, loose):  # type: ignore[arg-type]
        yield


@planted
def the_last_word_about_an_approval_counts() -> Iterator[None]:
    """A second person's no becomes a yes."""
    take = fold_facts.FACT_RULES[ApprovalDecided]

    def loose(state: Any, record: Any, event: Any) -> None:
        for call in state.reply.calls if state.reply is not None else ():
            if call.approval == event.approval and event.approved:
                call.decision = ""
        take(state, record, event)

    with instead(fold_facts.FACT_RULES, ApprovalDecided, loose):  # type: ignore[arg-type]
        yield


@planted
def an_expiry_takes_a_yes_back() -> Iterator[None]:
    """Expired, though a person's word stands before it."""
    rule = fold_decisions.DECISION_RULES[ToolSettled]

    def loose(state: Any, record: Any, event: Any) -> bool:
        for call in state.reply.calls if event.outcome == "expired" and state.reply is not None else ():
            if call.position == event.position:
                call.decision = ""
        return rule(state, record, event)

    with instead(fold_decisions.DECISION_RULES, ToolSettled, loose):  # type: ignore[arg-type]
        yield


@planted
def a_later_answer_replaces_the_first() -> Iterator[None]:
    """Two people answer one question."""
    take = fold_facts.FACT_RULES[QuestionAnswered]

    def loose(state: Any, record: Any, event: Any) -> None:
        take(state, record, event)
        if state.reply is not None and state.reply.model_call == event.model_call:
            call = state.reply.calls[event.position]
            if call.outcome == "succeeded":
                call.output = event.text

    with instead(fold_facts.FACT_RULES, QuestionAnswered, loose):  # type: ignore[arg-type]
        yield


@planted
def children_are_forgotten_at_the_end() -> Iterator[None]:
    """The parent is cancelled, and nobody tells its children."""
    with instead(outward, "unwanted_children", lambda state: []):
        yield


@planted
def a_paused_run_goes_on() -> Iterator[None]:
    """A model call behind a pause counts."""
    rule = fold_decisions.DECISION_RULES[ModelCallStarted]

    def loose(state: Any, record: Any, event: Any) -> bool:
        paused, state.paused_since_ms = state.paused_since_ms, -1
        try:
            return rule(state, record, event)
        finally:
            state.paused_since_ms = paused

    with instead(fold_decisions.DECISION_RULES, ModelCallStarted, loose):  # type: ignore[arg-type]
        yield


@planted
def a_lost_workspace_is_not_noticed() -> Iterator[None]:
    """The next owner works in an empty folder."""

    def here(self: Any, run_id: str, sandbox: str) -> bool:
        return True

    with instead(SimulatedProcesses, "has_workspace", here):
        yield
