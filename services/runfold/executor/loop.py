"""The executor's loop: read, fold, decide ahead, append, read back, act.

    read records ─▶ fold (accept or void) ─▶ decide(state, now) ─▶ append ─▶ … read back as accepted ─▶ start tools

Everything in this file runs on one thread, the one that polls Kafka, and nothing slow does. A crash between any two
lines costs nothing that the log does not bring back: what was appended is read by the next owner, what was not was
never promised. No rule of the run lives here; an interesting `if` belongs to the core.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from runfold.core.decide import decide
from runfold.core.ended import BASES, Ended
from runfold.core.fold import EFFECTIVE, FACT, VOID, WITHOUT_EFFECT, Taken, take
from runfold.core.fold_facts import late_report
from runfold.core.phases import Phase
from runfold.core.restore import EARLY_FACTS
from runfold.core.state import Halt, RunState
from runfold.core.steps import Catalog, Situation, Step
from runfold.events.codec import Codec, Undecodable
from runfold.events.envelope import NotAnEvent, Record, read_envelope
from runfold.events.types import (
    LateReportRecorded,
    ModelCallStarted,
    ModelFailed,
    ModelReplied,
    RunCheckpointed,
    TaskReported,
    ToolDispatchStarted,
    ToolReported,
    ToolSettled,
    TurnAdvanced,
)
from runfold.executor.checkpoints import Checkpoints
from runfold.executor.effects import Effects
from runfold.executor.outward import Outward
from runfold.executor.ownership import Ownership
from runfold.executor.partition import Partition
from runfold.executor.quarantine import Quarantine
from runfold.executor.run import Run, new_run
from runfold.executor.settings import ExecutorSettings
from runfold.executor.writer import Writer
from runfold.ports import Clock, Committed, Delivery, InvariantViolation, RunLog

CHAIN_ROUNDS_MAX = 1_000  # answers of `decide` in one chain; a chain that long decides in circles


@dataclass(slots=True)
class Counts:
    """What happened, for metrics and for the simulation's report."""

    records: int = 0
    voids: int = 0
    without_effect: int = 0
    dropped_ahead: int = 0
    late_reports: int = 0
    checkpoints: int = 0
    parked: int = 0
    ended: int = 0


