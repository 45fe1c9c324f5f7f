"""What the last records of a run say about its end, without folding them: headers are enough.

A new owner meets most runs only here. Their ids are remembered for a while, so that a repeated request begins nothing,
and a report that came too late is still recorded as late.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from runfold.events.envelope import Record

BASES = frozenset({"RunRequested", "RunLost"})  # what a run may begin with


@dataclass(slots=True)
class Ended:
    """A run that is over: remembered while a repeated request of it may still come, or may be read again."""

    time_ms: int
    offset: int  # of its TaskReported
    repeated_at: int = -1  # offset of the last request that repeats it


def end_of(records: list[Record]) -> Ended | None:
    """The last TaskReported, and the last request after it."""
    ended: Ended | None = None
    for record in records:
        if record.type == "TaskReported":
            ended = Ended(record.time_ms, record.offset)
        elif ended is not None and record.type in BASES:
            ended.repeated_at = record.offset
    return ended


def after_end(records: list[Record]) -> Iterator[Record]:
    """Reports of a run that is over, from after its RunFinished; all there are, if that lies before the mark."""
    wanted = next((record.event_id for record in reversed(records) if record.type == "TaskReported"), None)
    for record in reversed(records):
        if record.event_id == wanted:
            if record.type == "RunFinished":
                return
            wanted = record.follows
        elif record.type in ("ToolReported", "LateReportRecorded"):
            yield record


def ends(records: list[Record]) -> bool:
    """Does the longest chain in these records end with TaskReported, or is nothing of a chain left?"""
    decisions = [record for record in records if record.follows is not None]
    return not decisions or any(record.type == "TaskReported" for record in decisions)
