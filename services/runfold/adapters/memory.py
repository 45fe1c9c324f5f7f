"""Kafka in memory, for tests and the simulation: one cluster, many processes, every fault switched by a harness.

A `MemoryKafka` is the cluster; each process has a `MemoryRunLog` (its consumer and producer) and a `MemoryOutbox`.
Nothing here has a clock, randomness or threads of its own: what happens, happens because the process or the harness
called a method, so that one seed repeats one history. The harness decides

- who owns a partition (`assign`, `move`, `take_over`), and whether the old owner knows it (a zombie does not);
- when an append lands: with `held` it waits in its process's queue for `land`; it may be lost (`lose`), or be reported
  as failed and land all the same (`report_failed`); a `crash` keeps a head of the queue, which may land much later;
- how much a poll returns (`batch_max`), and where the log begins (`truncate`);
- whether a completion lands, and whether its acknowledgement says so (`MemoryOutbox.settle`).

What Kafka promises is kept: records of one process to one partition keep their order, offsets have no gaps, a record
that landed stays, and commits of a process that does not own the partition are refused. A poll never waits.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock

from runfold.events.envelope import Headers
from runfold.ports import Committed, Delivery, InvariantViolation, LogIdentity, LogListener, Topic

NOTHING_COMMITTED = Committed(-1, "")


def hashed_partition(key: str, partitions: int) -> int:
    """A stable partition of a key. Not Kafka's: inject `murmur2` where the two must agree."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % partitions


@dataclass(slots=True)
class Append:
    """A record on its way."""

    partition: int
    key: str
    value: bytes
    headers: Headers


@dataclass(slots=True)
class MemoryPartition:
    """One partition as the broker has it. `records[i]` has offset i; those below `start` are gone."""

    number: int
    records: list[Delivery] = field(default_factory=list)
    start: int = 0
    committed: Committed = NOTHING_COMMITTED
    owner: "MemoryRunLog | None" = None  # in the coordinator's eyes
    next_owner: "MemoryRunLog | None" = None  # gets it as soon as the owner has let go

    @property
    def end(self) -> int:
        return len(self.records)


