"""One partition this process owns: its runs, its time, its timers, its low-water mark.

Time is data (design section 2): *now* is the largest append stamp read since our own PartitionOpened came back, plus
monotonic time since. It never goes back, and without traffic it still goes on.
"""

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter

from runfold.core.ended import Ended
from runfold.core.restore import Restoring
from runfold.executor.mark import short_id
from runfold.executor.run import Run

WRITTEN_BYTES = 16 * 1024  # how fine the memory of "how much was written since" is
STAMPS_MS = 1_000  # how fine the memory of "which offset was it a minute ago" is


@dataclass(slots=True, eq=False)
class Partition:
    number: int
    position: int = -1  # the next offset to read; -1 before the first record
    opened_id: str = ""  # our PartitionOpened; its read-back ends the restore
    restoring: Restoring | None = None  # None: live
    blocked: str = ""  # why it may not become live
    is_refused: bool = False  # it did not become live for that: an operator has to speak
    assigned_at_ms: int = 0
    written: int = 0  # bytes of records read, without checkpoints
    away: set[str] = field(default_factory=set)  # short ids of parked runs that are not in memory
    runs: dict[str, Run] = field(default_factory=dict)
    finished: dict[str, Ended] = field(default_factory=dict)  # by run id, oldest first
    stamp_ms: int = 0  # largest append stamp so far
    _read_at_ms: int = 0  # monotonic time of that
    _now_ms: int = 0
    _timers: list[tuple[int, str]] = field(default_factory=list)  # by run id: a run that ended is not held
    _stamps: deque[tuple[int, int]] = field(default_factory=deque)  # (time, offset), one a second
    _written: list[tuple[int, int]] = field(default_factory=list)  # (offset, bytes before it), one each WRITTEN_BYTES

    def read(self, time_ms: int, offset: int) -> int:
        """A record was read: its event time, which never goes back on a partition."""
        self.position = offset + 1
        if time_ms > self.stamp_ms:
            self.stamp_ms = time_ms
            if not self._stamps or time_ms - self._stamps[-1][0] >= STAMPS_MS:
                self._stamps.append((time_ms, offset))
        return self.stamp_ms

    def wrote(self, offset: int, size: int) -> None:
        """So much stands at this offset; not called for checkpoints, which carry what was written before."""
        if not self._written or self.written - self._written[-1][1] >= WRITTEN_BYTES:
            self._written.append((offset, self.written))
        self.written += size

    def written_since(self, offset: int) -> int:
        """Bytes from this offset on, or a little more."""
        place = bisect_right(self._written, offset, key=itemgetter(0))
        return self.written - self._written[place - 1][1] if place else self.written

    def see(self, monotonic_ms: int) -> None:
        """The records up to here were read by this (monotonic) time."""
        if self.stamp_ms > self.now_ms(monotonic_ms):
            self._now_ms = self.stamp_ms
            self._read_at_ms = monotonic_ms

    def now_ms(self, monotonic_ms: int) -> int:
        return self._now_ms + max(0, monotonic_ms - self._read_at_ms)

    # ---- timers

    def wake(self, run: Run, at_ms: int) -> None:
        """Decide about this run at that time, at the latest."""
        if run.wake_at_ms is None or at_ms < run.wake_at_ms:
            run.wake_at_ms = at_ms
            heapq.heappush(self._timers, (at_ms, run.state.run_id))

    def due(self, now_ms: int) -> list[Run]:
        """Runs whose timer passed."""
        passed: list[Run] = []
        while self._timers and self._timers[0][0] <= now_ms:
            at_ms, run_id = heapq.heappop(self._timers)
            run = self.runs.get(run_id)
            if run is not None and run.wake_at_ms == at_ms:
                run.wake_at_ms = None
                run.must_decide = True
                passed.append(run)
        return passed

    def next_timer_ms(self) -> int | None:
        return self._timers[0][0] if self._timers else None

    # ---- the low-water mark

    def mark(self, finished_memory_ms: int) -> int:
        """The smallest offset that anything in memory depends on. A parked run names its own base and holds nothing."""
        horizon_ms = self.stamp_ms - finished_memory_ms
        while len(self._stamps) > 1 and self._stamps[1][0] <= horizon_ms:
            self._stamps.popleft()
        held = min((run.base_offset for run in self.runs.values() if _holds_mark(run)), default=self.position)
        mark = min(held, self._stamps[0][1] if self._stamps else self.position, self.position)
        # Who reads a repeated request must read the end of its run as well: it would look like a new run.
        for ended in reversed(self.finished.values()):
            if ended.offset < mark <= ended.repeated_at:
                mark = ended.offset
        return mark

    # ---- parked runs that the mark has left

    def is_away(self, run_id: str) -> bool:
        return bool(self.away) and short_id(run_id) in self.away

    def met(self, run_ids: Iterable[str]) -> None:
        """These were rebuilt, or have ended: they are not away."""
        if self.away:
            self.away.difference_update(map(short_id, run_ids))

    def left_behind(self, mark: int) -> set[str]:
        """Who must be named beside this mark."""
        parked = (run for run in self.runs.values() if run.state.parked is not None and run.base_offset < mark)
        return self.away | {short_id(run.state.run_id) for run in parked}

    def forget_written(self, mark: int) -> None:
        """Nobody asks for offsets before the mark."""
        place = bisect_right(self._written, mark, key=itemgetter(0))
        del self._written[: max(0, place - 1)]

    def forget_finished(self, finished_memory_ms: int) -> None:
        """Forget ended runs that no repeated request can be of any more: none comes, and the mark passed the last."""
        horizon_ms = self.stamp_ms - finished_memory_ms
        mark = self.mark(finished_memory_ms)
        for run_id, ended in list(self.finished.items()):
            if ended.time_ms > horizon_ms:
                break
            if ended.repeated_at < mark:
                del self.finished[run_id]

    def rewind(self, position: int) -> None:
        """Read again from here: event times must come out as they did the first time."""
        self.position = position
        self.stamp_ms = 0
        self._stamps.clear()
        self.written = 0
        self._written.clear()
        self.runs.clear()


def _holds_mark(run: Run) -> bool:
    """A parked run leaves the mark, until it is about to be taken up again."""
    state = run.state
    return state.parked is None or (state.unpark is not None and state.halt is None)
