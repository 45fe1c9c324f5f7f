"""What a run's executor remembers: the fold of its events. Values for deciding only, nothing for display.

A state is changed in place by `fold.py` and by nobody else. Copying it for every event (the usual way of a pure fold)
cost as much as everything else of a turn together (measured); `copied` makes the second one that deciding ahead needs.
Events and transcript entries inside are shared between copies and never change.
"""

from copy import copy
from dataclasses import dataclass, field

from runfold.core.limits import Limits
from runfold.core.phases import Phase
from runfold.core.transcript import Entry
from runfold.events.types import (
    BlobRef,
    CancelRequested,
    ContextLoaded,
    MessageReceived,
    ModelFailed,
    RunFailed,
    RunFinished,
    RunParked,
    RunRequested,
    ToolSpec,
    UnparkRequested,
)


@dataclass(slots=True, kw_only=True)
class ModelCall:
    """The last effective ModelCallStarted."""

    id: str
    turn: int
    attempt: int
    started_at_ms: int
    failed: ModelFailed | None = None
    failed_at_ms: int = 0


@dataclass(slots=True, kw_only=True)
class ToolCall:
    """One call of the effective reply. Its identity: run, model call, position."""

    position: int
    name: str
    arguments: str  # a JSON object as text: what a tool gets
    arguments_sha256: str
    problem: str  # what is wrong with the arguments as JSON; empty if nothing
    tool: ToolSpec | None  # None: the model invented it
    attempt: int = 0
    dispatches: tuple[str, ...] = ()  # event ids, the newest last
    dispatched_at_ms: int = 0
    time_limit_ms: int = 0
    approval: str = ""  # event id of its ApprovalRequired
    approval_at_ms: int = 0
    approval_ms: int = 0
    decision: str = ""  # of a person: approved or rejected
    decision_reason: str = ""
    claim: str = ""  # nonce of the process that may start the effect of the newest dispatch
    claimed_by: str = ""
    child: str = ""  # task id of the delegation
    child_tokens: int = 0  # its share of the budget
    child_tool_calls: int = 0
    outcome: str = ""  # set once: the call is closed
    output: str = ""
    output_ref: BlobRef | None = None

    @property
    def waits_for(self) -> str:
        """Whom an open call waits for: person, child or time (a tool that waits), approval; empty: a tool, or nobody."""
        if self.dispatches:
            return self.tool.waits_for if self.tool is not None else ""
        return "approval" if self.approval and not self.decision else ""


@dataclass(slots=True, kw_only=True)
class OpenReply:
    """The effective reply until its turn is advanced."""

    model_call: str
    turn: int
    finish_reason: str
    is_empty: bool
    is_refusal: bool
    calls: list[ToolCall]
    has_waits: bool = False  # some call may wait for a person or a child: then the turn's clock stands
    has_claims: bool = False  # some call's effect must be claimed before it starts


@dataclass(slots=True, kw_only=True)
class Replay:
    """A lost workspace on its way to being rebuilt."""

    calls: int  # to be repeated
    restored: int = 0
    problem: str = ""  # why it stops: the first difference or failure
    current: str = ""  # event id of the ReplayStarted that is under way
    model_call: str = ""  # of the call that is repeated
    position: int = 0
    started_at_ms: int = 0
    time_limit_ms: int = 0
    claim: str = ""
    claimed_by: str = ""


@dataclass(slots=True, kw_only=True)
class LateReport:
    """A report for a closed call that is still to be recorded as late."""

    model_call: str
    position: int
    dispatch: str
    report: str


def late_id(report: str) -> str:
    """The event id of the LateReportRecorded of this report: recorded by two owners, it is still one."""
    return f"late-{report}"


@dataclass(slots=True, kw_only=True)
class Halt:
    """An accepted decision that this version cannot fold: the run must be parked."""

    offset: int
    reason: str