class MemoryKafka:
    """The cluster that the processes share. `clock_ms` gives append stamps; it may step back, as brokers' clocks do."""

    def __init__(
        self,
        partitions: int,
        clock_ms: Callable[[], int],
        *,
        partition_of: Callable[[str, int], int] = hashed_partition,
        identity: LogIdentity | None = None,
    ) -> None:
        self.partitions = [MemoryPartition(number) for number in range(partitions)]
        self.identity = identity or LogIdentity("memory", "run-events", partitions)
        self.completions: dict[str, tuple[bytes, Headers]] = {}  # compacted: the newest of each task
        self.completion_log: list[tuple[str, bytes, Headers]] = []  # all of them, in order
        self.requests: list[tuple[str, bytes, Headers]] = []  # of delegating runs, in order
        self.quarantined: list[tuple[str, bytes, Headers]] = []
        self.streamed: list[tuple[str, bytes, Headers]] = []
        self._clock_ms = clock_ms
        self._partition_of = partition_of
        self._lock = Lock()

    def partition_of(self, key: str) -> int:
        return self._partition_of(key, len(self.partitions))

    def land(self, append: Append) -> Delivery:
        """Put a record into the log, now."""
        with self._lock:
            partition = self.partitions[append.partition]
            delivery = Delivery(
                append.partition,
                partition.end,
                self._clock_ms(),
                append.key.encode(),
                append.value,
                append.headers,
            )
            partition.records.append(delivery)
            return delivery

    def produce(self, key: str, value: bytes | None, headers: Headers | None, partition: int | None = None) -> Delivery:
        """A record from somebody outside: intake, gateway, or a writer of garbage."""
        number = self.partition_of(key) if partition is None else partition
        delivery = self.land(Append(number, key, value or b"", headers or []))
        delivery.value, delivery.headers = value, headers
        return delivery

    def arrived(self, topic: Topic, key: str, value: bytes, headers: Headers) -> None:
        """A record of an outbox is there."""
        match topic:
            case Topic.COMPLETIONS:
                self.completions[key] = (value, headers)
                self.completion_log.append((key, value, headers))
            case Topic.REQUESTS:
                self.requests.append((key, value, headers))
            case Topic.EVENTS:
                self.produce(key, value, headers)

    def truncate(self, number: int, start: int) -> None:
        """Retention: records below this offset are gone."""
        partition = self.partitions[number]
        partition.start = max(partition.start, min(start, partition.end))

    # ---- the group's coordinator

    def assign(self, number: int, log: "MemoryRunLog") -> None:
        """Give a partition that nobody owns."""
        partition = self.partitions[number]
        if partition.owner is not None:
            raise InvariantViolation(f"partition {number} is owned by {partition.owner.name}: move it or take it over")
        partition.owner = log
        log.notify_assigned(number)

    def move(self, number: int, log: "MemoryRunLog") -> None:
        """Rebalance in order: the owner is asked to let go, then the next one gets it."""
        partition = self.partitions[number]
        if partition.owner is None:
            self.assign(number, log)
        elif partition.owner is not log and partition.next_owner is None:
            partition.next_owner = log
            partition.owner.notify_revoked(number, lost=False)

    def take_over(self, number: int, log: "MemoryRunLog") -> "MemoryRunLog | None":
        """The owner was expelled without knowing it: a zombie, which goes on until `notify_revoked(lost=True)`."""
        partition = self.partitions[number]
        before = partition.owner
        if before is log:
            return None
        partition.owner, partition.next_owner = None, None
        self.assign(number, log)
        return before

    def released(self, number: int, log: "MemoryRunLog") -> None:
        """A process let go of a partition, or died."""
        partition = self.partitions[number]
        if partition.owner is not log:
            return
        waiting, partition.owner, partition.next_owner = partition.next_owner, None, None
        if waiting is not None and not waiting.is_closed:
            self.assign(number, waiting)


