"""Runs told as stories: each step is one record, built and folded; ids and times need no thought.

    story = calling()                        # requested, context loaded, the model is called
    story.replies(call("read"), call("save"))
    assert names(story.goes_on()) == ["ToolDispatchStarted", "ToolDispatchStarted"]

`goes_on` lets the core decide until it has nothing to say, and checks on the way what must hold for any history: every
step is effective on the state it was decided on, and deciding again decides nothing.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from runfold.core.decide import decide
from runfold.core.fold import EFFECTIVE, Taken, take
from runfold.core.state import RunState, copied
from runfold.core.steps import Decided, Situation
from runfold.events.envelope import Record
from runfold.events.types import (
    DECISIONS,
    ApprovalDecided,
    CancelRequested,
    ChildCompleted,
    CloseRequested,
    ContextLoaded,
    Event,
    Item,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    PauseRequested,
    QuestionAnswered,
    ResumeRequested,
    RunRequested,
    SandboxReplaced,
    ToolClaimed,
    ToolDispatchStarted,
    ToolReported,
    ToolSettled,
    ToolSpec,
    Totals,
    Usage,
)

BEGAN_MS = 1_000_000
SESSION_MS = 6_000
ROUNDS_MAX = 50


def tool(name: str, **more: Any) -> ToolSpec:
    given = {"tool_class": "inline", "time_limit_ms": 0, "changes_state": False, "parameters": "{}", "description": ""}
    return ToolSpec(name=name, **{**given, **more})


TOOLS = [
    tool("read"),
    tool("save", changes_state=True),
    tool("fetch", idempotent=True),
    tool("wait", resumable=True, time_limit_ms=500_000),
    tool("quick", time_limit_ms=5_000),
    tool("pay", changes_state=True, approval="a > 10", approval_reason="it costs money"),
    tool("erase", approval="always"),
    tool("ask", waits_for="person"),
    tool("sleep", waits_for="time"),
    tool("delegate", waits_for="child"),
    tool("run", tool_class="process", changes_state=True, workspace=True),
    tool("elsewhere", tool_class="external"),
]


class Offers:
    """A deployment with one agent. Arguments called `bad` break every schema."""

    def context(self, task: RunRequested) -> ContextLoaded | str:
        if task.agent != "agent":
            return f"there is no agent {task.agent!r}"
        return ContextLoaded(
            agent="agent", version="1", model="m", instructions="be brief", tools=TOOLS, limits=dict(task.limits)
        )

    def argument_problem(self, tool: ToolSpec, arguments: dict[str, Any]) -> str | None:
        return "'bad' is not allowed" if "bad" in arguments else None


def text(said: str) -> Item:
    return Item(kind="text", text=said)


def call(name: str, arguments: str = "{}") -> Item:
    return Item(kind="call", name=name, arguments=arguments)


def sha(arguments: str = "{}") -> str:
    return hashlib.sha256(arguments.encode()).hexdigest()


def names(events: Iterable[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def only(events: Iterable[Event], kind: type) -> Any:
    """The one event of this type."""
    found = [event for event in events if type(event) is kind]
    assert len(found) == 1, f"{len(found)} of {kind.__name__} in {names(events)}"
    return found[0]


class Story:
    """One run: its records so far, their fold, and the time."""

    def __init__(self, run_id: str = "run") -> None:
        self.run_id = run_id
        self.state = RunState(run_id=run_id)
        self.records: list[Record] = []
        self.now_ms = BEGAN_MS
        self.assigned_at_ms = 0
        self.ours: set[str] = set()
        self.completion = ""
        self.workspace_is_here = True

    # ---- records

    def record(self, event: Event, *, follows: str | None = None, phase: str = "", name: str = "") -> Record:
        """The next record of the log: a decision follows the last accepted one unless told otherwise."""
        number = len(self.records)
        is_decision = isinstance(event, DECISIONS)
        return Record(
            partition=0,
            offset=number,
            time_ms=self.now_ms,
            run_id=self.run_id,
            event_id=name or f"e{number}",
            type=type(event).__name__,
            follows=(self.state.last if follows is None else follows) if is_decision else None,
            revision=self.state.revision + 1 if is_decision else 0,
            phase=phase,
            body=event,
        )

    def take(self, record: Record) -> Taken:
        self.records.append(record)
        return take(self.state, record)

    def add(self, event: Event, *, follows: str | None = None, phase: str = "", name: str = "") -> Taken:
        return self.take(self.record(event, follows=follows, phase=phase, name=name))

    def again(self, record: Record) -> Taken:
        """The same record, delivered a second time."""
        return self.take(replace(record, offset=len(self.records), time_ms=self.now_ms))

    # ---- time and owners

    def later(self, ms: int) -> "Story":
        self.now_ms += ms
        return self

    def changes_owner(self) -> "Story":
        self.assigned_at_ms = self.now_ms
        self.ours = set()
        return self

    def situation(self) -> Situation:
        return Situation(
            now_ms=self.now_ms,
            assigned_at_ms=self.assigned_at_ms,
            session_timeout_ms=SESSION_MS,
            is_ours=self.ours.__contains__,
            completion=self.completion,
            is_held=self.ours.__contains__,
            sandbox="" if self.workspace_is_here else f"host/new#{self.state.revision}",
        )

    # ---- deciding

    def decided(self) -> Decided:
        """What the core would append now. Asking changes nothing."""
        before = copied(self.state)
        decided = decide(self.state, self.situation(), Offers())
        before.digest, before.digested = self.state.digest, self.state.digested  # a memo
        assert self.state == before, "deciding changed the state"
        return decided

    def steps_once(self) -> list[Event]:
        """One answer of the core, folded step by step."""
        events: list[Event] = []
        for step in self.decided().steps:
            record = self.record(step.event, phase=step.phase)
            self.ours.add(record.event_id)
            assert self.take(record) is EFFECTIVE, f"{step.event} has no effect on the state that decided it"
            assert self.state.phase == step.phase, f"{step.event}: {self.state.phase}, its header says {step.phase}"
            events.append(step.event)
            self.workspace_is_here = self.workspace_is_here or isinstance(step.event, SandboxReplaced)
        return events

    def loses_its_workspace(self) -> "Story":
        """Another owner, who does not have it."""
        self.changes_owner()
        self.workspace_is_here = False
        return self

    def goes_on(self) -> list[Event]:
        """Decide and fold until nothing is to be decided."""
        events: list[Event] = []
        for _ in range(ROUNDS_MAX):
            steps = self.steps_once()
            if not steps:
                return events
            events += steps
        raise AssertionError(f"decides for ever: {names(events)[-6:]}")

    def wake_after_ms(self) -> int | None:
        """How long until the core wants to be asked again, if nothing is to be decided now."""
        decided = self.decided()
        assert not decided.steps, names(step.event for step in decided.steps)
        return None if decided.wake_at_ms is None else decided.wake_at_ms - self.now_ms

    # ---- facts, in the run's words

    def replies(self, *items: Item, finish: str = "", tokens: int = 10, to: str = "") -> Taken:
        said = "tool_calls" if any(item.kind == "call" for item in items) else "stop"
        return self.add(
            ModelReplied(
                model_call=to or self.model_call,
                items=list(items),
                finish_reason=finish or said,
                usage=Usage(input_tokens=tokens, output_tokens=0),
            )
        )

    def fails(self, kind: str = "transient", *, retryable: bool = True, retry_after_ms: int | None = None) -> Taken:
        failure = ModelFailed(
            model_call=self.model_call, kind=kind, message="no", retryable=retryable, retry_after_ms=retry_after_ms
        )
        return self.add(failure)

    def report(self, position: int, output: str = "ok", *, outcome: str = "succeeded", nonce: str = "") -> ToolReported:
        assert self.state.reply is not None
        return ToolReported(
            model_call=self.state.reply.model_call,
            position=position,
            dispatch=self.state.reply.calls[position].dispatches[-1],
            source="executor",
            nonce=nonce,
            outcome=outcome,
            output=output,
        )

    def reports(self, position: int, output: str = "ok", *, outcome: str = "succeeded") -> Taken:
        return self.add(self.report(position, output, outcome=outcome))

    def hears(self, command_id: str) -> Taken:
        return self.add(MessageReceived(command_id=command_id, text=f"message {command_id}"))

    def is_cancelled(self) -> Taken:
        return self.add(CancelRequested(command_id="cancel", reason="changed my mind"))

    def is_closed(self) -> Taken:
        return self.add(CloseRequested(command_id="close"))

    def decides(self, position: int, *, approved: bool, command_id: str = "", **other: Any) -> Taken:
        """A person's word about an approval that was asked for."""
        assert self.state.reply is not None
        asked = self.state.reply.calls[position]
        given = {
            "command_id": command_id or f"decision-{len(self.records)}",
            "approval": asked.approval,
            "arguments_sha256": asked.arguments_sha256,
            "approved": approved,
        }
        return self.add(ApprovalDecided(**{**given, **other}))

    def answers(self, position: int, text: str) -> Taken:
        assert self.state.reply is not None
        command_id = f"answer-{len(self.records)}"
        model_call = self.state.reply.model_call
        return self.add(QuestionAnswered(command_id=command_id, model_call=model_call, position=position, text=text))

    def child_ends(self, position: int, status: str = "completed", result: str | None = "done", **totals: int) -> Taken:
        assert self.state.reply is not None
        child = self.state.reply.calls[position].child
        return self.add(ChildCompleted(child=child, status=status, result=result, totals=Totals(**totals)))

    def claims(self, position: int, nonce: str, **other: Any) -> Taken:
        assert self.state.reply is not None
        reply = self.state.reply
        given = {
            "model_call": reply.model_call,
            "position": position,
            "dispatch": reply.calls[position].dispatches[-1],
            "nonce": nonce,
            "process": f"host/{nonce}",
        }
        return self.add(ToolClaimed(**{**given, **other}))

    def replays(self, output: str = "ok", *, outcome: str = "succeeded", nonce: str = "") -> Taken:
        """The repetition that is under way reports."""
        replay = self.state.replay
        assert replay is not None
        report = ToolReported(
            model_call=replay.model_call,
            position=replay.position,
            dispatch=replay.current,
            source="executor",
            nonce=nonce,
            outcome=outcome,
            output=output,
        )
        return self.add(report)

    def is_paused(self) -> Taken:
        return self.add(PauseRequested(command_id=f"pause-{len(self.records)}"))

    def is_resumed(self) -> Taken:
        return self.add(ResumeRequested(command_id=f"resume-{len(self.records)}"))

    # ---- decisions, for tests of the fold

    @property
    def model_call(self) -> str:
        assert self.state.call is not None
        return self.state.call.id

    def dispatch(self, position: int, **other: Any) -> ToolDispatchStarted:
        """A dispatch that is in order, unless told otherwise."""
        assert self.state.reply is not None
        given = {
            "model_call": self.state.reply.model_call,
            "position": position,
            "attempt": self.state.reply.calls[position].attempt + 1 if position < len(self.state.reply.calls) else 1,
            "arguments_sha256": sha(),
            "tool": "read",
            "tool_class": "inline",
            "time_limit_ms": 120_000,
            "idempotency_key": "key",
        }
        return ToolDispatchStarted(**{**given, **other})

    def settlement(self, position: int, outcome: str = "timed_out", **other: Any) -> ToolSettled:
        assert self.state.reply is not None
        given = {"model_call": self.state.reply.model_call, "position": position, "outcome": outcome, "message": "late"}
        return ToolSettled(**{**given, **other})


