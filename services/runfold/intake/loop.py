"""The intake's loop: requests in, first facts of runs out.

For each partition of task-requests it owns, it first reads the same partition of task-completions to its end, and goes
on following it: an id that is there has ended, and its repeated request starts nothing. A request's place is committed
only when what became of it was acknowledged by Kafka: a crash repeats the append, and the executor takes a run's first
RunRequested only.

How a repeat could start a run twice, and why it does not. The executor forgets an ended id 60 s after its end; from
then on only the completions know it. So a request is taken only while its partition's completions were read to an end
that Kafka named at most `FRESH_MS` before, and what was sent lands within 30 s (the delivery time-out) or is reported
as of unknown fate; then the whole request is taken anew, completions first. A process that was stopped for a minute
finds, when it wakes, that its reading is stale. 10 s + 30 s < 60 s.

A request that lies in another partition than its id's (its producer uses another partitioner, or no key) is sent to
the right one first: there, and only there, its completion would be found.

Event ids are random. The identity of a RunRequested is its run, so an id made of the request's place would protect from
nothing; and a recreated topic has the same places again. Within this process, a request keeps its id when it is sent
again.
"""

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile

from runfold.events.codec import Codec, Undecodable
from runfold.events.envelope import new_event_id
from runfold.events.partitioner import murmur2_partition
from runfold.events.types import CancelRequested, RunRequested, TaskCompleted
from runfold.intake.finished import FinishedIds
from runfold.intake.ports import Fate, Outgoing, RequestLog
from runfold.intake.requests import Understood, Unreadable, understand
from runfold.intake.writer import Writer, is_cancel, reroutes
from runfold.ports import Blobs, Clock, Delivery, Transient

FRESH_MS = 10_000  # see above
REST_MS = 1_000  # before a request is sent again
OPEN_MAX = 10_000  # requests of a partition that are not settled yet
COMMIT_MS = 500  # a commit for each request cost the broker as much as the request; a crash repeats what is harmless
BUSY_S = 0.02  # how long to wait for requests while something else is awaited too
REROUTES_MAX = 3
ASTRAY = "it was sent to its own partition and is in another again: do all intakes see the same number of partitions?"
OTHER_BODY = "task id exists with another body"
SETTLED = ""


@dataclass(slots=True)
class Owned:
    """One partition of task-requests."""

    number: int
    finished: FinishedIds = field(default_factory=FinishedIds)
    waiting: deque[Delivery] = field(default_factory=deque)  # read, and not taken yet; in order
    cancels: dict[bytes | None, Delivery] = field(default_factory=dict)  # of those that wait, by key
    open: dict[int, str] = field(default_factory=dict)  # offset of each taken one: its event id, or SETTLED
    must_see: int | None = None  # the end of the completions that is being read up to
    asked_at_ms: int = 0  # when Kafka was asked for it
    fresh_at_ms: int | None = None  # completions were read to the end as it was then; None: never yet
    rests_until_ms: int = 0
    is_held: bool = True

    @property
    def is_open(self) -> bool:
        """Is something on its way to Kafka?"""
        return any(event_id != SETTLED for event_id in self.open.values())

    def is_fresh(self, now_ms: int) -> bool:
        return self.fresh_at_ms is not None and now_ms - self.fresh_at_ms < FRESH_MS

    def may_take(self, now_ms: int) -> bool:
        return self.is_fresh(now_ms) and now_ms >= self.rests_until_ms and len(self.open) < OPEN_MAX


