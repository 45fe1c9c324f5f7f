"""Rebuilding runs from the middle of a partition.

A new owner reads from the low-water mark to the end without acting. `Restoring` collects what it reads, run by run, and
looks at headers only: acceptance needs no more, and a run whose TaskReported is accepted is done and forgotten, its
bodies never decoded. What is left at the end is folded.

A run met in mid-log has no base; it gets one from a checkpoint (design section 5). A checkpoint is adopted if the
reader has read from its as-of offset on and no decision between there and the checkpoint follows the same decision;
then it overrides even a state begun by a RunRequested, which can only be a repeated one. A checkpoint of the loser of
two owners always has such a rival before it. Records from the as-of offset on are folded on top.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from runfold.core.checkpoint import unpacked
from runfold.core.ended import BASES, Ended, after_end, end_of, ends
from runfold.core.fold import leave_out, take
from runfold.core.state import RunState, late_id
from runfold.events.envelope import Record
from runfold.events.types import RunCheckpointed, RunParked, RunUnparked

# What may stand before the beginning of a run.
EARLY_FACTS = frozenset({"CancelRequested", "PauseRequested", "ResumeRequested", "MessageReceived", "CloseRequested"})
# Decodes a record's body in place; leaves None where it cannot. What it raises is never the record's fault.
Opener = Callable[[Record], None]


@dataclass(slots=True)
class Kept:
    """The records of one run since the mark, and its chain as far as headers tell."""

    records: list[Record] = field(default_factory=list)
    last: str = ""


@dataclass(slots=True)
class Restored:
    """One run as the log shows it."""

    state: RunState
    base_offset: int  # reading from here gives the same state again
    base_time_ms: int  # of what stands there
    is_carried: bool = False  # by a checkpoint
    bytes: int = 0  # of the records since there


@dataclass(slots=True)
class Restoring:
    """One partition on its way to being live."""

    mark: int
    kept: dict[str, Kept] = field(default_factory=dict)
    finished: dict[str, Ended] = field(default_factory=dict)
    baseless: dict[str, list[Record]] = field(default_factory=dict)
    is_away: Callable[[str], bool] = field(default=lambda _: False)  # known to be parked, perhaps before the mark
    away: set[str] = field(default_factory=set)  # found to be so, after `runs`
    late: dict[str, Record] = field(default_factory=dict)  # reports after their run's end, by id
    recorded: set[str] = field(default_factory=set)  # ids of LateReportRecorded

    def take(self, record: Record) -> None:
        """Keep one record of a run. Cheap: this runs for every record of the distance."""
        run = self.kept.get(record.run_id)
        if run is None:
            ended = self.finished.get(record.run_id)
            if ended is not None and record.type != "RunUnparked":
                if record.type in BASES:
                    ended.repeated_at = record.offset
                self._keep_late([record])
                return
            run = self.kept[record.run_id] = Kept()
        run.records.append(record)
        if record.follows is None:
            if not run.last and record.type in BASES:
                run.last = record.event_id
        elif run.last and record.follows == run.last:
            run.last = record.event_id
            if record.type == "TaskReported":
                self.finished[record.run_id] = Ended(record.time_ms, record.offset)
                del self.kept[record.run_id]
                self._keep_late(after_end(run.records))

    def _keep_late(self, records: Iterable[Record]) -> None:
        for record in records:
            if record.type == "ToolReported":
                self.late[record.event_id] = record
            elif record.type == "LateReportRecorded":
                self.recorded.add(record.event_id)

    def late_reports(self) -> list[Record]:
        """Reports that came after their run's end, and are not recorded as late yet."""
        return [record for report, record in self.late.items() if late_id(report) not in self.recorded]

    def runs(self, opened: Opener, set_aside: Callable[[str, str], None]) -> Iterable[tuple[str, Restored]]:
        """Every run that is still going on, folded; early facts count as a run without a base.

        One that cannot be rebuilt at all is handed to `set_aside` with the reason; the others go on. Raises what
        `opened` raises: a schema registry that does not answer is no reason to set a run aside. May be asked again, when
        more was read.
        """
        self.baseless.clear()
        self.away.clear()
        for run_id, run in self.kept.items():
            ended = _ended_before(run)
            if ended is not None and not any(record.type == "RunCheckpointed" for record in run.records):
                self._over(run_id, run, ended)
                continue
            open_all(run.records, opened)
            try:
                restored = rebuilt(run_id, run.records, self.mark)
            except Exception as error:  # noqa: BLE001  one bad run must not stop its partition
                set_aside(run_id, f"{type(error).__name__}: {error}")
                continue
            if ended is not None and not restored.is_carried:
                self._over(run_id, run, ended)
            elif restored.state.reported:
                self._over(run_id, run, end_of(run.records) or Ended(run.records[-1].time_ms, run.records[-1].offset))
            elif not restored.is_carried and self._is_parked_before(run_id, run.records):
                self.baseless[run_id] = run.records
                self.away.add(run_id)
            elif restored.state.last or _only_early_facts(run.records):
                yield run_id, restored
            else:
                self.baseless[run_id] = run.records

    def _over(self, run_id: str, run: Kept, ended: Ended) -> None:
        self.finished[run_id] = ended
        self._keep_late(after_end(run.records))

    def _is_parked_before(self, run_id: str, records: list[Record]) -> bool:
        """Was the run set aside, and does it need records from before the mark? Then a request seen here repeats the
        true one, or lacks the early facts before it."""
        bases = [record.body.base_offset for record in records if isinstance(record.body, RunParked)]
        return min(bases) < self.mark if bases else self.is_away(run_id)

    def without_base(self) -> list[str]:
        """Runs, after `runs`, whose beginning is gone and whose end was not seen: they may be lost."""
        return [run_id for run_id, records in self.baseless.items() if not ends(records)]

    def wants_whole_log(self) -> bool:
        """Somebody unparks a run whose base lies before the mark."""
        return any(record.type == "UnparkRequested" for records in self.baseless.values() for record in records)


