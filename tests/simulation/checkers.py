"""What must hold in a simulated world after every step (design section 10). Each broken law has a name.

Two yardsticks: `reader.py`, which reads the log by itself, and the core's own fold of the whole log from its start,
against which every executor's state is held, however it came by that state.
"""

import itertools
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from runfold.core.decide import decide
from runfold.core.fold import leave_out, take
from runfold.core.state import RunState, copied
from runfold.core.steps import Situation
from runfold.core.transcript import Reply, Results, UserMessage, check_order, text_of
from runfold.events.envelope import Record
from runfold.events.types import ChildCompleted, TaskCancelled
from runfold.executor.mark import read_mark
from runfold.executor.partition import Partition
from runfold.ports import ModelRequest, ToolStart
from tests.simulation.actors import LIMITS, REPEATABLE
from tests.simulation.reader import CODEC, LogReader, RunView

if TYPE_CHECKING:
    from tests.simulation.world import Process, World

DECISION_BYTES_MAX = 1_500
UNCOMPARED = {"skipped", "digest", "digested"}  # of one reader only; a memo
TIMES = {
    "requested_at_ms",
    "turn_started_at_ms",
    "idle_since_ms",
    "finished_at_ms",
    "paused_since_ms",
    "parked_at_ms",
    "clock_stands_since_ms",
}
EARLY = frozenset({"CancelRequested", "PauseRequested", "ResumeRequested", "MessageReceived", "CloseRequested"})


class Broken(BaseException):
    """A law does not hold. Not an Exception: an executor sets a run aside for those, and goes on."""

    def __init__(self, law: str, what: str) -> None:
        super().__init__(f"{law}: {what}")
        self.law = law


@dataclass
class Whole:
    """The fold of a partition from its first record up to a position."""

    position: int = 0
    states: dict[str, RunState] = field(default_factory=dict)
    records: dict[str, list[Record]] = field(default_factory=dict)

    def take(self, record: Record | None) -> str:
        """One more record; answers its run, if it has one."""
        self.position += 1
        if record is None or not record.run_id:
            return ""
        run_id = record.run_id
        if run_id not in self.states:
            self.states[run_id] = RunState(run_id=run_id)
        self.records.setdefault(run_id, []).append(record)
        take(self.states[run_id], record)
        if record.type == "UnparkRequested":
            self.states[run_id] = without_skipped(run_id, self.records[run_id])
        return run_id


def without_skipped(run_id: str, records: list[Record]) -> RunState:
    """The whole fold of a run whose operator asked to skip what could not be folded."""
    skipped: set[int] = set()
    while True:
        state = RunState(run_id=run_id)
        for record in records:
            if record.offset in skipped:
                leave_out(state, record)
            else:
                take(state, record)
        asked_at = max((r.offset for r in records if r.body is state.unpark), default=-1)
        if state.unpark is None or state.unpark.mode != "skip" or state.halt is None or asked_at < state.halt.offset:
            return state
        skipped.add(state.halt.offset)