@dataclass(slots=True)
class Intake:
    """`step` is one tick; `main.py` calls it until it is told to stop."""

    log: RequestLog
    codec: Codec
    blobs: Blobs
    clock: Clock
    name: str
    tell: Callable[[str], None]
    counts: Counter[str] = field(default_factory=Counter)  # started, rejected, repeated, cancelled, late_cancels, …
    partitions: dict[int, Owned] = field(default_factory=dict)
    commit_ms: int = COMMIT_MS
    _committed_at_ms: int = 0
    _is_blind: bool = False  # Kafka does not say where the completions end; it was told
    _writer: Writer = field(init=False)

    def __post_init__(self) -> None:
        self._writer = Writer(
            codec=self.codec, clock=self.clock, source=f"/runfold/intake/{self.name}", topic=self.log.topic
        )

    def open(self) -> None:
        self.log.open(self)

    def step(self, timeout_s: float = 0.5) -> int:
        """Read completions and requests that came, take what may be taken. Answers how many requests were read."""
        self._follow()
        requests = self.log.poll(BUSY_S if self._is_busy() else timeout_s)
        for request in requests:
            owned = self.partitions.get(request.partition)
            if owned is not None:
                owned.waiting.append(request)
                if is_cancel(request.headers):
                    owned.cancels[request.key] = request
        self._freshen()
        for owned in list(self.partitions.values()):
            self._serve(owned)
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._committed_at_ms >= self.commit_ms:
            self._committed_at_ms = now_ms
            self._commit(list(self.partitions.values()), wait=False)
        return len(requests)

    def close(self) -> None:
        self.log.close()  # it revokes first

    # ---- called by the log

    def on_assigned(self, partitions: Sequence[int]) -> None:
        """Ours now. Requests are held until the completions that there are now were read."""
        for number in partitions:
            self.partitions[number] = Owned(number)
            self.log.hold(number)

    def on_revoked(self, partitions: Sequence[int], *, lost: bool) -> None:
        if not lost:
            self.log.flush()
        leaving = [self.partitions.pop(number) for number in partitions if number in self.partitions]
        if not lost:
            self._commit(leaving, wait=True)

    def on_truncated(self, partition: int) -> None:
        self.tell(f"partition {partition}: requests that were not read yet are gone; reading on from its start")
        known = self.partitions.get(partition)
        if known is not None:
            self.partitions[partition] = Owned(partition, known.finished)
            self.log.hold(partition)

    # ---- the memory of ended ids

    def _follow(self) -> None:
        for completion in self.log.completions():
            owned = self.partitions.get(completion.partition)
            if owned is not None and completion.key is not None:
                self._remember(owned, completion.key.decode("utf-8", "replace"), completion)

    def _remember(self, owned: Owned, task_id: str, completion: Delivery) -> None:
        if completion.value is None:
            owned.finished.deleted(task_id)
            return
        digest = ""
        try:
            event = self.codec.decode(completion.value)
            if isinstance(event, TaskCompleted):
                digest = event.request_digest
        except Undecodable as error:
            place = f"completion {completion.partition}/{completion.offset}"
            self.tell(f"{place} cannot be decoded ({error}); its id still counts as finished")
        owned.finished.ended(task_id, digest)

    def _freshen(self) -> None:
        """See to it that whoever has something to take has read the completions up to now."""
        now_ms = self.clock.monotonic_ms()
        stale = [
            owned
            for owned in self.partitions.values()
            if owned.must_see is None and (owned.fresh_at_ms is None or (owned.waiting and not owned.is_fresh(now_ms)))
        ]
        if stale:
            try:
                ends = self.log.completions_end([owned.number for owned in stale])
            except Transient as error:
                if not self._is_blind:
                    self.tell(f"requests wait until the completions can be read: {error}")
                self._is_blind = True
                return
            self._is_blind = False
            for owned in stale:
                owned.must_see, owned.asked_at_ms = ends[owned.number], now_ms
            self._follow()
        for owned in self.partitions.values():
            if owned.must_see is not None and self.log.completions_read(owned.number) >= owned.must_see:
                owned.fresh_at_ms, owned.must_see = owned.asked_at_ms, None

    # ---- requests

    def _is_busy(self) -> bool:
        owned = self.partitions.values()
        return not owned or any(each.waiting or each.is_open or each.fresh_at_ms is None for each in owned)

    def _serve(self, owned: Owned) -> None:
        while owned.waiting and owned.may_take(self.clock.monotonic_ms()):
            request = owned.waiting.popleft()
            self._take(owned, request)
        if not owned.waiting:
            owned.cancels.clear()
        must_hold = bool(owned.waiting) or owned.fresh_at_ms is None
        if must_hold != owned.is_held:
            owned.is_held = must_hold
            (self.log.hold if must_hold else self.log.release)(owned.number)

    def _cancel_first(self, owned: Owned, request: Delivery) -> None:
        """A task whose cancel waits behind it is not to be begun: the cancel stands first. Its own turn repeats it, which
        counts once."""
        cancel = owned.cancels.pop(request.key, None)
        if cancel is None or cancel.offset <= request.offset:
            return
        place = f"{cancel.partition}-{cancel.offset}"
        meant = understand(self.codec, cancel.key, cancel.value, cancel.headers, place)
        if isinstance(meant.event, CancelRequested) and not owned.finished.is_ended(meant.task_id):
            self.log.send(self._writer.fact(meant.task_id, meant.event, new_event_id(), cancel), lambda *_: None)

    def _take(self, owned: Owned, request: Delivery) -> None:
        event_id = owned.open.setdefault(request.offset, new_event_id())
        place = f"{request.partition}-{request.offset}"
        meant = understand(self.codec, request.key, request.value, request.headers, place)
        settled = partial(self._settled, owned, request, meant)
        if isinstance(meant.event, RunRequested):
            self._cancel_first(owned, request)
        try:
            counted, outgoing = self._answer(owned, request, meant, event_id)
        except OSError as error:  # the blob store: disk full, folder gone
            settled("", Fate.UNKNOWN, f"its input could not be stored: {error}")
            return
        if outgoing is None:
            settled(counted, Fate.DONE, "")
        else:
            self.log.send(outgoing, partial(settled, counted))

    def _answer(self, owned: Owned, request: Delivery, meant: Understood, event_id: str) -> tuple[str, Outgoing | None]:
        """How the request counts, and what is to be sent for it."""
        task_id, event = meant.task_id, meant.event
        if isinstance(event, Unreadable):
            return "quarantined", self._writer.quarantined(request, event.reason)
        right = murmur2_partition(task_id.encode(), self.log.partitions)
        if right != request.partition:
            times = reroutes(request.headers)
            if times >= REROUTES_MAX:
                return "quarantined", self._writer.quarantined(request, ASTRAY)
            return "rerouted", self._writer.rerouted(request, task_id, right, times + 1)
        if isinstance(event, CancelRequested):
            if owned.finished.is_ended(task_id):
                return "late_cancels", None
            return "cancelled", self._writer.fact(task_id, event, event_id, request)
        if owned.finished.has_other_body(task_id, event.request_digest):
            reason = OTHER_BODY if event.problem is None else f"{OTHER_BODY}; this one: {event.problem}"
            return "quarantined", self._writer.quarantined(request, reason)
        if owned.finished.is_known(task_id):
            return "repeated", None
        if meant.payload is not None:
            self.blobs.put(meant.payload)
        owned.finished.began(task_id, event.request_digest)
        return ("started" if event.problem is None else "rejected"), self._writer.fact(
            task_id, event, event_id, request
        )

    def _settled(
        self, owned: Owned, request: Delivery, meant: Understood, counted: str, fate: Fate, words: str
    ) -> None:
        place = f"request {request.partition}/{request.offset}"
        began = isinstance(meant.event, RunRequested) and counted in ("started", "rejected")
        if fate is Fate.DONE:
            self.counts[counted] += 1
            owned.open[request.offset] = SETTLED
            return
        if began and owned.finished.is_known(meant.task_id):
            owned.finished.did_not_begin(meant.task_id)
        if fate is Fate.UNKNOWN:
            self.tell(f"{place} is taken again: {words}")
            insort(owned.waiting, request, key=_offset)
            owned.rests_until_ms = self.clock.monotonic_ms() + REST_MS
        elif counted != "refused":
            self.tell(f"{place} goes to quarantine: {words}")
            outgoing = self._writer.quarantined(request, f"Kafka refused what became of it: {words}", with_record=False)
            self.log.send(outgoing, partial(self._settled, owned, request, meant, "refused"))
        else:  # not even its place and the reason; the record itself stays in its topic
            self.tell(f"{place} cannot be quarantined, and is passed: {words}")
            owned.open[request.offset] = SETTLED

    def _commit(self, partitions: Sequence[Owned], *, wait: bool) -> None:
        """Commit, for each partition, the first request that is not settled yet."""
        positions = {}
        for owned in partitions:
            settled = list(takewhile(lambda offset: owned.open[offset] == SETTLED, owned.open))  # noqa: B023  used at once
            for offset in settled:
                del owned.open[offset]
                positions[owned.number] = offset + 1
        if positions:
            self.log.commit(positions, wait=wait)


def _offset(request: Delivery) -> int:
    return request.offset
