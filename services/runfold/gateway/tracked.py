"""One run as the gateway follows it: the fold's state, and what people are told that the executor need not know.

What becomes of a command is judged where it stands in the log, from the state before and after it, and kept under its
command id. So every gateway gives the same answer to the same command, also one that was started after another died
between appending it and answering.
"""

from dataclasses import dataclass, field, replace

from runfold.core.fold import EFFECTIVE, FACT, Taken, leave_out, take
from runfold.core.pending import completion_of
from runfold.core.restore import rebuilt
from runfold.core.state import RunState, ToolCall
from runfold.core.waits import status_of
from runfold.events.envelope import Record
from runfold.events.types import (
    ApprovalDecided,
    ApprovalRequired,
    ChildCompleted,
    Event,
    QuestionAnswered,
    RunCheckpointed,
    RunUnparked,
    TaskCompleted,
    ToolDispatchStarted,
    ToolReported,
    ToolSettled,
)
from runfold.gateway.commands import Command, Judged, command_digest, command_key, mark_of

UNBASED_MAX = 10_000  # records of a run whose beginning is gone that wait for its checkpoint
Place = tuple[str, int]  # of a call: model call and position


@dataclass(slots=True)
class Approval:
    """One question to a person whether a call may start, and what came of it."""

    place: Place
    tool: str
    arguments_sha256: str
    decided: str = ""  # approved or rejected
    by: str = ""
    outcome: str = ""  # of the call, where it was settled without a person's decision


