"""When a run is checkpointed, and with what (design section 5).

A long-lived run would hold the low-water mark back, and with it how far a new owner must read. When the distance
passes a bound, the runs that hold the mark carry their state forward in the log:

- in time, a quarter of the retention: always, or retention would take their beginning;
- in records: if as much was written since as all active states of the partition weigh;
- in bytes: four times that at least.

What is compared never counts checkpoints themselves: so they are no reason for further ones, and the log at most
doubles. What a state weighs is estimated from above, by the records it was made of.

A checkpoint goes alone, with nothing of the run in flight: a report in between would be missing from it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from runfold.core.checkpoint import packed, parts
from runfold.events.types import RunCheckpointed
from runfold.executor.partition import Partition
from runfold.executor.run import Run
from runfold.executor.settings import ExecutorSettings

ACTIVE_TIMES = 4  # restoring reads the active states anyhow: less than a few times their size is not worth a checkpoint
CARRIED_AT_ONCE = 100  # packing a state takes a millisecond of the loop's thread, a large one many


@dataclass(slots=True)
class Checkpoints:
    settings: ExecutorSettings

    def wanted(self, partition: Partition) -> list[Run]:
        """Runs that hold the mark too far back and are quiet now; the oldest few of them."""
        active = sum(run.state_bytes for run in partition.runs.values())
        wanted = [
            run
            for run in partition.runs.values()
            if run.state.last and not run.in_flight and run.checkpoint_at < 0 and run.state.parked is None
            if self._is_aged(partition, run) or self._is_far(partition, run, active)
        ]
        return sorted(wanted, key=_base_offset)[:CARRIED_AT_ONCE]

    def _is_aged(self, partition: Partition, run: Run) -> bool:
        return partition.stamp_ms - run.base_time_ms >= self.settings.checkpoint_age_ms

    def _is_far(self, partition: Partition, run: Run, active: int) -> bool:
        written = partition.written_since(run.base_offset)
        if written >= max(self.settings.checkpoint_bytes, ACTIVE_TIMES * active):
            return True
        return written >= active and partition.position - run.base_offset >= self.settings.checkpoint_records

    def parts(self, partition: Partition, run: Run) -> Iterator[RunCheckpointed]:
        """The records to append; none if the state is larger than what was written since the last one."""
        payload = packed(run.state)
        if len(payload) > partition.written_since(run.base_offset) and not self._is_aged(partition, run):
            return
        pieces = list(parts(payload))
        as_of = partition.position
        run.checkpoint_bytes = len(payload)
        for number, piece in enumerate(pieces, 1):
            yield RunCheckpointed(part=number, parts=len(pieces), as_of_offset=as_of, state=piece)

    def came_back(self, run: Run, part: RunCheckpointed, time_ms: int) -> None:
        """A part was accepted. After the last one the mark may move: reading from the as-of offset is enough now."""
        if run.checkpoint_at == part.as_of_offset and part.part == part.parts:
            run.base_offset = part.as_of_offset
            run.base_time_ms = time_ms
            run.base_bytes = run.checkpoint_bytes
            run.bytes_since_base = 0
            run.checkpoint_at = -1


def _base_offset(run: Run) -> int:
    return run.base_offset
