"""When a run is checkpointed, and with what (design section 5).

A long-lived run would hold the low-water mark back, and with it how far a new owner must read. When the distance
passes a bound, the runs that hold the mark carry their state forward in the log. Asked for by size only if the run
wrote at least its own state's size since the last time, so that the log at most doubles; asked for by time, always.
A checkpoint goes alone, with nothing of the run in flight: a report in between would be missing from it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from runfold.core.checkpoint import packed, parts
from runfold.events.types import RunCheckpointed
from runfold.executor.partition import Partition
from runfold.executor.run import Run
from runfold.executor.settings import ExecutorSettings


@dataclass(slots=True)
class Checkpoints:
    settings: ExecutorSettings

    def wanted(self, partition: Partition) -> list[Run]:
        """Runs that hold the mark too far back and are quiet now."""
        wanted = []
        for run in partition.runs.values():
            if not run.state.last or run.in_flight or run.checkpoint_at >= 0 or run.state.parked is not None:
                continue
            distance = partition.position - run.base_offset
            aged = partition.stamp_ms - run.base_time_ms >= self.settings.checkpoint_age_ms
            if aged or distance >= self.settings.checkpoint_records:
                wanted.append(run)
        return wanted

    def parts(self, partition: Partition, run: Run) -> Iterator[RunCheckpointed]:
        """The records to append; none if the state is larger than what the run wrote since the last one."""
        payload = packed(run.state)
        aged = partition.stamp_ms - run.base_time_ms >= self.settings.checkpoint_age_ms
        if len(payload) > run.bytes_since_checkpoint and not aged:
            return
        pieces = list(parts(payload))
        as_of = partition.position
        for number, piece in enumerate(pieces, 1):
            yield RunCheckpointed(part=number, parts=len(pieces), as_of_offset=as_of, state=piece)

    def came_back(self, run: Run, part: RunCheckpointed, time_ms: int) -> None:
        """A part was accepted. After the last one the mark may move: reading from the as-of offset is enough now."""
        if run.checkpoint_at == part.as_of_offset and part.part == part.parts:
            run.base_offset = part.as_of_offset
            run.base_time_ms = time_ms
            run.bytes_since_checkpoint = 0
            run.checkpoint_at = -1
