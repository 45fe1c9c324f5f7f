"""A run's transcript with what surrounds it: call and result in one row, phases with their times, late reports. Pure.

Made by reading the run's events again: what is needed for telling is not kept of every run.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from runfold.core.fold import EFFECTIVE, FACT, Taken
from runfold.core.state import ToolCall
from runfold.core.transcript import Reply, Results, UserMessage
from runfold.core.waits import status_of
from runfold.events.envelope import Record
from runfold.events.types import (
    ApprovalDecided,
    ChildCompleted,
    Item,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    QuestionAnswered,
    RunRequested,
    ToolDispatchStarted,
    ToolReported,
    ToolSettled,
)
from runfold.gateway.models import AsOf, CallRow, Entry, LateReport, PhaseSeen, Started, Transcript
from runfold.gateway.tracked import Place, Tracked
from runfold.gateway.views import children_of, waits_for


@dataclass(slots=True)
class Row:
    """A call, as it is told so far."""

    call: ToolCall
    closed_by: str = ""
    closed_at_ms: int = 0
    output_bytes: int = 0
    decided_by: str = ""
    starts: list[Started] = field(default_factory=list)
    late: list[LateReport] = field(default_factory=list)


@dataclass(slots=True)
class Told:
    """An entry of the transcript, and where it came from."""

    entry: UserMessage | Reply
    at_ms: int
    offset: int
    sender: str = ""
    replied: ModelReplied | None = None


@dataclass(slots=True)
class Story:
    """`take` follows `Tracked.take`, record by record."""

    tracked: Tracked
    entries: list[Told] = field(default_factory=list)
    phases: list[PhaseSeen] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    rows: dict[Place, Row] = field(default_factory=dict)
    seen: int = 0  # entries of the state's transcript
    messages: dict[str, MessageReceived] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)  # messages that stand in the transcript

    def take(self, record: Record, taken: Taken | None) -> None:
        state, event = self.tracked.state, record.body
        if taken not in (FACT, EFFECTIVE):
            return
        phase = str(state.phase)
        if state.last and (not self.phases or (self.phases[-1].phase, self.phases[-1].turn) != (phase, state.turn)):
            self.phases.append(PhaseSeen(phase=phase, turn=state.turn, at_ms=record.time_ms))
        if isinstance(event, MessageReceived):
            self.messages.setdefault(event.command_id, event)
        elif isinstance(event, ModelFailed):
            self.failures.append(f"{event.kind}: {event.message}")
        self._take_entries(record)
        self._take_calls(record)

    def _take_entries(self, record: Record) -> None:
        transcript = self.tracked.state.transcript
        for entry in transcript[self.seen :]:
            if isinstance(entry, UserMessage):
                self.entries.append(Told(entry, record.time_ms, record.offset, self._sender_of(entry, record)))
            elif isinstance(entry, Reply):
                replied = record.body if isinstance(record.body, ModelReplied) else None
                self.entries.append(Told(entry, record.time_ms, record.offset, replied=replied))
                self._keep_calls(entry.model_call)
            else:
                self._keep_results(entry)
        self.seen = len(transcript)

    def _sender_of(self, entry: UserMessage, record: Record) -> str:
        if isinstance(record.body, RunRequested):
            return "task"
        for command_id, message in self.messages.items():
            same = (message.text, message.parts, message.ref) == (entry.text, entry.parts, entry.ref)
            if same and command_id not in self.told:
                self.told.add(command_id)
                return message.sender
        return "runfold"

    def _keep_calls(self, model_call: str) -> None:
        reply = self.tracked.state.reply
        if reply is not None and reply.model_call == model_call:
            for call in reply.calls:
                self.rows[model_call, call.position] = Row(call)

    def _keep_results(self, results: Results) -> None:
        """Calls that closed before the checkpoint from which the run is known."""
        for result in results.results:
            place = results.model_call, result.position
            if place not in self.rows:
                call = ToolCall(
                    position=result.position,
                    name=result.name,
                    arguments="",
                    arguments_sha256="",
                    problem="",
                    tool=None,
                    outcome=result.outcome,
                    output=result.output,
                )
                self.rows[place] = Row(call)

    def _take_calls(self, record: Record) -> None:
        event = record.body
        match event:
            case ToolDispatchStarted():
                row = self.rows.get((event.model_call, event.position))
                if row is not None:
                    started = Started(dispatch=record.event_id, attempt=event.attempt, at_ms=record.time_ms)
                    row.starts.append(started)
            case ToolReported():
                self._take_report(record, event)
            case ToolSettled():
                self._closed((event.model_call, event.position), record, "runfold")
            case QuestionAnswered():
                self._closed((event.model_call, event.position), record, event.sender or "somebody")
            case ChildCompleted():
                for place, row in self.rows.items():
                    if row.call.child == event.child:
                        self._closed(place, record, event.child)
            case ApprovalDecided():
                note = self.tracked.approvals.get(event.approval)
                row = self.rows.get(note.place) if note is not None else None
                if row is not None and note is not None:
                    row.decided_by = note.by

    def _take_report(self, record: Record, event: ToolReported) -> None:
        place = event.model_call, event.position
        row = self.rows.get(place)
        if row is None:
            return
        if record.event_id in self.tracked.state.late:
            late = LateReport(
                dispatch=event.dispatch,
                source=event.source,
                outcome=event.outcome,
                output=event.output,
                at_ms=record.time_ms,
            )
            row.late.append(late)
        elif not row.closed_at_ms:
            row.output_bytes = event.output_bytes
            self._closed(place, record, "tool")

    def _closed(self, place: Place, record: Record, by: str) -> None:
        row = self.rows.get(place)
        if row is not None and row.call.outcome and not row.closed_at_ms:
            row.closed_by, row.closed_at_ms = by, record.time_ms

    # ---- told

    def transcript(self, position: int) -> Transcript:
        tracked = self.tracked
        return Transcript(
            run_id=tracked.run_id,
            status=status_of(tracked.state),
            entries=[self._entry(told) for told in self.entries],
            phases=self.phases,
            failures=self.failures,
            children=children_of(tracked),
            as_of=AsOf(partition=tracked.partition, offset=position),
        )

    def _entry(self, told: Told) -> Entry:
        entry = told.entry
        if isinstance(entry, UserMessage):
            return Entry(
                kind="message",
                at_ms=told.at_ms,
                offset=told.offset,
                text=entry.text,
                parts=_parts(entry.parts),
                blob=entry.ref.sha256 if entry.ref is not None else None,
                sender=told.sender,
            )
        places = [(entry.model_call, position) for position in range(sum(i.kind == "call" for i in entry.items))]
        return Entry(
            kind="reply",
            at_ms=told.at_ms,
            offset=told.offset,
            text=_joined(entry.items, "text"),
            model_call=entry.model_call,
            turn=entry.turn,
            reasoning=_joined(entry.items, "reasoning"),
            refusal=_joined(entry.items, "refusal"),
            model=told.replied.model if told.replied is not None else "",
            finish_reason=told.replied.finish_reason if told.replied is not None else "",
            calls=[_row(self.rows[place]) for place in places if place in self.rows],
        )


def _joined(items: list[Item], kind: str) -> str:
    return "".join(item.text for item in items if item.kind == kind)


def _parts(text: str | None) -> list[dict[str, Any]] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # anybody may have appended it
        return None
    return found if isinstance(found, list) and all(isinstance(part, dict) for part in found) else None


def _row(row: Row) -> CallRow:
    call = row.call
    ref = call.output_ref
    return CallRow(
        position=call.position,
        tool=call.name,
        arguments=call.arguments,
        outcome=call.outcome or None,
        output=call.output if call.outcome else None,
        output_bytes=row.output_bytes if ref is not None else None,
        output_sha256=ref.sha256 if ref is not None else None,
        closed_by=row.closed_by or None,
        closed_at_ms=row.closed_at_ms or None,
        waits_for=None if call.outcome else waits_for(call),
        starts=row.starts,
        approval=call.approval or None,
        approved=call.decision == "approved" if call.decision else None,
        decided_by=row.decided_by or None,
        child=call.child or None,
        late_reports=row.late,
    )
