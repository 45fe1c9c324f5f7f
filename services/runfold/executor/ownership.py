"""Taking partitions over and giving them back: where to start reading, what is committed, when a partition is live.

The group's commit holds the true position; its metadata string holds which log that was and the low-water mark
(design section 5). A mark of another log, or none, is worth nothing: then the partition is read from its start, and
that is said. A mark that lies before the start of the log means that runs may have lost their beginning.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from runfold.core.ended import Ended
from runfold.core.restore import Restored, Restoring
from runfold.events.envelope import Record
from runfold.events.types import PartitionOpened
from runfold.executor.mark import read_mark, short_id, written_mark
from runfold.executor.partition import Partition
from runfold.executor.run import Run, new_run
from runfold.executor.settings import ExecutorSettings
from runfold.executor.writer import Writer
from runfold.ports import Clock, Committed, RunLog


@dataclass(slots=True)
class Ownership:
    """The partitions of one executor. `tell` says things to people; `stop_run` ends a run's work in this process."""

    log: RunLog
    writer: Writer
    clock: Clock
    settings: ExecutorSettings
    tell: Callable[[str], None]
    stop_run: Callable[[Run], None]
    open_body: Callable[[Record], None]
    partitions: dict[int, Partition] = field(default_factory=dict)
    takeovers: int = 0

    # ---- the listener's half that moves partitions

    def assigned(self, partitions: Mapping[int, Committed]) -> dict[int, int]:
        return {number: self._take_over(number, committed) for number, committed in partitions.items()}

    def revoked(self, partitions: Sequence[int], *, lost: bool) -> None:
        """Drop everything of these partitions; what had begun still reports."""
        if not lost:
            self.commit(partitions, wait=True)
        for number in partitions:
            partition = self.partitions.pop(number, None)
            if partition is not None:
                for run in partition.runs.values():
                    self.stop_run(run)

    def _take_over(self, number: int, committed: Committed) -> int:
        mark, problem = read_mark(committed, self.log.identity)
        first = self.log.start_of(number)
        partition = Partition(number=number)
        start = first
        if mark is None:
            if problem and committed.offset >= 0:
                self.tell(f"partition {number}: {problem}; reading it from its start")
        else:
            partition.away = set(mark.away)
            start = max(mark.offset, first)
            if mark.offset < first:
                partition.blocked = f"the low-water mark {mark.offset} lies before the start of the log {first}"
        self.partitions[number] = partition
        self.begin_restore(partition, start)
        return start

    def begin_restore(self, partition: Partition, mark: int) -> None:
        """Drop all state of a partition; it is live again once our PartitionOpened comes back."""
        for run in partition.runs.values():
            self.stop_run(run)
        partition.restoring = Restoring(mark=mark, is_away=partition.is_away)
        partition.is_refused = False
        partition.rewind(mark)
        self.open_partition(partition)

    def open_partition(self, partition: Partition) -> None:
        """Append the record whose read-back ends the restore and gives the first *now*."""
        opened = PartitionOpened(owner=self.settings.name)
        record = self.writer.fact(partition.number, "", opened, 0)
        partition.opened_id = record.event_id

    def truncated(self, partition: Partition) -> None:
        """The log does not hold what was to be read next: begin anew with what there is."""
        first = self.log.start_of(partition.number)
        self.tell(
            f"partition {partition.number}: the log does not hold offset {partition.position}; restoring from {first}"
        )
        if partition.position < first:
            partition.blocked = f"it was read up to {partition.position}, and the log begins at {first} now"
        self.begin_restore(partition, first)

    def restart(self, partition: Partition, mark: int) -> None:
        """Restore a partition again, from further back."""
        self.begin_restore(partition, mark)
        self.log.seek(partition.number, mark)

    def accepted_loss(self, partition: Partition) -> None:
        """A RunLost was read. If the partition was refused for such runs, it is looked at once more."""
        if partition.is_refused:
            partition.is_refused = False
            self.open_partition(partition)

    # ---- from restoring to live

    def go_live(self, partition: Partition, opened: Record, set_aside: Callable[[str, str], None]) -> list[Run]:
        """Our PartitionOpened came back: everything before it is folded. Answers the runs to decide about."""
        restoring = partition.restoring
        if restoring is None:
            return []
        found: list[tuple[str, Restored]] = []
        broken: list[str] = []

        def leave(run_id: str, reason: str) -> None:
            broken.append(run_id)
            set_aside(run_id, reason)

        for run_id, kept in restoring.runs(self.open_body, leave):
            found.append((run_id, kept))
        lost = restoring.without_base()
        if partition.blocked and lost:
            partition.is_refused = True
            self.tell(
                f"partition {partition.number} is not started: {partition.blocked}, and {len(lost)} runs lost their "
                "beginning. `runfold doctor --accept-loss` ends each of them as failed"
            )
            return []
        if (
            partition.blocked == ""
            and restoring.wants_whole_log()
            and restoring.mark > (first := self.log.start_of(partition.number))
        ):
            self.tell(
                f"partition {partition.number}: a parked run is taken up again; reading from the start of the log"
            )
            self.restart(partition, first)
            return []
        partition.restoring = None
        partition.blocked = ""
        partition.see(self.clock.monotonic_ms())
        partition.assigned_at_ms = partition.stamp_ms
        partition.finished = dict(sorted(restoring.finished.items(), key=_by_time))
        for run_id, kept in found:
            run = new_run(kept.state, partition.number, kept.base_offset, kept.base_time_ms)
            run.bytes_since_base = kept.bytes
            partition.runs[run_id] = run
        partition.met(run_id for run_id, _ in found)
        partition.met(restoring.finished)
        partition.away.update(map(short_id, restoring.away))
        partition.away.update(
            map(short_id, broken)
        )  # as parked: a repeated request begins nothing, an unpark tries again
        self.takeovers += bool(found)
        return list(partition.runs.values())

    # ---- commits

    def commit(self, partitions: Sequence[int], *, wait: bool) -> None:
        """Commit the true position of live partitions, the mark beside it."""
        positions = {}
        for number in partitions:
            partition = self.partitions.get(number)
            if partition is None or partition.restoring is not None or partition.position < 0:
                continue
            mark = partition.mark(self.settings.finished_memory_ms)
            partition.forget_written(mark)
            metadata = written_mark(self.log.identity, mark, partition.left_behind(mark))
            positions[number] = Committed(partition.position, metadata)
        if positions:
            self.log.commit(positions, wait=wait)


def _by_time(finished: tuple[str, Ended]) -> int:
    return finished[1].time_ms