class MemoryRunLog:
    """One process's view of run-events. Implements `ports.RunLog`."""

    def __init__(self, cluster: MemoryKafka, name: str, *, held: bool = False) -> None:
        self.cluster = cluster
        self.name = name
        self.held = held  # appends wait for `land`
        self.batch_max: int | None = None  # records of one partition that a poll answers at most
        self.queue: deque[Append] = deque()
        self.positions: dict[int, int] = {}
        self.is_closed = False
        self._listener: LogListener | None = None
        self._notices: deque[Callable[[LogListener], None]] = deque()

    @property
    def identity(self) -> LogIdentity:
        return self.cluster.identity

    # ---- ports.RunLog

    def open(self, listener: LogListener) -> None:
        self._listener = listener

    def poll(self, timeout_s: float) -> list[Delivery]:
        """What the harness let through: callbacks first, then records."""
        if self._listener is None:
            return []
        while self._notices:
            self._notices.popleft()(self._listener)
        found: list[Delivery] = []
        for number in sorted(self.positions):
            found += self._fetched(number, self._listener)
        return found

    def _fetched(self, number: int, listener: LogListener) -> list[Delivery]:
        partition = self.cluster.partitions[number]
        if self.positions[number] < partition.start:
            self.positions[number] = max(listener.on_truncated(number), partition.start)
        first = self.positions[number]
        last = partition.end if self.batch_max is None else min(partition.end, first + self.batch_max)
        self.positions[number] = last
        return partition.records[first:last]

    def append(self, partition: int | None, key: str, value: bytes, headers: Headers) -> None:
        if self.is_closed:
            return
        number = self.cluster.partition_of(key) if partition is None else partition
        append = Append(number, key, value, headers)
        if self.held or self.queue:
            self.queue.append(append)
        else:
            self.cluster.land(append)

    def start_of(self, partition: int) -> int:
        return self.cluster.partitions[partition].start

    def seek(self, partition: int, offset: int) -> None:
        self.positions[partition] = offset

    def commit(self, positions: Mapping[int, Committed], *, wait: bool) -> None:
        for number, committed in positions.items():
            partition = self.cluster.partitions[number]
            if partition.owner is self:
                partition.committed = committed

    def close(self) -> None:
        """Leave the group in order; what is buffered is sent."""
        self.land()
        self._leave()

    # ---- what the harness does to this process

    def notify_assigned(self, number: int) -> None:
        def assigned(listener: LogListener) -> None:
            partition = self.cluster.partitions[number]
            if partition.owner is not self:
                return  # taken over again before this process heard of it
            start = listener.on_assigned({number: partition.committed})[number]
            self.positions[number] = partition.start if start < 0 else start

        self._notices.append(assigned)

    def notify_revoked(self, number: int, *, lost: bool) -> None:
        def revoked(listener: LogListener) -> None:
            if number in self.positions:
                listener.on_revoked([number], lost=lost)
                del self.positions[number]
            if not lost:
                self.cluster.released(number, self)

        self._notices.append(revoked)

    def notify(self, callback: Callable[[bool], None], *, ok: bool) -> None:
        """Call back during the next poll."""
        self._notices.append(lambda _: callback(ok))

    def land(self, count: int | None = None) -> int:
        """The next appends reach the log, in order; all of them without a number. Answers how many did."""
        landed = 0
        while self.queue and (count is None or landed < count):
            self.cluster.land(self.queue.popleft())
            landed += 1
        return landed

    def lose(self, index: int = 0) -> None:
        """An append never reaches the log, and its process is told so."""
        self.report_failed(index)
        del self.queue[index]

    def report_failed(self, index: int = 0) -> None:
        """Tell the process that an append failed. It may land all the same: its fate is unknown."""
        append = self.queue[index]

        def failed(listener: LogListener) -> None:
            listener.on_append_failed(append.partition, append.key, "the harness said so")

        self._notices.append(failed)

    def crash(self, keep: int = 0) -> None:
        """The process is gone, and its group is told. The first `keep` appends were on the wire: they may still land."""
        while len(self.queue) > keep:
            self.queue.pop()
        self._leave()

    def _leave(self) -> None:
        self.is_closed = True
        self._listener = None
        self._notices.clear()
        self.positions.clear()
        for partition in self.cluster.partitions:
            if partition.next_owner is self:
                partition.next_owner = None
            self.cluster.released(partition.number, self)


@dataclass(slots=True)
class Outgoing:
    """A record on its way to another topic or run."""

    topic: Topic
    key: str
    value: bytes
    headers: Headers
    acknowledged: Callable[[bool], None]


class MemoryOutbox:
    """The write-only topics, as one process sees them. Implements `ports.Outbox`."""

    def __init__(self, log: MemoryRunLog, *, held: bool = False) -> None:
        self.log = log
        self.held = held  # records wait for `settle`
        self.waiting: deque[Outgoing] = deque()

    def publish(
        self, topic: Topic, key: str, value: bytes, headers: Headers, acknowledged: Callable[[bool], None]
    ) -> None:
        if self.log.is_closed:
            return
        self.waiting.append(Outgoing(topic, key, value, headers, acknowledged))
        if not self.held:
            self.settle()

    def settle(self, *, landed: bool = True, ok: bool = True) -> None:
        """The oldest waiting record reaches its topic or not; its process hears, at its next poll, that it did or not.

        Landed and not ok is a lost acknowledgement. Not landed and ok does not exist: Kafka does not lie that way.
        """
        if ok and not landed:
            raise InvariantViolation("an acknowledged record has landed")
        sent = self.waiting.popleft()
        if landed:
            self.log.cluster.arrived(sent.topic, sent.key, sent.value, sent.headers)
        self.log.notify(sent.acknowledged, ok=ok)

    def quarantine(self, key: str, value: bytes, headers: Headers) -> None:
        self.log.cluster.quarantined.append((key, value, headers))

    def stream(self, run_id: str, value: bytes, headers: Headers) -> None:
        self.log.cluster.streamed.append((run_id, value, headers))