def _ended_before(run: Kept) -> Ended | None:
    """The end of a run that began before the mark, where a repeated request would look like a fresh beginning.

    Nothing ever follows a repeated request, and TaskReported is appended only for a run that has ended: a window with
    a TaskReported, in which nothing follows the first request, is one of a finished run; unless a checkpoint in it
    tells the true state, on which that TaskReported may be void.
    """
    first = next((record for record in run.records if record.type in BASES), None)
    is_followed = first is not None and any(record.follows == first.event_id for record in run.records)
    return None if is_followed else end_of(run.records)


def open_all(records: Iterable[Record], opened: Opener) -> None:
    for record in records:
        if record.body is None:
            opened(record)


def rebuilt(run_id: str, records: list[Record], mark: int) -> Restored:
    """The state of one run from its opened records since the mark."""
    skipped = {offset for record in records if isinstance(record.body, RunUnparked) for offset in record.body.skipped}
    restored = _folded(run_id, records, mark, skipped)
    asked = restored.state.unpark
    while asked is not None and asked.mode == "skip" and restored.state.halt is not None:
        bad = restored.state.halt.offset
        if bad in skipped or not any(record.body is asked and record.offset > bad for record in records):
            break  # skipping it does not help; or it came after the operator spoke, and nobody chose to skip it
        skipped.add(bad)
        restored = _folded(run_id, records, mark, skipped)
        restored.state.skipped = tuple(sorted(skipped))
        asked = restored.state.unpark
    return restored


def _folded(run_id: str, records: list[Record], mark: int, skipped: set[int]) -> Restored:
    start = _adopted(records, mark) or Restored(RunState(run_id=run_id), records[0].offset, records[0].time_ms)
    state = start.state
    for record in records:
        if record.offset < start.base_offset:
            continue
        start.bytes += len(record.value)
        if record.offset in skipped:
            leave_out(state, record)
        else:
            take(state, record)
    return start


def _adopted(records: list[Record], mark: int) -> Restored | None:
    """The newest whole checkpoint that may be trusted, if any."""
    for index in range(len(records) - 1, -1, -1):
        body = records[index].body
        if isinstance(body, RunCheckpointed) and body.part == body.parts:
            found = _whole(records, index)
            if found is not None and found[0].as_of_offset >= mark:
                first, payload, first_record = found
                if not _has_rival(records, first.as_of_offset, first_record):
                    state = unpacked(payload)
                    state.last = first_record.follows or ""
                    return Restored(state, first.as_of_offset, first_record.time_ms, is_carried=True)
    return None


def _whole(records: list[Record], index: int) -> tuple[RunCheckpointed, bytes, Record] | None:
    """The parts that end with this record, each following the one before: (first part, payload, its record)."""
    pieces: list[bytes] = []
    wanted_id: str | None = None
    for record in reversed(records[: index + 1]):
        body = record.body
        if wanted_id is not None and record.event_id != wanted_id:
            continue
        if not isinstance(body, RunCheckpointed):
            return None
        pieces.append(body.state)
        if body.part == 1:
            return body, b"".join(reversed(pieces)), record
        wanted_id = record.follows
    return None


def _has_rival(records: list[Record], as_of_offset: int, checkpoint: Record) -> bool:
    return any(
        record.follows == checkpoint.follows and as_of_offset <= record.offset < checkpoint.offset for record in records
    )


def _only_early_facts(records: list[Record]) -> bool:
    """Nothing but what may stand before a RunRequested. Anything else without a base is what is left of a finished run.

    A fact that cannot be read says nothing either way: somebody's garbage must not make a cancel be forgotten.
    """
    readable = [record for record in records if record.body is not None or record.follows is not None]
    return bool(readable) and all(record.type in EARLY_FACTS and record.follows is None for record in readable)