class Watch:
    """Sees every effect when it happens and everything else after every step."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.log = LogReader(len(world.kafka.partitions))
        self.stepped_back = False
        self.adopted = 0
        self.starts: Counter[tuple[str, str, int]] = Counter()
        self.requests: dict[str, ModelRequest] = {}
        self.completions_seen = 0
        self.completions: dict[str, str] = {}  # task: ce_id
        self.completed_at_ms: dict[str, int] = {}
        self.wholes: dict[tuple[str, int], Whole] = {}
        self.live: set[tuple[int, int, int]] = set()
        self.opened: dict[tuple[int, bytes], int] = {}  # partition and source: time of its last PartitionOpened
        self.calls: dict[str, tuple[Record, bytes]] = {}  # run: its last accepted ModelCallStarted, and whose
        self.checked: dict[int, int] = {}  # partition: offset up to which records were looked at

    # ---- the moment of an effect

    def model_asked(self, process: "Process", request: ModelRequest) -> None:
        self.read()
        problem = check_order(request.transcript)
        if problem is not None:
            raise Broken("history", f"{request.run_id}: {problem}")
        run = self.log.runs[request.run_id]
        self._check_results(run, request.transcript)
        said = [entry.text for entry in request.transcript if isinstance(entry, UserMessage)]
        texts = Counter(text for text in said if "workspace was lost" not in text)
        if texts and max(texts.values()) > 1:
            raise Broken("history", f"{request.run_id}: a message is in the request twice")
        self.requests[request.call] = request

    def _check_results(self, run: RunView, transcript: Any) -> None:
        for entry in transcript:
            if isinstance(entry, Results):
                for result in entry.results:
                    closing = run.closings.get((entry.model_call, result.position))
                    if closing is None or (closing.outcome, closing.output) != (result.outcome, result.output):
                        raise Broken("results", f"{run.run_id}: {result} is not how the log closed it: {closing}")

    def tool_started(self, process: "Process", start: ToolStart) -> None:
        self.read()
        run = self.log.runs[start.run_id]
        key = (start.model_call, start.position)
        dispatch = run.dispatches.get(start.dispatch) or run.replays.get(start.dispatch)
        where = f"{start.run_id} {key} {start.tool}"
        if dispatch is None or dispatch.key != key:
            raise Broken("start", f"{where}: its dispatch is not accepted in the log")
        reply = run.replies.get(start.model_call)
        if reply is None or reply.offset > dispatch.offset:
            raise Broken("start", f"{where}: dispatched for a reply that does not count")
        position = process.executor.ownership.partitions[run.partition].position
        closing = run.closings.get(key)
        if closing is not None and closing.offset < position and start.dispatch not in run.replays:
            raise Broken("start", f"{where}: closed before, at {closing.offset}")
        if 0 <= run.cancelled_at < position:
            raise Broken("start", f"{where}: the run was cancelled before, at {run.cancelled_at}")
        if start.nonce and run.claims.get(start.dispatch) != start.nonce:
            raise Broken("claim", f"{where}: started under {start.nonce}, claimed by {run.claims.get(start.dispatch)}")
        if start.tool == "pay" and run.decided.get(key) is not True:
            raise Broken("approval", f"{where}: nobody said yes")
        if start.dispatch in run.replays:
            return
        self.starts[start.run_id, *key] += 1
        if self.starts[start.run_id, *key] > 1 and start.tool not in REPEATABLE:
            raise Broken("twice", f"{where}: started a second time")

    def workspace_used(self, start: ToolStart, disk: list[tuple[str, int]]) -> None:
        """A call finds what the successful ones before it did, in order; or the model was told that it is not all there."""
        run = self.log.runs[start.run_id]
        if start.dispatch in run.replays or run.is_partly_restored:
            return
        wanted = [key for key in run.edits if run.closings[key].outcome == "succeeded"]
        found = [key for key in disk if key in wanted]
        if list(dict.fromkeys(found)) != wanted:
            raise Broken("workspace", f"{start.run_id}: {start.dispatch} finds {found} of {wanted}")

    def told(self, text: str) -> None:
        if "is set aside" in text or "cannot be restored" in text or "is not started" in text:
            raise Broken("set aside", text)

    # ---- after every step

    def read(self) -> None:
        for partition in self.world.kafka.partitions:
            if len(self.log.records[partition.number]) < partition.end:
                self.log.read(partition.number, partition.records)

    def after_step(self) -> None:
        self.read()
        for number, records in enumerate(self.log.records):
            if self.checked.get(number, 0) < len(records):
                self._check_sizes(records[self.checked.get(number, 0) :])
                self._check_superseding(records[self.checked.get(number, 0) :])
                self.checked[number] = len(records)
        log = self.world.kafka.completion_log
        for task_id, value, headers in log[self.completions_seen :]:
            self._check_completion(task_id, CODEC.decode(value), dict(headers)["ce_id"].decode())
        self.completions_seen = len(log)

    def _check_sizes(self, records: list[Record | None]) -> None:
        """The log grows linearly: no decision weighs more for a longer transcript."""
        for record in records:
            if record is not None and record.type in SMALL and len(record.value) > DECISION_BYTES_MAX:
                raise Broken("size", f"{record.run_id}: {record.type} has {len(record.value)} bytes")

    def _check_superseding(self, records: list[Record | None]) -> None:
        """The model call of another process is given up on taking over or at its time limit, and not before."""
        for record in records:
            if record is None or (record.run_id and record.event_id not in self.log.runs[record.run_id].accepted):
                continue
            source = dict(self.world.kafka.partitions[record.partition].records[record.offset].headers or ())[
                "ce_source"
            ]
            if record.type == "PartitionOpened":
                self.opened[record.partition, source] = record.time_ms
            elif record.type == "ModelCallStarted" and record.event_id in self.log.runs[record.run_id].model_calls:
                before, caller = self.calls.get(record.run_id, (None, source))
                self.calls[record.run_id] = (record, source)
                # By one's own clock one may give up in time; what was sent may land late.
                if before is not None and caller != source and self._is_impatient(before, record, source):
                    raise Broken("superseded", f"{record.run_id}: {before.event_id} was still waited for")

    def _is_impatient(self, before: Record, record: Record, source: bytes) -> bool:
        if self.stepped_back or before.event_id in self.log.runs[record.run_id].outcomes:
            return False
        is_taken_over = self.opened.get((record.partition, source), 0) >= before.time_ms
        return not is_taken_over and record.time_ms < before.time_ms + LIMITS.model_attempt_ms

    def _check_completion(self, task_id: str, completed: Any, event_id: str) -> None:
        run = self.log.runs[task_id]
        if self.completions.setdefault(task_id, event_id) != event_id:
            raise Broken("terminal", f"{task_id}: two completions, {self.completions[task_id]} and {event_id}")
        self.completed_at_ms.setdefault(task_id, self.world.clock.now_ms)
        finish = run.finishes.get(event_id.removeprefix("completed-"))
        if finish is None or finish.body.status != completed.status:  # type: ignore[union-attr]
            raise Broken("truth", f"{task_id}: completed as {completed.status}, the log says {finish}")
        was_cancelled = 0 <= run.cancelled_at < finish.offset
        if completed.status == "completed" and was_cancelled:
            raise Broken("truth", f"{task_id}: completed, but cancelled at {run.cancelled_at}")
        if completed.status == "cancelled" and not was_cancelled:
            raise Broken("truth", f"{task_id}: cancelled by nobody")
        if 0 <= run.cancelled_at < run.requested_at and completed.status not in ("cancelled", "rejected"):
            raise Broken("truth", f"{task_id}: cancelled before it began, ended as {completed.status}")
        if completed.status == "completed":
            reply = run.replies.get(str(finish.body.result_of))  # type: ignore[union-attr]
            if reply is None or text_of(reply.body.items) != completed.result:  # type: ignore[union-attr]
                raise Broken("truth", f"{task_id}: the result is not the reply's text")

    def executor_stepped(self, process: "Process") -> None:
        """Hold the executor's states against the fold of the whole log."""
        self.read()
        for number, partition in process.executor.ownership.partitions.items():
            if partition.restoring is None:
                self._compare(process, number, partition)

    def _compare(self, process: "Process", number: int, partition: Partition) -> None:
        whole = self.wholes.get((process.name, number))
        if whole is None or whole.position > partition.position:
            whole = self.wholes[process.name, number] = Whole()
        records = self.log.records[number]
        touched = {whole.take(records[offset]) for offset in range(whole.position, partition.position)}
        this_life = (id(process), number, partition.assigned_at_ms)
        if this_life not in self.live:
            self.live.add(this_life)
            touched |= set(whole.states)
            self.adopted += sum(
                run.base_offset > self.log.runs[name].requested_at >= 0 for name, run in partition.runs.items()
            )
        for run_id in sorted(touched - {""}):
            self._compare_run(process, partition, run_id, whole)

    def _compare_run(self, process: "Process", partition: Partition, run_id: str, whole: Whole) -> None:
        state = whole.states[run_id]
        run = partition.runs.get(run_id)
        where = f"{process.name} at {partition.number}/{partition.position}, {run_id}"
        if run is None:
            is_early = not state.last and any(record.type in EARLY and record.body for record in whole.records[run_id])
            if (state.last and not state.reported and state.parked is None) or is_early:
                raise Broken("lost", f"{where}: not in memory, phase {state.phase}")
            return
        if not run.state.last and (state.reported or state.parked is not None):
            return  # a fact after the end, or of a run set aside, kept as if it were an early one
        if state.reported and not state.late and not run.state.late:
            raise Broken("terminal", f"{where}: in memory after its end")
        if run.state != state:
            found = differences(run.state, state, with_times=not self.stepped_back)
            if found:
                raise Broken("fold", f"{where}: {found}")
        self._check_settled(process, partition, run_id)

    def _check_settled(self, process: "Process", partition: Partition, run_id: str) -> None:
        """Deciding twice decides nothing."""
        run = partition.runs[run_id]
        if run.must_decide or run.checkpoint_at >= 0 or any(sent.type == "ToolSettled" for sent in run.in_flight):
            return
        situation = Situation(
            now_ms=partition.now_ms(self.world.clock.now_ms),
            assigned_at_ms=partition.assigned_at_ms,
            base_offset=run.base_offset,
            is_ours=run.ours.__contains__,
            is_held=run.tools.__contains__,
            completion=run.completion,
        )
        steps = decide(copied(run.ahead), situation, process.executor.catalog).steps
        if steps:
            raise Broken("twice", f"{process.name}, {run_id}: decides again: {steps[0].event}")

    # ---- what the world asks

    def view(self, run_id: str) -> RunView | None:
        self.read()
        return self.log.runs.get(run_id)

    def parked(self) -> list[str]:
        self.read()
        return [run.run_id for run in self.log.runs.values() if run.parked is not None and not run.is_reported]

    @property
    def unparked(self) -> int:
        return sum(run.unparks for run in self.log.runs.values())

    def may_ask_again(self, run_id: str, delay_ms: int) -> bool:
        """Intake drops ids whose completion it has read; one that it read just before may still be on its way."""
        done_ms = self.completed_at_ms.get(run_id)
        return done_ms is None or self.world.clock.now_ms - done_ms < delay_ms

    def needed_from(self, number: int) -> int:
        """The first offset that retention must leave: the mark, and the beginnings of parked runs."""
        partition = self.world.kafka.partitions[number]
        mark, _ = read_mark(partition.committed, self.world.kafka.identity)
        parked = (
            run.records[0].offset
            for run in self.log.runs.values()
            if run.partition == number and not run.is_reported and any(r.type == "RunParked" for r in run.records)
        )
        return min(mark.offset if mark is not None else 0, *parked, partition.end)

    # ---- the end

    def all_ended(self) -> bool:
        return len(self.completions) == len(self.world.runs) and all(
            self.log.runs[run_id].is_reported for run_id in self.world.runs
        )

    def unended(self) -> list[str]:
        found = []
        for run_id in self.world.runs:
            run = self.log.runs.get(run_id)
            if run is None or not run.is_reported:
                found.append(f"{run_id} is in {run.phase if run else 'no log'}, parked: {bool(run and run.parked)}")
        return found

    def is_caught_up(self) -> bool:
        """Every partition has an owner, which has read it to its end."""
        for partition in self.world.kafka.partitions:
            owner = partition.owner
            if owner is None or owner.positions.get(partition.number) != partition.end:
                return False
        return True

    def at_the_end(self) -> None:
        """The whole story of every run, once more."""
        self.read()
        for records in self.log.records:
            whole = Whole()
            for record in records:
                whole.take(record)
            for run_id, state in whole.states.items():
                if not state.last and run_id not in self.world.runs:
                    continue  # a child that was told to stop before anybody had asked for it
                self._check_story(self.log.runs[run_id], state)
        self._check_children()
        for process in self.world.processes:
            self._check_handed_over(process)

    def _check_children(self) -> None:
        """Whoever was asked for and did not end before its parent was told to stop."""
        requests = [(key, CODEC.decode(value)) for key, value, _ in self.world.kafka.requests]
        asked = {key for key, _ in requests}
        stopped = {key for key, event in requests if isinstance(event, TaskCancelled)}
        for run in self.log.runs.values():
            before = itertools.takewhile(lambda record: record.type != "TaskReported", run.records)
            ended = {record.body.child for record in before if isinstance(record.body, ChildCompleted)}
            for child in set(run.children) & asked - ended - stopped:
                raise Broken("orphan", f"{run.run_id} ended, and nobody told {child}")

    def _check_story(self, run: RunView, state: RunState) -> None:
        if self.completions[run.run_id] != f"completed-{state.finished_id}":
            raise Broken("terminal", f"{run.run_id}: the completion is not of the effective end")
        problem = check_order(state.transcript)
        if problem is not None:
            raise Broken("history", f"{run.run_id} at its end: {problem}")
        self._check_results(run, state.transcript)
        for index, entry in enumerate(state.transcript):
            if isinstance(entry, Reply):
                asked = list(self.requests[entry.model_call].transcript)
                if asked != state.transcript[:index]:
                    raise Broken(
                        "history", f"{run.run_id}: {entry.model_call} was asked something else than the log says"
                    )
        self._check_messages(run, state)

    def _check_messages(self, run: RunView, state: RunState) -> None:
        """What was said to an interactive run before it was closed is answered before it ends as completed."""
        if state.finished is None or state.finished.status != "completed" or not run.task.interactive:
            return
        finished_at = run.finishes[state.finished_id].offset
        closed_at = run.closed_at if run.closed_at >= 0 else finished_at
        texts = Counter(entry.text for entry in state.transcript if isinstance(entry, UserMessage))
        for offset, text in run.messages.values():
            if texts[text] != 1 and offset < min(closed_at, finished_at):
                raise Broken("message", f"{run.run_id}: {text!r} was taken {texts[text]} times")

    def _check_handed_over(self, process: "Process") -> None:
        """What a process that lives was told by a tool or a model is in the log."""
        for dispatch in (*process.tools.reported, *process.processes.reported):
            if not any(dispatch in run.reported for run in self.log.runs.values()):
                raise Broken("lost", f"{process.name}: the report of {dispatch} never reached the log")
        for call in process.model.answered:
            if not any(call in run.outcomes for run in self.log.runs.values()):
                raise Broken("lost", f"{process.name}: the reply to {call} never reached the log")


SMALL = frozenset(
    {
        "PhaseEntered",
        "ModelCallStarted",
        "ToolDispatchStarted",
        "ToolSettled",
        "TurnAdvanced",
        "RunFinished",
        "RunFailed",
    }
)


def differences(found: RunState, wanted: RunState, *, with_times: bool) -> str:
    """The fields in which two states differ, in words."""
    names = [f.name for f in fields(RunState) if f.name not in UNCOMPARED and (with_times or f.name not in TIMES)]
    told = []
    for name in names:
        one, other = getattr(found, name), getattr(wanted, name)
        if one != other and (with_times or _untimed(one) != _untimed(other)):
            told.append(f"{name} is {one!r}, the whole log says {other!r}")
    return "; ".join(told)


def _untimed(value: Any) -> Any:
    """A value without what depends on where a reader began: the largest stamp so far."""
    if type(value).__name__ == "RunFinished":
        return (value.status, value.kind)
    if hasattr(type(value), "__dataclass_fields__"):
        return {f.name: _untimed(getattr(value, f.name)) for f in fields(value) if not f.name.endswith("_ms")}
    if isinstance(value, list):
        return [_untimed(item) for item in value]
    return value
