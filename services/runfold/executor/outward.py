"""What a run tells others: its completion, its parent, the tasks it delegates.

Level-triggered: what ought to be told follows from the read-back state, and is told again by every new owner, under the
same ids. Kafka's acknowledgement is waited for, never on the loop's thread; what it did not take is sent again.
"""

from collections.abc import Callable
from dataclasses import dataclass

from runfold.core.children import child_requests, unwanted_children
from runfold.core.limits import RECORD_BYTES_MAX
from runfold.core.pending import completion_id, completion_of
from runfold.events.types import ChildCompleted, TaskCancelled, TaskCompleted, TaskRequested
from runfold.executor.run import Run
from runfold.executor.writer import Writer
from runfold.ports import Outbox, Topic

INLINE_TEXT_MAX = RECORD_BYTES_MAX // 8  # characters: fits whatever they weigh in UTF-8
CHILD_TEXT_MAX = 64 * 1024  # characters of a child's result in its parent's transcript
Told = Callable[[Run, bool], None]  # acknowledged, or not


@dataclass(slots=True)
class Outward:
    writer: Writer
    outbox: Outbox

    # ---- the end

    def is_owed(self, run: Run) -> bool:
        """Is the completion to be sent? Not before the children that nobody waits for any more were told to stop."""
        state = run.state
        if state.finished is None or state.reported or run.completing or run.completion:
            return False
        return not state.open_children or run.children_stopped.issuperset(unwanted_children(state))

    def complete(self, run: Run, acknowledged: Callable[[Run, str, bool], None]) -> None:
        """Send TaskCompleted, and tell the parent if there is one; under the same ids from every process."""
        completed = self._completed(run)
        if completed is None:
            return
        event_id = completion_id(run.state)
        records: list[tuple[Topic, str, str, TaskCompleted | ChildCompleted]] = [
            (Topic.COMPLETIONS, run.state.run_id, event_id, completed)
        ]
        if completed.parent:
            records.append((Topic.EVENTS, completed.parent, f"child-{event_id}", _for_parent(completed)))
        waiting = len(records)
        all_well = True

        def told(ok: bool) -> None:
            nonlocal waiting, all_well
            waiting -= 1
            all_well = all_well and ok
            if waiting == 0:
                acknowledged(run, event_id, all_well)

        for topic, key, record_id, event in records:
            self._publish(run, topic, key, record_id, event, told)

    def _completed(self, run: Run) -> TaskCompleted | None:
        completed = completion_of(run.state)
        if completed is not None and len(self.writer.codec.encode(completed)) > RECORD_BYTES_MAX:
            note = f"… (cut: the whole answer is in the run's reply {run.state.answer})"
            completed = completion_of(run.state, text_max=INLINE_TEXT_MAX, note=note)
        return completed

    # ---- children

    def tend_children(self, run: Run, told: Told) -> None:
        """Ask for the tasks that are waited for, and stop those that nobody waits for any more: each once a process."""
        for request in child_requests(run.state):
            child = request.task_id
            if child not in run.children_asked:
                run.children_asked.add(child)
                self._publish(run, Topic.REQUESTS, child, f"asked-{child}", request, self._or_again(run, child, told))
        for child in unwanted_children(run.state):
            if child not in run.children_stopping:
                run.children_stopping.add(child)
                cancelled = TaskCancelled(task_id=child, reason="its parent does not wait for it any more")
                self._publish(run, Topic.REQUESTS, child, f"stop-{child}", cancelled, self._stopped(run, child, told))

    def _or_again(self, run: Run, child: str, told: Told) -> Callable[[bool], None]:
        def acknowledged(ok: bool) -> None:
            if not ok:
                run.children_asked.discard(child)
            told(run, ok)

        return acknowledged

    def _stopped(self, run: Run, child: str, told: Told) -> Callable[[bool], None]:
        def acknowledged(ok: bool) -> None:
            if ok:
                run.children_stopped.add(child)
            else:
                run.children_stopping.discard(child)
            told(run, ok)

        return acknowledged

    def _publish(
        self,
        run: Run,
        topic: Topic,
        key: str,
        event_id: str,
        event: TaskCompleted | ChildCompleted | TaskRequested | TaskCancelled,
        acknowledged: Callable[[bool], None],
    ) -> None:
        headers = self.writer.headers(type(event).__name__, event_id, run.state.traceparent)
        self.outbox.publish(topic, key, self.writer.codec.encode(event), headers, acknowledged)


def _for_parent(completed: TaskCompleted) -> ChildCompleted:
    result = completed.result
    if result is not None and len(result) > CHILD_TEXT_MAX:
        result = f"{result[:CHILD_TEXT_MAX]}… (cut: the whole answer is in the run {completed.task_id})"
    return ChildCompleted(
        child=completed.task_id,
        status=completed.status,
        kind=completed.kind,
        reason=completed.reason,
        result=result,
        totals=completed.totals,
    )
