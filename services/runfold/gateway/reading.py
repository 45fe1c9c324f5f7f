"""The read side, until there are projections: every run of the log, folded as it goes on.

One thread follows all partitions of run-events from their beginning and folds each run by the executor's own rules of
acceptance, so that no two readers disagree. It is ready when it has read to the end that it saw at its start.

What it costs. A run that goes on: its state, which is its transcript (some tens of KB as a rule, a few MB at most), and
what has come of the text that its model is writing. A run that ended: 5 KB for each of the latest `RECENT_MAX`, its
result up to 4,096 characters beside; 300 bytes for each older one, which is read again when somebody asks for it, from
its first to its last offset; beyond `ENDED_MAX` the oldest is forgotten. Starting costs one reading of the log: 13 µs a
record (measured), beside what Kafka's client takes for it. A run whose beginning has left the log is known by its next
checkpoint; if its request was repeated in between, it is known wrongly until then.

Threads: `step` is called by one; everything else may be called by any, and takes the lock.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from runfold.core.fold import Taken
from runfold.core.state import Halt
from runfold.events.codec import Codec, Undecodable
from runfold.events.envelope import NotAnEvent, Record, read_envelope
from runfold.events.types import ModelFailed, ModelReplied, TaskCompleted
from runfold.gateway.ports import Feed, History
from runfold.gateway.tracked import Tracked
from runfold.gateway.watching import Shown, Watch
from runfold.ports import Delivery

T = TypeVar("T")
ENDED_MAX = 1_000_000  # ended runs that are known by their offsets: 300 MB
RECENT_MAX = 10_000  # of these, with what people ask about most: 50 MB, results beside
RESULT_CHARS_KEPT = 4_096
TEXT_RECORDS_MAX = 4_000  # of one model call that is being written: a reply has at most 600 KiB, 1 KB or so a record


class Span(NamedTuple):
    """Where a run that ended stands in the log."""

    partition: int
    first: int
    last: int
    log_start: int
    skipped: frozenset[int]


class Joined(NamedTuple):
    """What somebody who begins to follow a run must be told first."""

    span: Span
    texts: list[Delivery]
    writing: str  # model call whose text is being written; empty if none


@dataclass(slots=True)
class Reading:
    """Every run of the log: those that go on, and those that ended."""

    feed: Feed
    history: History
    codec: Codec
    tell: Callable[[str], None]
    lock: threading.Lock = field(default_factory=threading.Lock)
    active: dict[str, Tracked] = field(default_factory=dict)
    ended: OrderedDict[str, Span] = field(default_factory=OrderedDict)
    recent: OrderedDict[str, Tracked] = field(default_factory=OrderedDict)
    records_skipped: int = 0
    failed: str = ""  # why this process reads no further
    _goal: dict[int, int] | None = None  # what must be read before it is ready
    _starts: dict[int, int] = field(default_factory=dict)  # first offset that was there, by partition
    _stamps: dict[int, int] = field(default_factory=dict)  # largest append stamp so far
    _positions: dict[int, int] = field(default_factory=dict)
    _texts: dict[str, deque[Delivery]] = field(default_factory=dict)  # by run, for those who join in the middle
    _watches: dict[str, list[Watch]] = field(default_factory=dict)

    # ---- the reading thread

    def step(self, timeout_s: float = 0.5) -> None:
        """Take what came."""
        if self._goal is None:
            self._goal = dict(self.feed.ends())
        events, stream = self.feed.poll(timeout_s)
        with self.lock:
            for each in events:
                self._take(each)
            for each in stream:
                self._show(each)
            self._positions = dict(self.feed.positions)
            for watch in [watch for watches in self._watches.values() for watch in watches if watch.wants_position]:
                watch.wake()

    def _take(self, found: Delivery) -> None:
        self._starts.setdefault(found.partition, found.offset)
        record = self._read(found)
        if record is None or not record.run_id:
            return
        span = self.ended.get(record.run_id)
        if span is not None:
            self.ended[record.run_id] = span._replace(last=record.offset)
        tracked = self.active.get(record.run_id) if span is None else self.recent.get(record.run_id)
        if tracked is None and span is None:
            tracked = self.active[record.run_id] = self._new(record)
        taken = self._fold(tracked, record) if tracked is not None else None
        if tracked is not None and tracked.is_stale:
            tracked = self.active[record.run_id] = self._refolded(record.run_id, self._span(tracked))
        if span is None and tracked is not None and tracked.state.reported:
            self._end(tracked)
        if isinstance(record.body, ModelReplied | ModelFailed):
            self._texts.pop(record.run_id, None)  # the reply is there, or the next attempt begins anew
        for watch in self._watches.get(record.run_id, ()):
            watch.put(record, taken)

    def _fold(self, tracked: Tracked, record: Record, *, again: bool = False) -> Taken | None:
        """A fault that one run meets sets this run aside, as a record that cannot be folded does; the others go on."""
        try:
            return tracked.take(record)
        except Exception as error:  # noqa: BLE001  whatever a bug leads to
            reason = f"{record.type} at {record.partition}/{record.offset}: {type(error).__name__}: {error}"
            tracked.state.halt = Halt(offset=record.offset, reason=reason)
            self._skip(f"run {record.run_id} is not followed any further: {reason}", again=again)
            return None

    def _new(self, record: Record) -> Tracked:
        return Tracked(record.run_id, record.partition, record.offset, self._starts.get(record.partition, 0))

    def _end(self, tracked: Tracked) -> None:
        run_id = tracked.run_id
        del self.active[run_id]
        self._texts.pop(run_id, None)
        self.ended[run_id] = self._span(tracked)
        self._keep(tracked)
        while len(self.ended) > ENDED_MAX:
            forgotten, _ = self.ended.popitem(last=False)
            self.recent.pop(forgotten, None)

    def _keep(self, tracked: Tracked) -> None:
        completion = tracked.completion
        tracked.slim()
        if completion is not None and len(completion.result or "") > RESULT_CHARS_KEPT:
            tracked.completion = None  # read again when somebody wants it
        self.recent[tracked.run_id] = tracked
        while len(self.recent) > RECENT_MAX:
            self.recent.popitem(last=False)

    def _span(self, tracked: Tracked) -> Span:
        return Span(tracked.partition, tracked.first, tracked.last, tracked.log_start, tracked.skipped)

    def _read(self, found: Delivery, *, again: bool = False) -> Record | None:
        """The record, its body open; one that cannot be read is passed, visibly."""
        time_ms = max(self._stamps.get(found.partition, 0), found.time_ms) if not again else found.time_ms
        if not again:
            self._stamps[found.partition] = time_ms
        place = f"{found.partition}/{found.offset}"
        try:
            record = read_envelope(found.partition, found.offset, time_ms, found.key, found.value, found.headers)
        except NotAnEvent as error:
            self._skip(f"{place} is passed: {error}", again=again)
            return None
        try:
            record.body = self.codec.decode(record.value)
        except Undecodable as error:
            self._skip(f"{place}, {record.type} of {record.run_id}, cannot be read: {error}", again=again)
        return record

    def _skip(self, text: str, *, again: bool) -> None:
        if not again:
            self.records_skipped += 1
            self.tell(text)

    # ---- text while it is written

    def _show(self, found: Delivery) -> None:
        run_id = (found.key or b"").decode("utf-8", "replace")
        if run_id not in self.active:
            return
        kept = self._texts.setdefault(run_id, deque(maxlen=TEXT_RECORDS_MAX))
        kept.append(found)
        watches = self._watches.get(run_id)
        shown = self.shown(found) if watches else None
        for watch in watches or ():
            if shown is not None:
                watch.put(shown, None)

    def shown(self, found: Delivery) -> Shown | None:
        try:
            return Shown(self.codec.decode(found.value or b""))
        except Undecodable:
            return None  # for eyes only: nobody misses it

    # ---- looking back

    def refold(self, run_id: str, span: Span) -> Generator[tuple[Tracked, Record, Taken | None], None, None]:
        """The run's events, read and folded again up to the span's end. Waits for Kafka; raises Transient."""
        tracked = Tracked(run_id, span.partition, span.first, span.log_start, span.skipped)
        for found in self.history.read(span.partition, span.first, span.last + 1, run_id.encode()):
            found.time_ms = max(found.time_ms, tracked.last_ms)
            record = self._read(found, again=True)
            if record is not None:
                yield tracked, record, self._fold(tracked, record, again=True)

    def _refolded(self, run_id: str, span: Span) -> Tracked:
        while True:
            tracked = Tracked(run_id, span.partition, span.first, span.log_start, span.skipped)
            for each, _, _ in self.refold(run_id, span):
                tracked = each
            if not tracked.is_stale:
                return tracked
            span = span._replace(skipped=tracked.skipped)

    def look(self, run_id: str, view: Callable[[Tracked, int], T]) -> T | None:
        """What `view` makes of the run and the position of its partition; None if the log has no such run.

        May wait for Kafka, and raises Transient: an ended run may have to be read again.
        """
        while True:
            with self.lock:
                tracked = self.active.get(run_id) or self.recent.get(run_id)
                span = self.ended.get(run_id)
                if tracked is not None:
                    return view(tracked, self._positions.get(tracked.partition, 0)) if tracked.is_known else None
            if span is None:
                return None
            tracked = self._refolded(run_id, span)
            with self.lock:
                if self.ended.get(run_id) == span:
                    self._keep(tracked)

    def completion(self, run_id: str) -> TaskCompleted | None:
        """The completion of a run that has ended, its result whole. May wait for Kafka."""
        with self.lock:
            tracked = self.active.get(run_id) or self.recent.get(run_id)
            span = self.ended.get(run_id)
            if tracked is not None and tracked.completion is not None:
                return tracked.completion
        return None if span is None else self._refolded(run_id, span).completion

    def story(self, run_id: str) -> tuple[Span, int] | None:
        """Where the run's events stand, and the position of its partition."""
        with self.lock:
            return self._story(run_id)

    def _story(self, run_id: str) -> tuple[Span, int] | None:
        tracked, span = self.active.get(run_id), self.ended.get(run_id)
        if tracked is not None and tracked.is_known:
            span = self._span(tracked)
        return None if span is None else (span, self._positions.get(span.partition, 0))

    # ---- following

    def is_ready(self) -> bool:
        goal = self._goal
        return not self.failed and goal is not None and all(self._positions.get(n, 0) >= end for n, end in goal.items())

    def wake_all(self) -> None:
        """Everybody who waits looks up: the gateway stops."""
        with self.lock:
            for watch in [watch for watches in self._watches.values() for watch in watches]:
                watch.wake()

    def position(self, partition: int) -> int:
        return self._positions.get(partition, 0)

    def has_read(self, run_id: str, offset: int) -> bool:
        """Was the run's record at this offset folded?"""
        with self.lock:
            tracked, span = self.active.get(run_id), self.ended.get(run_id)
            last = tracked.last if tracked is not None else span.last if span is not None else -1
            return last >= offset

    @contextmanager
    def watching(self, run_id: str, watch: Watch) -> Iterator[Watch]:
        """Hand this run's records to `watch` as they are folded."""
        with self.lock:
            self._watches.setdefault(run_id, []).append(watch)
        try:
            yield watch
        finally:
            with self.lock:
                watches = self._watches[run_id]
                watches.remove(watch)
                if not watches:
                    del self._watches[run_id]

    def joined(self, run_id: str, watch: Watch) -> Joined | None:
        """For a watch that is there already: the events before those that it is handed, and the text so far.

        What the watch was handed until now is in them, and is taken from it.
        """
        with self.lock:
            watch.clear()
            found = self._story(run_id)
            if found is None:
                return None
            tracked = self.active.get(run_id)
            call = tracked.state.call if tracked is not None else None
            is_open = call is not None and tracked is not None and call.id not in tracked.state.replied
            return Joined(found[0], list(self._texts.get(run_id, ())), call.id if call is not None and is_open else "")