@dataclass(slots=True, kw_only=True)
class Counters:
    """Running sums; `RunFinished.totals` is made of them."""

    model_calls: int = 0
    model_failures: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    tokens_estimated: bool = False
    children: int = 0
    sized_entries: int = 0  # of the transcript, whose characters are counted: only where a provider is silent
    sized_chars: int = 0
    active_ms: int = 0


@dataclass(slots=True, kw_only=True)
class RunState:
    run_id: str
    # the chain
    last: str = ""  # event id that the next decision must follow; empty: no base yet
    revision: int = 0
    phase: Phase = Phase.QUEUED
    # the task
    task: RunRequested | None = None
    requested_at_ms: int = 0
    traceparent: str = ""
    context: ContextLoaded | None = None
    limits: Limits = field(default_factory=Limits)
    # the conversation
    transcript: list[Entry] = field(default_factory=list)
    digest: str = ""  # of the instructions and the first `digested` entries: a memo of `prompt_digest`
    digested: int = 0
    mailbox: list[MessageReceived] = field(default_factory=list)
    turn: int = 0
    turn_started_at_ms: int = -1  # -1: not in a turn; moved forward by the time for which the clock stood
    clock_stands_since_ms: int = -1  # while paused, or while only people and children are waited for
    idle_since_ms: int = 0
    call: ModelCall | None = None
    reply: OpenReply | None = None
    answer: str = ""  # model call of the last effective reply, if it has no calls
    answer_is_refusal: bool = False
    answer_finish_reason: str = ""
    empty_replies: int = 0  # in a row
    cut_replies: int = 0  # in a row
    last_calls: tuple[str, ...] = ()  # of the last turn: names, arguments and outcomes
    same_calls: int = 0  # turns in a row that were like the one before
    is_over_limit: bool = False  # a call was settled as over a limit: the run ends after this turn
    last_turn: str = ""  # why this turn is the last: the limit that was reached
    # people
    cancel: CancelRequested | None = None
    closed: bool = False
    paused_since_ms: int = -1  # -1: not paused
    # the workspace
    sandbox: str = ""  # where it is, once a call has used it
    replay: Replay | None = None
    notes: list[str] = field(default_factory=list)  # what the model is to be told at the end of the turn
    # children
    open_children: set[str] = field(default_factory=set)  # delegated, not seen to end
    # identities of facts that were taken
    replied: set[str] = field(default_factory=set)  # model calls
    reports: set[str] = field(default_factory=set)  # dispatch/source/nonce
    commands: set[str] = field(default_factory=set)
    late: dict[str, LateReport] = field(default_factory=dict)  # by report, to be recorded
    # the end
    failure: RunFailed | None = None
    finished: RunFinished | None = None
    finished_id: str = ""  # event id of RunFinished
    finished_at_ms: int = 0
    reported: bool = False
    lost: str = ""
    # set aside
    halt: Halt | None = None
    parked: RunParked | None = None
    parked_at_ms: int = 0
    unpark: UnparkRequested | None = None
    skipped: tuple[int, ...] = ()  # offsets left out by a reader that was asked to; for RunUnparked
    counters: Counters = field(default_factory=Counters)

    @property
    def is_paused(self) -> bool:
        return self.paused_since_ms >= 0


def copied(state: RunState) -> RunState:
    """A second state that can go its own way; only what the fold changes in place is copied."""
    other = copy(state)
    other.transcript = state.transcript.copy()
    other.mailbox = state.mailbox.copy()
    other.call = copy(state.call)
    other.replied = state.replied.copy()
    other.reports = state.reports.copy()
    other.commands = state.commands.copy()
    other.replay = copy(state.replay)
    other.notes = state.notes.copy()
    other.open_children = state.open_children.copy()
    other.late = state.late.copy()
    other.counters = copy(state.counters)
    if state.reply is not None:
        other.reply = copy(state.reply)
        other.reply.calls = [copy(call) for call in state.reply.calls]
    return other