@dataclass(slots=True)
class Executor:
    """Carries the runs of the partitions it owns. `step` is one tick; `main.py` calls it until it is told to stop."""

    log: RunLog
    codec: Codec
    clock: Clock
    catalog: Catalog
    writer: Writer
    effects: Effects
    outward: Outward
    quarantine: Quarantine
    settings: ExecutorSettings
    tell: Callable[[str], None]
    counts: Counts = field(default_factory=Counts)
    ownership: Ownership = field(init=False)
    checkpoints: Checkpoints = field(init=False)
    _touched: dict[Run, None] = field(default_factory=dict)
    _restarted: set[int] = field(default_factory=set)  # partitions whose rest of the batch is to be read again
    _situation: Situation = field(init=False)
    _committed_at_ms: int = 0

    def __post_init__(self) -> None:
        self.ownership = Ownership(
            log=self.log,
            writer=self.writer,
            clock=self.clock,
            settings=self.settings,
            tell=self.tell,
            stop_run=self._stop_run,
            open_body=self._open_body,
        )
        self.checkpoints = Checkpoints(settings=self.settings)
        self._situation = Situation(now_ms=0, session_timeout_ms=self.settings.session_timeout_ms)
        self._committed_at_ms = self.clock.monotonic_ms()

    def open(self) -> None:
        self.log.open(self)

    def close(self) -> None:
        """Stop gracefully: commit, leave. Runs in flight go on elsewhere, or here after the restart."""
        self.ownership.revoked(list(self.ownership.partitions), lost=False)
        self.log.close()

    # ---- one tick

    def step(self, timeout_ms: int | None = None) -> int:
        """Read what is there, decide what follows, act on what came back. Answers the number of records read."""
        self._restarted.clear()
        deliveries = self.log.poll(self._timeout_s(timeout_ms))
        partitions = self.ownership.partitions
        for delivery in deliveries:
            partition = partitions.get(delivery.partition)
            # Records of a partition that went away meanwhile, or from before a seek, are not ours to take.
            if partition is not None and delivery.partition not in self._restarted:
                self._read(partition, delivery)
        monotonic_ms = self.clock.monotonic_ms()
        for partition in partitions.values():
            if partition.restoring is None:
                partition.see(monotonic_ms)
                for run in partition.due(partition.now_ms(monotonic_ms)):
                    self._touched[run] = None
        while self._touched:
            touched, self._touched = self._touched, {}
            for run in touched:
                self._advance(run)
        if monotonic_ms - self._committed_at_ms >= self.settings.commit_interval_ms:
            self._committed_at_ms = monotonic_ms
            self.tidy()
        return len(deliveries)

    def _timeout_s(self, timeout_ms: int | None) -> float:
        wait_ms = self.settings.poll_ms_max if timeout_ms is None else timeout_ms
        monotonic_ms = self.clock.monotonic_ms()
        for partition in self.ownership.partitions.values():
            due_ms = partition.next_timer_ms()
            if due_ms is not None and partition.restoring is None:
                wait_ms = min(wait_ms, due_ms - partition.now_ms(monotonic_ms))
        return max(0, wait_ms) / 1000

    def tidy(self) -> None:
        """Commit, checkpoint the runs that hold the mark, forget what time has made worthless."""
        live = [p for p in self.ownership.partitions.values() if p.restoring is None]
        for partition in live:
            partition.forget_finished(self.settings.finished_memory_ms)
            self._forget_early(partition)
            for run in self.checkpoints.wanted(partition):
                self._checkpoint(partition, run)
        self.writer.forget_unread(self.settings.unread_fact_age_ms, self.ownership.partitions)
        self.ownership.commit([p.number for p in live], wait=False)

    def _forget_early(self, partition: Partition) -> None:
        """Early facts are bounded in age and number: the oldest go first."""
        early = [run for run in partition.runs.values() if not run.state.last]
        horizon_ms = partition.stamp_ms - self.settings.early_fact_age_ms
        too_many = max(0, len(early) - self.settings.early_facts_max)
        for index, run in enumerate(early):
            if index < too_many or run.base_time_ms < horizon_ms:
                del partition.runs[run.state.run_id]

    # ---- reading

    def _read(self, partition: Partition, delivery: Delivery) -> None:
        time_ms = partition.read(delivery.time_ms, delivery.offset)
        self.counts.records += 1
        own = self.writer.read_back(delivery.headers)
        if own is not None:
            record = own
            record.offset = delivery.offset
            record.time_ms = time_ms
        else:
            try:
                record = read_envelope(
                    delivery.partition, delivery.offset, time_ms, delivery.key, delivery.value, delivery.headers
                )
            except NotAnEvent as error:
                self.quarantine.put(delivery, str(error))
                return
        if record.type != "RunCheckpointed":
            partition.wrote(record.offset, len(record.value))
        if not record.run_id:
            if record.event_id == partition.opened_id:
                self._opened(partition, record)
            return
        if partition.restoring is not None:
            partition.restoring.take(record)
            if record.type == "RunLost":
                self.ownership.accepted_loss(partition)
            return
        known = partition.runs.get(record.run_id)
        if known is None or (record.type == "UnparkRequested" and not known.state.last):
            known = self._met(partition, record)
        if known is not None:
            self._touched[known] = None
            if own is None:
                self._open_body(record)
            try:
                self._take(partition, known, record, is_ours=own is not None)
            except Exception as error:  # noqa: BLE001  a bug that one run meets must not stop its partition
                self._set_aside(known, record.offset, error)

    def _opened(self, partition: Partition, opened: Record) -> None:
        """Our PartitionOpened came back: what stands before it was read."""
        restoring = partition.restoring
        for run in self.ownership.go_live(partition, opened, self._cannot_restore):
            self._touched[run] = None
        if partition.position <= opened.offset:  # read once more, from further back
            self._restarted.add(partition.number)
        elif restoring is not None and partition.restoring is None:
            for report in restoring.late_reports():
                self._met_finished(partition, report)

    def _met(self, partition: Partition, record: Record) -> Run | None:
        """A record of a run that is not in memory: its beginning, an early fact, or what comes after its end."""
        if record.run_id in partition.finished:
            self._met_finished(partition, record)
            return None
        if record.follows is None and record.type == "UnparkRequested":
            self.tell(f"run {record.run_id} is taken up again: restoring partition {partition.number} from its base")
            self._restart(partition, self.log.start_of(partition.number))
            return None
        if record.follows is not None or record.type not in BASES | EARLY_FACTS or partition.is_away(record.run_id):
            return None
        run = new_run(RunState(run_id=record.run_id), partition.number, record.offset, record.time_ms)
        partition.runs[record.run_id] = run
        return run

    def _met_finished(self, partition: Partition, record: Record) -> None:
        """Terminal is terminal; a late report is still marked as late, a repeated request remembered as one."""
        if record.type in BASES:
            partition.finished[record.run_id].repeated_at = record.offset
        if record.type == "ToolReported":
            self._open_body(record)
            if isinstance(record.body, ToolReported):
                late = late_report(record, record.body)
                self.effects.record_late(partition.number, record.run_id, late, record.time_ms)

    def _take(self, partition: Partition, run: Run, record: Record, *, is_ours: bool) -> None:
        """Fold one record onto both states, and see what that says about what was sent ahead."""
        state = run.state
        if not state.last and record.type in BASES:
            run.base_time_ms = record.time_ms
        run.bytes_since_base += len(record.value)
        taken = take(state, record)
        if taken is FACT:
            self._took_fact(run, record, is_ours=is_ours)
        elif run.in_flight and run.in_flight[0] is record:
            run.in_flight.popleft()
            if taken is EFFECTIVE:
                self._came_back(partition, run, record)
            else:
                self._count(taken)
                self.counts.dropped_ahead += 1
                run.drop_ahead()
        else:
            self._count(taken)
            if taken is not VOID:  # somebody else's decision, or one of ours that was given up
                self.counts.dropped_ahead += 1
                run.drop_ahead()
                if taken is EFFECTIVE:
                    self._came_back(partition, run, record)
        if state.halt is not None and run.ahead.halt is None:
            run.drop_ahead()

    def _restart(self, partition: Partition, mark: int) -> None:
        self._restarted.add(partition.number)
        self.ownership.restart(partition, mark)

    def _count(self, taken: Taken) -> None:
        self.counts.voids += taken is VOID
        self.counts.without_effect += taken is WITHOUT_EFFECT

    def _took_fact(self, run: Run, record: Record, *, is_ours: bool) -> None:
        body = record.body
        if isinstance(body, ToolReported):
            run.tools.discard(body.dispatch)
        elif isinstance(body, ModelReplied | ModelFailed):
            run.model_calls.discard(body.model_call)
            if is_ours and body.model_call in run.ahead.replied:
                return  # it was folded ahead when it was sent
        elif isinstance(body, LateReportRecorded):
            self.counts.late_reports += 1
        elif record.type == "UnparkRequested" and run.state.parked is not None:
            partition = self.ownership.partitions[run.partition]
            # Not from the run's base: between it and the mark, requests that repeat ended runs would look fresh.
            self._restart(partition, self.log.start_of(partition.number))
            return
        take(run.ahead, record)
        run.must_decide = True

    def _came_back(self, partition: Partition, run: Run, record: Record) -> None:
        """An accepted and effective decision: effects may rest on it now."""
        body = record.body
        if isinstance(body, ToolDispatchStarted):
            if record.event_id in run.ours:
                run.to_start.append(record.event_id)
        elif isinstance(body, TurnAdvanced):
            run.ours = {sent.event_id for sent in run.in_flight}
        elif isinstance(body, ToolSettled):
            run.must_decide = True
        elif isinstance(body, RunCheckpointed):
            self.checkpoints.came_back(run, body, record.time_ms)
            self.counts.checkpoints += body.part == body.parts
            run.must_decide = True
        elif isinstance(body, TaskReported):
            partition.finished[record.run_id] = Ended(record.time_ms, record.offset)
            self.counts.ended += 1
            if not run.state.late:
                partition.runs.pop(record.run_id, None)
        elif run.state.parked is not None:
            self.counts.parked += 1
            self._stop_run(run)

    # ---- deciding and acting

    def _advance(self, run: Run) -> None:
        partition = self.ownership.partitions.get(run.partition)
        if partition is None or partition.restoring is not None or partition.runs.get(run.state.run_id) is not run:
            return
        now_ms = partition.now_ms(self.clock.monotonic_ms())
        try:
            if run.to_start:
                self.effects.start_tools(run, now_ms)
            self._tend(partition, run, now_ms)
            if run.must_decide and run.checkpoint_at < 0:
                run.must_decide = False
                self._decide(partition, run, now_ms)
        except Exception as error:  # noqa: BLE001  see _read
            self._set_aside(run, -1, error)

    def _tend(self, partition: Partition, run: Run, now_ms: int) -> None:
        """Everything beside the main line: late reports, work nobody waits for, the completion."""
        state = run.state
        for late in state.late.values():
            self.effects.record_late(run.partition, state.run_id, late, now_ms)
        if run.tools or run.model_calls:
            self.effects.stop_unwanted(run)
        if (state.reply is not None and state.reply.has_claims) or state.replay is not None:
            self.effects.claims.tend(run, self.effects.done(run, now_ms), now_ms)
        if state.open_children:
            self.outward.tend_children(run, self._told)
        if state.finished is not None and self.outward.is_owed(run):
            run.completing = True
            self.outward.complete(run, self._completed)
        if state.reported and not state.late:
            partition.runs.pop(state.run_id, None)

    def _completed(self, run: Run, event_id: str, ok: bool) -> None:
        """Kafka acknowledged the completion, or not: then it is sent again, never the model asked again."""
        run.completing = False
        if ok:
            run.completion = event_id
            run.must_decide = True
        self._told(run, ok)

    def _told(self, run: Run, ok: bool) -> None:
        """Kafka acknowledged what a run told others, or not: then it is told again after a while."""
        partition = self.ownership.partitions.get(run.partition)
        if partition is None:
            return
        if ok:
            self._touched[run] = None
        else:
            now_ms = partition.now_ms(self.clock.monotonic_ms())
            partition.wake(run, now_ms + self.settings.completion_retry_ms)

    def _decide(self, partition: Partition, run: Run, now_ms: int) -> None:
        """Decide ahead, until there is nothing to decide or something must be read back first."""
        situation = self._situation
        situation.now_ms = now_ms
        situation.assigned_at_ms = partition.assigned_at_ms
        situation.base_offset = run.base_offset
        situation.is_ours = run.ours.__contains__
        situation.is_held = run.tools.__contains__
        situation.completion = run.completion
        situation.sandbox = self.effects.claims.sandbox_if_lost(run) if run.ahead.sandbox else ""
        ahead = run.ahead
        for _ in range(CHAIN_ROUNDS_MAX):
            decided = decide(ahead, situation, self.catalog)
            if not decided.steps:
                if decided.wake_at_ms is not None:
                    partition.wake(run, decided.wake_at_ms)
                return
            for step in decided.steps:
                if isinstance(step.event, TurnAdvanced) and _has_settles_in_flight(run):
                    return  # a report may stand before our ToolSettled: the model must be told what the log holds
                self._append(partition, run, step, now_ms)
        raise InvariantViolation(f"decide does not settle: {decided.steps[0].event!r} again and again")

    def _append(self, partition: Partition, run: Run, step: Step, now_ms: int) -> None:
        ahead = run.ahead
        record = self.writer.decide(partition.number, ahead, step.event, step.phase, now_ms)
        run.in_flight.append(record)
        take(ahead, record)
        if isinstance(step.event, ModelCallStarted):
            run.ours.add(record.event_id)
            reply = self.effects.call_model(run, record.event_id, now_ms)
            if reply is not None:
                take(ahead, reply)
        elif isinstance(step.event, ToolDispatchStarted):
            run.ours.add(record.event_id)

    def _checkpoint(self, partition: Partition, run: Run) -> None:
        for event in self.checkpoints.parts(partition, run):
            phase = Phase(run.ahead.phase)
            self._append(partition, run, Step(event, phase), partition.stamp_ms)
            run.checkpoint_at = event.as_of_offset

    # ---- setting aside

    def _set_aside(self, run: Run, offset: int, error: Exception) -> None:
        """Park a run whose events or decisions make our code fail. Its partition goes on."""
        reason = f"{type(error).__name__}: {error}"
        self.tell(f"run {run.state.run_id} is set aside: {reason}")
        if run.state.halt is not None:  # even parking it failed: leave it alone
            return
        run.state.halt = Halt(offset=offset, reason=reason)
        run.drop_ahead()
        self._touched[run] = None

    def _cannot_restore(self, run_id: str, reason: str) -> None:
        self.tell(f"run {run_id} cannot be restored: {reason}")
        self.quarantine.put_run(run_id, reason)

    def _open_body(self, record: Record) -> None:
        """Decode a record in place. What cannot be decoded is quarantined; a decision still counts in its chain.

        A schema registry that does not answer, or refuses, says nothing about the record: what it raises ends this
        process, before a run or a record pays for it. The next one goes on from the log.
        """
        try:
            body = self.codec.decode(record.value)
        except Undecodable as error:
            self.quarantine.put_record(record, str(error))
            return
        if type(body).__name__ == record.type:
            record.body = body
        else:
            self.quarantine.put_record(record, f"ce_type says {record.type}, the body is {type(body).__name__}")

    def _stop_run(self, run: Run) -> None:
        self.effects.stop_model_calls(run)

    # ---- LogListener

    def on_assigned(self, partitions: Mapping[int, Committed]) -> Mapping[int, int]:
        return self.ownership.assigned(partitions)

    def on_revoked(self, partitions: Sequence[int], *, lost: bool) -> None:
        self.ownership.revoked(partitions, lost=lost)

    def on_append_failed(self, partition: int, run_id: str, reason: str) -> None:
        """Lost, or nobody knows: decisions are made anew under new ids, facts are sent again under their own."""
        owned = self.ownership.partitions.get(partition)
        self.tell(
            f"an append to partition {partition} failed ({reason}); deciding anew for {run_id or 'the partition'}"
        )
        if owned is not None and not run_id and owned.restoring is not None:
            self.ownership.open_partition(owned)
            return
        self.writer.send_again(partition, run_id)
        run = owned.runs.get(run_id) if owned is not None else None
        if run is not None:
            self.counts.dropped_ahead += 1
            run.drop_ahead()
            self._touched[run] = None

    def on_truncated(self, partition: int) -> int:
        owned = self.ownership.partitions.get(partition)
        if owned is None:
            return self.log.start_of(partition)
        self.ownership.truncated(owned)
        return owned.position


def _has_settles_in_flight(run: Run) -> bool:
    return any(isinstance(sent.body, ToolSettled) for sent in run.in_flight)
