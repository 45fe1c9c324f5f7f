"""An independent reading of the log: acceptance, claims and closings from headers and a few bodies.

It shares no rule with `runfold.core`; a rule that is wrong there must not be wrong here in the same way.
"""

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from runfold.events.codec import Codec, Undecodable
from runfold.events.envelope import NotAnEvent, Record, read_envelope
from runfold.ports import Delivery

CODEC = Codec()


@dataclass
class Closing:
    offset: int
    outcome: str
    output: str


@dataclass
class Dispatch:
    offset: int
    key: tuple[str, int]  # model call, position


@dataclass
class RunView:
    """One run as the log shows it."""

    run_id: str
    partition: int
    records: list[Record] = field(default_factory=list)
    requested_at: int = -1  # offset
    task: Any = None
    last: str = ""
    revision: int = 0
    phase: str = ""
    accepted: dict[str, Record] = field(default_factory=dict)
    model_calls: list[str] = field(default_factory=list)  # accepted, and with an effect
    open_reply: str = ""
    taken: set[str] = field(default_factory=set)  # messages
    replies: dict[str, Record] = field(default_factory=dict)  # first of each model call, if it counted at its place
    outcomes: set[str] = field(default_factory=set)  # model calls with an outcome in the log
    dispatches: dict[str, Dispatch] = field(default_factory=dict)  # accepted
    tools: dict[tuple[str, int], str] = field(default_factory=dict)  # call: its tool
    reported: set[str] = field(default_factory=set)  # dispatches with a report in the log
    closings: dict[tuple[str, int], Closing] = field(default_factory=dict)  # the first
    claims: dict[str, str] = field(default_factory=dict)  # dispatch: nonce of the first claim
    approvals: dict[str, tuple[str, int]] = field(default_factory=dict)  # accepted ApprovalRequired: its call
    decided: dict[tuple[str, int], bool] = field(default_factory=dict)  # the first word about a call
    children: dict[str, tuple[str, int]] = field(default_factory=dict)  # task id: the call that asked for it
    replays: dict[str, Dispatch] = field(default_factory=dict)  # accepted ReplayStarted
    edits: list[tuple[str, int]] = field(default_factory=list)  # calls in the workspace, as they were closed
    is_partly_restored: bool = False
    is_paused: bool = False
    cancelled_at: int = -1
    closed_at: int = -1
    messages: dict[str, tuple[int, str]] = field(default_factory=dict)
    finishes: dict[str, Record] = field(default_factory=dict)
    is_reported: bool = False
    parked: Record | None = None
    skip_asked: bool = False
    unparks: int = 0

    def take(self, record: Record) -> None:
        self.records.append(record)
        body, name = record.body, record.type
        if record.follows is not None:
            if self.last and record.follows == self.last:
                self.last = record.event_id
                self.revision += 1
                self.phase = record.phase
                self.accepted[record.event_id] = record
                self._decided(record, name, body)
        elif body is not None:
            self._happened(record, name, body)

    def _decided(self, record: Record, name: str, body: Any) -> None:
        if name == "ModelCallStarted" and body is not None:
            waiting = set(self.messages) - self.taken
            if (
                self.cancelled_at < 0
                and not self.is_paused
                and not self.open_reply
                and waiting.issuperset(body.messages)
            ):
                self.model_calls.append(record.event_id)
                self.taken.update(body.messages)
        elif name == "TurnAdvanced" and body.model_call == self.open_reply:
            self.open_reply = ""
        elif name == "ApprovalRequired":
            self.approvals[record.event_id] = (body.model_call, body.position)
        elif name == "ToolDispatchStarted" and not self.is_paused:
            key = (body.model_call, body.position)
            self.dispatches[record.event_id] = Dispatch(record.offset, key)
            self.tools[key] = body.tool
            identity = f"{self.run_id}\0{body.model_call}\0{body.position}"
            self.children[f"{self.run_id[:80]}.{sha256(identity.encode()).hexdigest()[:16]}"] = key
        elif name == "ReplayStarted":
            self.replays[record.event_id] = Dispatch(record.offset, (body.model_call, body.position))
        elif name == "SandboxReady":
            self.is_partly_restored = self.is_partly_restored or "then it stopped" in body.message
        elif name == "ToolSettled" and body.model_call in self.replies:
            if body.outcome == "expired" and (body.model_call, body.position) in self.decided:
                return  # a person's word stands before it
            self._close(body, record.offset, body.outcome, body.message)
        elif name == "RunFinished":
            self.finishes[record.event_id] = record
        elif name == "TaskReported":
            self.is_reported = True
        elif name == "RunParked":
            self.parked = self.parked or record
        elif name == "RunUnparked":
            self.unparks += self.parked is not None
            self.parked = None

    def _happened(self, record: Record, name: str, body: Any) -> None:
        if name == "RunRequested" and not self.last:
            self.last, self.requested_at, self.task = record.event_id, record.offset, body
        elif name in ("ModelReplied", "ModelFailed"):
            is_first = body.model_call not in self.outcomes
            self.outcomes.add(body.model_call)
            if is_first and name == "ModelReplied" and self.model_calls and self.model_calls[-1] == body.model_call:
                self.replies[body.model_call] = record
                self.open_reply = body.model_call
        elif name == "ToolReported":
            self.reported.add(body.dispatch)
            dispatch = self.dispatches.get(body.dispatch)
            is_fenced = body.nonce and self.claims.get(body.dispatch, body.nonce) != body.nonce
            if dispatch is not None and dispatch.key == (body.model_call, body.position) and not is_fenced:
                self._close(body, record.offset, body.outcome, body.output)
        elif name == "ToolClaimed":
            self._claimed(body)
        elif name == "ApprovalDecided" and body.approval in self.approvals and body.arguments_sha256 != "other":
            self.decided.setdefault(self.approvals[body.approval], body.approved)
        elif name == "QuestionAnswered" and (body.model_call, body.position) in {
            d.key for d in self.dispatches.values()
        }:
            self._close(body, record.offset, "succeeded", body.text)
        elif name == "ChildCompleted" and body.child in self.children:
            self._child_ended(body, record.offset)
        elif name in ("PauseRequested", "ResumeRequested"):
            self.is_paused = name == "PauseRequested"
        elif name == "CancelRequested" and self.cancelled_at < 0:
            self.cancelled_at = record.offset
        elif name == "CloseRequested" and self.closed_at < 0:
            self.closed_at = record.offset
        elif name == "MessageReceived":
            self.messages.setdefault(body.command_id, (record.offset, body.text))

    def _child_ended(self, body: Any, offset: int) -> None:
        key = self.children[body.child]
        if body.status == "completed":
            closing = Closing(offset, "succeeded", body.result or "It answered with nothing.")
        else:
            said = f"The task ended as {body.status}: {body.reason or body.kind}. {body.result or ''}"
            closing = Closing(offset, "failed", said.strip())
        self.closings.setdefault(key, closing)

    def _claimed(self, body: Any) -> None:
        if body.dispatch in self.replays and self.cancelled_at < 0:
            self.claims.setdefault(body.dispatch, body.nonce)
        dispatch = self.dispatches.get(body.dispatch)
        if dispatch is not None and dispatch.key not in self.closings and self.cancelled_at < 0:
            self.claims.setdefault(body.dispatch, body.nonce)

    def _close(self, body: Any, offset: int, outcome: str, output: str) -> None:
        key = (body.model_call, body.position)
        if key not in self.closings:
            self.closings[key] = Closing(offset, outcome, output)
            if self.tools.get(key) == "edit":
                self.edits.append(key)


class LogReader:
    """All partitions, read as far as they go. Records are decoded once and shared with the folds that check states."""

    def __init__(self, partitions: int) -> None:
        self.records: list[list[Record | None]] = [[] for _ in range(partitions)]
        self.stamps: list[int] = [0] * partitions
        self.runs: dict[str, RunView] = {}

    def read(self, number: int, deliveries: list[Delivery]) -> None:
        known = self.records[number]
        for delivery in deliveries[len(known) :]:
            record = self._opened(delivery)
            known.append(record)
            if record is not None and record.run_id:
                run = self.runs.get(record.run_id)
                if run is None:
                    run = self.runs[record.run_id] = RunView(record.run_id, number)
                run.take(record)

    def _opened(self, delivery: Delivery) -> Record | None:
        number = delivery.partition
        self.stamps[number] = max(self.stamps[number], delivery.time_ms)
        try:
            record = read_envelope(
                number, delivery.offset, self.stamps[number], delivery.key, delivery.value, delivery.headers
            )
        except NotAnEvent:
            return None
        try:
            body = CODEC.decode(record.value)
            record.body = body if type(body).__name__ == record.type else None
        except Undecodable:
            record.body = None
        return record