def content(state: RunState) -> RunState:
    """All of a state but its place in the chain and the memo of the digest; a copy, to compare with later."""
    plain = copied(state)
    plain.last, plain.revision, plain.digest, plain.digested = "", 0, "", 0
    return plain


def requested(**task: Any) -> Story:
    """A run that was asked for; nothing is decided yet."""
    story = Story()
    story.add(RunRequested(**{"task_id": "run", "agent": "agent", "input": "do it", **task}))
    return story


def calling(**task: Any) -> Story:
    """A run whose model is being called."""
    story = requested(**task)
    assert names(story.goes_on()) == ["ContextLoaded", "ModelCallStarted"]
    return story


def asked_for(*calls: Item, **task: Any) -> Story:
    """A run whose model asks for these tools; none is dispatched."""
    story = calling(**task)
    story.replies(*calls)
    return story


def dispatched(*calls: Item, **task: Any) -> Story:
    """A run whose tools run."""
    story = asked_for(*calls, **task)
    story.goes_on()
    return story


def answered(**task: Any) -> Story:
    """A run whose model has answered; its end is not decided."""
    story = calling(**task)
    story.replies(text("done"))
    return story


def finished(**task: Any) -> Story:
    """A run that has ended well, and is not reported."""
    story = answered(**task)
    story.goes_on()
    return story


def reported(**task: Any) -> Story:
    """A run that is over."""
    story = finished(**task)
    story.completion = "c1"
    story.goes_on()
    return story


def waiting(**task: Any) -> Story:
    """An interactive run that waits for the next message."""
    story = answered(interactive=True, **task)
    story.goes_on()
    return story
