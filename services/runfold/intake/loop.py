"""The intake's loop: requests in, first facts of runs out.

For each partition of task-requests it owns, it first reads the same partition of task-completions to its end, and goes
on following it: an id that is there has ended, and its repeated request starts nothing. A request's place is committed
only when what became of it was acknowledged by Kafka: a crash repeats the append, and the executor takes a run's first
RunRequested only.

A request that lies in another partition than its id's (its producer uses another partitioner, or no key) is sent to
the right one first: there, and only there, its completion would be found.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from runfold.core.limits import RECORD_BYTES_MAX
from runfold.events.codec import Codec, Undecodable
from runfold.events.envelope import HeaderWriter, new_event_id
from runfold.events.partitioner import murmur2_partition
from runfold.events.types import CancelRequested, Quarantined, RunRequested, TaskCompleted
from runfold.intake.finished import FinishedIds
from runfold.intake.ports import Acknowledged, RequestLog
from runfold.intake.requests import Unreadable, understand
from runfold.ports import Blobs, Clock, Delivery

QUARANTINED_BYTES_MAX = 256 * 1024
REROUTED = "runfold-rerouted"


@dataclass(slots=True)
class Counts:
    requests: int = 0
    started: int = 0
    rejected: int = 0
    repeated: int = 0
    cancelled: int = 0
    rerouted: int = 0
    quarantined: int = 0


@dataclass(slots=True)
class Owned:
    """One partition of task-requests."""

    finished: FinishedIds = field(default_factory=FinishedIds)
    open: dict[int, bool] = field(default_factory=dict)  # offset: acknowledged, in order of reading
    position: int = -1  # everything before was acknowledged


@dataclass(slots=True)
class Intake:
    log: RequestLog
    codec: Codec
    blobs: Blobs
    clock: Clock
    name: str
    tell: Callable[[str], None]
    counts: Counts = field(default_factory=Counts)
    partitions: dict[int, Owned] = field(default_factory=dict)
    _headers: HeaderWriter = field(init=False)

    def __post_init__(self) -> None:
        self._headers = HeaderWriter(f"/runfold/intake/{self.name}")

    def open(self) -> None:
        self.log.open(self)

    def step(self, timeout_s: float = 0.5) -> int:
        """Read completions that came, then requests; answer how many requests were read."""
        for completion in self.log.completions():
            self.on_completion(completion)
        requests = self.log.poll(timeout_s)
        for request in requests:
            owned = self.partitions.get(request.partition)
            if owned is not None:
                self._take(owned, request)
        self.commit(wait=False)
        return len(requests)

    def close(self) -> None:
        self.log.flush()
        self.commit(wait=True)
        self.log.close()

    def commit(self, *, wait: bool) -> None:
        """Commit, for each partition, the first request that was not acknowledged yet."""
        positions = {}
        for number, owned in self.partitions.items():
            done = _leading(owned.open)
            if done:
                for offset in done:
                    del owned.open[offset]
                owned.position = done[-1] + 1
                positions[number] = owned.position
        if positions:
            self.log.commit(positions, wait=wait)

    # ---- called by the log, inside `poll`

    def on_assigned(self, partitions: list[int]) -> None:
        """Ours now; before their first request their completions are read to the end that is seen now."""
        for number in partitions:
            self.partitions[number] = Owned()
        for completion in self.log.read_completions(partitions):
            self.on_completion(completion)

    def on_revoked(self, partitions: list[int]) -> None:
        self.log.flush()
        self.commit(wait=True)
        for number in partitions:
            self.partitions.pop(number, None)

    def on_completion(self, completion: Delivery) -> None:
        owned = self.partitions.get(completion.partition)
        if owned is None or completion.key is None:
            return
        digest = ""
        try:
            event = self.codec.decode(completion.value or b"")
            if isinstance(event, TaskCompleted):
                digest = event.request_digest
        except Undecodable as error:
            self.tell(
                f"completion {completion.partition}/{completion.offset}: {error}; its id still counts as finished"
            )
        owned.finished.ended(completion.key.decode("utf-8", "replace"), digest)

    # ---- one request

    def _take(self, owned: Owned, request: Delivery) -> None:
        self.counts.requests += 1
        owned.open[request.offset] = False

        def acknowledged(ok: bool) -> None:
            if ok:
                owned.open[request.offset] = True
            else:  # nothing is lost: the place is not committed, and the record is appended again
                self.tell(f"request {request.partition}/{request.offset} was not acknowledged; trying again")
                self._handle(owned, request, acknowledged)

        self._handle(owned, request, acknowledged)

    def _handle(self, owned: Owned, request: Delivery, acknowledged: Acknowledged) -> None:
        place = f"{request.partition}-{request.offset}"
        task_id, understood = understand(self.codec, self.blobs, request.key, request.value, place)
        if isinstance(understood, Unreadable):
            self._quarantine(request, understood.reason, acknowledged)
            return
        right = murmur2_partition(task_id.encode(), self.log.partitions)
        if right != request.partition and not _is_rerouted(request):
            self.counts.rerouted += 1
            headers = [*(request.headers or []), (REROUTED, b"1")]
            self.log.reroute(right, task_id, request.value or b"", headers, acknowledged)
            return
        if isinstance(understood, CancelRequested):
            if owned.finished.is_ended(task_id):
                acknowledged(True)
                return
            self.counts.cancelled += 1
        elif not self._is_new(owned, request, understood, acknowledged):
            return
        traceparent = next((value for name, value in request.headers or [] if name == "traceparent"), b"")
        headers = self._headers.fact(
            type(understood).__name__, new_event_id(), self.clock.wall_ms(), traceparent.decode("ascii", "replace")
        )
        self.log.append(task_id, self.codec.encode(understood), headers, acknowledged)

    def _is_new(self, owned: Owned, request: Delivery, asked: RunRequested, acknowledged: Acknowledged) -> bool:
        """Does this request begin a run? A repeat never does, and a malformed one must not replace a real completion."""
        if owned.finished.is_known(asked.task_id):
            if asked.problem is not None or owned.finished.has_other_body(asked.task_id, asked.request_digest):
                self._quarantine(request, asked.problem or "this task id exists with another body", acknowledged)
                return False
            if owned.finished.is_ended(asked.task_id):
                self.counts.repeated += 1
                acknowledged(True)
                return False
        owned.finished.began(asked.task_id, asked.request_digest)
        self.counts.started += asked.problem is None
        self.counts.rejected += asked.problem is not None
        return True

    def _quarantine(self, request: Delivery, reason: str, acknowledged: Acknowledged) -> None:
        self.counts.quarantined += 1
        event = Quarantined(
            topic=self.log.topic,
            partition=request.partition,
            offset=request.offset,
            reason=reason,
            key=(request.key or b"")[:RECORD_BYTES_MAX],
            value=(request.value or b"")[:QUARANTINED_BYTES_MAX],
            headers={name: value or b"" for name, value in request.headers or []},
        )
        event_id = f"quarantined-{self.log.topic}-{request.partition}-{request.offset}"
        headers = self._headers.fact("Quarantined", event_id, self.clock.wall_ms())
        key = (request.key or b"").decode("utf-8", "replace")[:1000]
        self.log.quarantine(key, self.codec.encode(event), headers, acknowledged)


def _is_rerouted(request: Delivery) -> bool:
    return any(name == REROUTED for name, _ in request.headers or [])


def _leading(open_requests: dict[int, bool]) -> list[int]:
    """Offsets of the acknowledged requests that no unacknowledged one stands before."""
    leading = []
    for offset, is_done in open_requests.items():
        if not is_done:
            break
        leading.append(offset)
    return leading