@dataclass(slots=True)
class Tracked:
    """`take` every record of the run, in the order of the log."""

    run_id: str
    partition: int
    first: int  # offset of its first record
    log_start: int = 0  # everything from here on was read
    skipped: frozenset[int] = frozenset()  # offsets that an operator chose to leave out
    last: int = -1  # offset of its last record
    last_ms: int = 0
    state: RunState = field(init=False)
    completion: TaskCompleted | None = None
    reported_at: int = -1  # offset of its TaskReported
    is_stale: bool = False  # must be folded anew, without what is skipped
    agent: str = ""
    model: str = ""
    commands: dict[str, Judged] = field(default_factory=dict)
    approvals: dict[str, Approval] = field(default_factory=dict)
    questions: dict[Place, str] = field(default_factory=dict)  # who answered; empty: nobody yet
    external: dict[str, Place] = field(default_factory=dict)  # dispatches that somebody else reports
    children: dict[str, str] = field(default_factory=dict)  # task id to status
    unbased: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = RunState(run_id=self.run_id)

    @property
    def is_known(self) -> bool:
        """Was it asked for, as far as the log still tells?"""
        return bool(self.state.last)

    def take(self, record: Record) -> Taken | None:
        """Fold one record, its body opened. None: it stands outside of the run, as far as anybody can tell."""
        self.last, self.last_ms = record.offset, max(self.last_ms, record.time_ms)
        if record.offset in self.skipped:
            leave_out(self.state, record)
            return None
        if not self.state.last and (record.follows is not None or self.unbased):
            self._wait_for_checkpoint(record)
            return None
        event = record.body
        if isinstance(event, Command) and not (isinstance(event, ToolReported) and event.dispatch not in self.external):
            taken = self._judge(record, event)
        else:
            taken = take(self.state, record)
        if taken in (FACT, EFFECTIVE) and event is not None:
            self._note(record, event)
        if isinstance(event, RunUnparked) and taken is not Taken.VOID and not self.skipped.issuperset(event.skipped):
            self.skipped |= frozenset(event.skipped)
            self.is_stale = True
        return taken

    def slim(self) -> None:
        """Keep of an ended run what people ask about most; the rest is read again when somebody wants it."""
        state = self.state
        state.transcript.clear()
        state.replied.clear()
        state.reports.clear()
        state.context = None
        if state.task is not None:
            state.task = replace(state.task, input="", input_parts=None, definition=None, result_schema=None)

    # ---- a run whose beginning is no longer in the log

    def _wait_for_checkpoint(self, record: Record) -> None:
        if len(self.unbased) >= UNBASED_MAX:  # a checkpoint that needs none of these is still to come
            del self.unbased[: UNBASED_MAX // 2]
            self.log_start = max(self.log_start, self.unbased[0].offset)
        self.unbased.append(record)
        body = record.body
        if isinstance(body, RunCheckpointed) and body.part == body.parts:
            restored = rebuilt(self.run_id, self.unbased, self.log_start)
            if restored.is_carried:
                self.state = restored.state
                self.unbased.clear()
                context = self.state.context
                if context is not None:
                    self.agent, self.model = context.agent, context.model

    # ---- people

    def _judge(self, record: Record, event: Command) -> Taken:
        key = command_key(event)
        if key in self.commands:
            return take(self.state, record)  # the same command again: the first one counts
        refused = self.refusal(event)
        before = mark_of(self.state, event)
        taken = take(self.state, record)
        if not refused and mark_of(self.state, event) == before:
            refused = "it changed nothing: the run had moved on"
        if not refused:
            self._remember_who(event)
        self.commands[key] = Judged(
            digest=command_digest(event), offset=record.offset, refused=refused, status=status_of(self.state)
        )
        return taken

    def _remember_who(self, event: Command) -> None:
        if isinstance(event, ApprovalDecided):
            note = self.approvals[event.approval]
            note.decided, note.by = "approved" if event.approved else "rejected", event.sender
        elif isinstance(event, QuestionAnswered):
            self.questions[event.model_call, event.position] = event.sender or "somebody"

    def unfounded(self, event: Command) -> str:
        """Why this command names nothing of this run, so that it must not even be appended; empty if it does."""
        if isinstance(event, ApprovalDecided):
            note = self.approvals.get(event.approval)
            if note is None:
                return f"this run has no approval {event.approval!r}; GET /runs/{{id}} lists those that are open"
            if note.arguments_sha256 != event.arguments_sha256:
                return "arguments_sha256 is not that of the arguments that are shown: look at the call again"
        elif isinstance(event, QuestionAnswered):
            if (event.model_call, event.position) not in self.questions:
                return (
                    f"the call {event.model_call}/{event.position} asks no person; GET /runs/{{id}} lists those that do"
                )
        elif isinstance(event, ToolReported) and event.dispatch not in self.external:
            return f"this run has no dispatch {event.dispatch!r} of an external tool"
        return ""

    def refusal(self, event: Command) -> str:
        """Why this command would change nothing now, in words for its sender; empty if it would."""
        unfounded = self.unfounded(event)
        if unfounded:
            return unfounded
        said = ""
        if isinstance(event, ApprovalDecided):
            said = self._approval_refusal(self.approvals[event.approval])
        elif isinstance(event, QuestionAnswered):
            said = self._question_refusal(event)
        elif isinstance(event, ToolReported):
            said = self._report_refusal(event)
        return said or self._run_refusal(event)

    def _run_refusal(self, event: Command) -> str:
        state, kind = self.state, type(event).__name__
        if state.finished is not None:
            return f"the run has ended as {state.finished.status}"
        if kind == "ResumeRequested" and not state.is_paused:
            return "the run is not paused"
        if kind == "PauseRequested" and state.is_paused:
            return "the run is paused already"
        if kind == "CloseRequested" and state.closed:
            return "the run is closed already"
        if kind == "MessageReceived" and state.closed:
            return "the run is closed to messages"
        if state.cancel is not None and kind != "ResumeRequested":
            by = f" by {state.cancel.sender}" if state.cancel.sender else ""
            return f"the run is being cancelled{by}"
        if state.failure is not None:
            return f"the run is ending as failed: {state.failure.message}"
        return ""

    def _approval_refusal(self, note: Approval) -> str:
        if note.decided:
            return f"it was already {note.decided}" + (f" by {note.by}" if note.by else "")
        if note.outcome == "expired":
            return "nobody decided in time: the approval expired, and the call was not started"
        return f"the call was closed as {note.outcome}" if note.outcome else ""

    def _question_refusal(self, event: QuestionAnswered) -> str:
        by = self.questions[event.model_call, event.position]
        if by:
            return f"it was already answered by {by}"
        call = self.call_at(event.model_call, event.position)
        if call is None or call.outcome:
            return f"the question is closed{'' if call is None else f' as {call.outcome}'}"
        return ""

    def _report_refusal(self, event: ToolReported) -> str:
        call = self.call_at(*self.external[event.dispatch])
        if call is None or call.outcome:
            return (
                f"the call is closed{'' if call is None else f' as {call.outcome}'}; the report is kept as a late one"
            )
        return ""

    def call_at(self, model_call: str, position: int) -> ToolCall | None:
        """The call, while its turn goes on."""
        reply = self.state.reply
        if reply is None or reply.model_call != model_call or not 0 <= position < len(reply.calls):
            return None
        return reply.calls[position]

    # ---- what is remembered for people

    def _note(self, record: Record, event: Event) -> None:
        match event:
            case ApprovalRequired():
                call = self.call_at(event.model_call, event.position)
                place = event.model_call, event.position
                tool = call.name if call is not None else ""
                self.approvals[record.event_id] = Approval(place, tool, event.arguments_sha256)
            case ToolSettled():
                for note in self.approvals.values():
                    if note.place == (event.model_call, event.position) and not note.decided:
                        note.outcome = event.outcome
            case ToolDispatchStarted():
                self._note_dispatch(record, event)
            case ChildCompleted() if event.child in self.children:
                self.children[event.child] = event.status
        if self.state.context is not None and not self.agent:
            self.agent, self.model = self.state.context.agent, self.state.context.model
        if self.state.finished is not None and self.completion is None:
            self.completion = completion_of(self.state)
        if self.state.reported and self.reported_at < 0:
            self.reported_at = record.offset

    def _note_dispatch(self, record: Record, event: ToolDispatchStarted) -> None:
        place = event.model_call, event.position
        call = self.call_at(*place)
        if call is None:
            return
        if call.waits_for == "person":
            self.questions.setdefault(place, "")
        if call.child:
            self.children.setdefault(call.child, "asked for")
        if event.tool_class == "external" and not call.waits_for:
            self.external[record.event_id] = place
