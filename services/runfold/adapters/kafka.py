"""Kafka behind `RunLog` and `Outbox`.

The hot path is `append` and `poll`: no Python callback for a record that was delivered (the read-back is the proof),
one `Delivery` for a record that was read. Callbacks of librdkafka run inside its `poll`, on whichever thread calls it,
so what they find goes through a queue and reaches the listener on the loop thread. After `poll` has raised, the
`RunLog` may only be closed.

Measured with confluent-kafka 2.16.1 and the embedded broker, both on 2 cores that were busy with other work (load 4),
values of 300 bytes, 8 headers: append and read back alone 2.3 ms (median; 2.0 in the best of 48 windows); appended and
read back by one process 12,700 records/s. A record costs the calling thread about 13 us to append and 24 us to read, of
which headers are 7 and making the message is 7. A report per delivered record adds about 3 us to a read. On a machine several
times faster, four records sent and read back: 0.30 to 0.51 ms with a `linger.ms` of 0.01, 0.36 to 0.72 with 0, and 1.4 to
1.7 from 0.03 on, where librdkafka waits a whole millisecond.
"""

# ruff: noqa: SLF001  librdkafka's own error codes begin with an underscore; they are public

import time
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from threading import Lock, get_ident
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from runfold.adapters.kafka_client import (
    EVENT_BYTES_MAX,
    OTHER_BYTES_MAX,
    QUERY_TIMEOUT_S,
    client_config,
    committed_of,
    consumer_config,
    delivery,
    final_problem,
    producer_config,
)
from runfold.adapters.topics import TopicNames, log_identity
from runfold.events.envelope import Headers
from runfold.ports import Committed, Delivery, LogIdentity, LogListener, Permanent, Topic, Transient

T = TypeVar("T")
# A chain is handed over in one go (see `append`), a few µs apart: long enough to travel as one request, and too short to
# be felt. Where each record is a request of its own, a broker answers those of one client one after another. No longer
# than this: see above.
LINGER_MS = 0.01
BATCH = 500  # records; a few ms of work, so that timers and heartbeats are never far
ACKNOWLEDGED_S = 0.005  # how long an acknowledgement of the outbox may lie
FULL_TIMEOUT_S = 5.0  # how long an append may wait for room in the producer's queue
FLUSH_TIMEOUT_S = 10.0
STREAM_BACKLOG_MAX = 10_000  # records; beyond it text for eyes is dropped
NOTHING = -1001  # librdkafka's word for "no offset"
MOVED = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


class KafkaRunLog:
    """`RunLog` on the run-events topic. With a name the group knows this process again after a restart."""

    def __init__(
        self,
        bootstrap: str,
        names: TopicNames,
        *,
        group: str,
        name: str | None = None,
        client: Mapping[str, str] | None = None,
        outbox: "KafkaOutbox | None" = None,
    ) -> None:
        self._topic = names.events
        self._identity = log_identity(bootstrap, names.events, client)
        self._failures: SimpleQueue[tuple[int, str, str]] = SimpleQueue()
        self._problem: Permanent | None = None
        self._listener: LogListener | None = None
        self._outbox = outbox
        self._held: list[tuple[int | None, str, bytes, Headers]] = []
        self._sending = Lock()
        self._polling = -1  # the thread that polls
        self._moved: set[int] = set()  # partitions whose earlier records are void since the last look
        common = client_config(bootstrap, name, client)
        self._producer = Producer({
            **producer_config(common), "linger.ms": LINGER_MS, "message.max.bytes": EVENT_BYTES_MAX,
            "delivery.report.only.error": True, "on_delivery": self._delivered, "error_cb": self._error,
        })  # fmt: skip
        self._consumer = Consumer({**consumer_config(common, group, name), "error_cb": self._error})
        self._produce: Callable[..., None] = self._producer.produce  # typed wide: its list of headers is invariant
        self._serve_producer = self._producer.poll
        self._consume = self._consumer.consume
        self._wait = self._consumer.poll

    @property
    def identity(self) -> LogIdentity:
        return self._identity

    def open(self, listener: LogListener) -> None:
        self._listener = listener
        self._polling = get_ident()
        self._consumer.subscribe([self._topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lost)

    # ---- reading

    def poll(self, timeout_s: float) -> list[Delivery]:
        if self._held:
            self.send_held()
        self._serve()
        # `consume` with a time-out waits until the batch is full: take what is there, and only then wait for one.
        messages = self._consume(BATCH, 0)
        if not messages and timeout_s > 0:
            if self._outbox is not None and self._outbox.is_waiting:  # what it waits for wakes nobody
                timeout_s = min(timeout_s, ACKNOWLEDGED_S)
            first = self._wait(timeout_s)
            if first is not None:
                self._moved.clear()
                messages = self._consume(BATCH - 1, 0)
                if first.partition() not in self._moved:
                    messages.insert(0, first)
        found: list[Delivery] = []
        add = found.append
        for m in messages:
            if m.error() is None:
                add(delivery(m))
            else:
                found = self._after_error(m, found)
                add = found.append
        return found

    def start_of(self, partition: int) -> int:
        return _asked(lambda: self._consumer.get_watermark_offsets(self._at(partition), QUERY_TIMEOUT_S))[0]

    def seek(self, partition: int, offset: int) -> None:
        position = self._at(partition, offset)
        try:
            self._consumer.seek(position)
        except KafkaException:  # not being fetched, after a reset or so soon after the assignment: begin anew
            _asked(lambda: self._consumer.incremental_unassign([position]))
            _asked(lambda: self._consumer.incremental_assign([position]))

    def _serve(self) -> None:
        """Bring to the loop thread what librdkafka had to say. Cheap when it had nothing."""
        self._serve_producer(0)
        if self._outbox is not None:
            self._outbox.poll()
        while not self._failures.empty():
            partition, run_id, reason = self._failures.get()
            if self._listener is not None:
                self._listener.on_append_failed(partition, run_id, reason)
        if self._problem is not None:
            raise self._problem

    def _after_error(self, message: Message, found: list[Delivery]) -> list[Delivery]:
        """Heal or raise. Answers what is still true of the records read before."""
        error = message.error()
        if error is None or self._listener is None:
            return found
        partition = message.partition()
        if error.code() in MOVED and partition is not None and partition >= 0:
            self.seek(partition, self._listener.on_truncated(partition))
            return [each for each in found if each.partition != partition]
        problem = final_problem(error, f"reading {self._topic}")
        if problem is not None:
            raise problem
        return found

    # ---- appending

    def append(self, partition: int | None, key: str, value: bytes, headers: Headers) -> None:
        """Appends of the polling thread are held until its next `poll`, which sends them together: a turn's decisions
        are one request. Those of other threads go at once, behind what is held: an answer never overtakes its call."""
        with self._sending:
            self._held.append((partition, key, value, headers))
            if get_ident() != self._polling:
                self._send()

    def send_held(self) -> None:
        """Hand everything that was appended so far to librdkafka. Any thread."""
        with self._sending:
            self._send()

    def _send(self) -> None:
        held, self._held = self._held, []
        for record in held:
            self._append(*record)

    def _append(self, partition: int | None, key: str, value: bytes, headers: Headers) -> None:
        try:
            self._produce(self._topic, value, key, -1 if partition is None else partition, headers=headers)
        except (BufferError, KafkaException) as error:
            self._append_slowly(error, partition, key, value, headers)

    def _append_slowly(self, error: Exception, partition: int | None, key: str, value: bytes, headers: Headers) -> None:
        number = -1 if partition is None else partition
        ends_at = time.monotonic() + FULL_TIMEOUT_S
        while isinstance(error, BufferError) and time.monotonic() < ends_at:
            self._serve_producer(0.05)
            try:
                self._produce(self._topic, value, key, number, headers=headers)
                return
            except (BufferError, KafkaException) as again:
                error = again
        self._failures.put((number, key, _text(error)))

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            partition = message.partition()
            key = message.key() or b""
            self._failures.put((-1 if partition is None else partition, key.decode(), error.str()))

    def _error(self, error: KafkaError) -> None:
        problem = final_problem(error, f"with {self._topic}")
        if problem is not None:
            self._problem = problem

    # ---- the group

    def commit(self, positions: Mapping[int, Committed], *, wait: bool) -> None:
        offsets = [TopicPartition(self._topic, n, c.offset, c.metadata) for n, c in positions.items()]
        try:
            if wait:
                self._consumer.commit(offsets=offsets, asynchronous=False)
            else:
                self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException:  # not the owner any more, or Kafka is away: the next commit, or the next owner, heals it
            return

    def close(self) -> None:
        try:
            self._consumer.close()  # calls `on_revoked` first
        finally:
            self.send_held()
            self._producer.flush(FLUSH_TIMEOUT_S)

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if not partitions or self._listener is None:
            return
        asked = [self._at(each.partition) for each in partitions]
        found = {}
        for each in committed_of(consumer, asked):
            found[each.partition] = Committed(-1 if each.offset == NOTHING else each.offset, each.metadata or "")
        starts = self._listener.on_assigned(found)
        self._moved.update(starts)
        consumer.incremental_assign([self._at(number, offset) for number, offset in starts.items()])

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._leave(consumer, partitions, lost=False)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._leave(consumer, partitions, lost=True)

    def _leave(self, consumer: Consumer, partitions: Sequence[TopicPartition], *, lost: bool) -> None:
        numbers = [each.partition for each in partitions]
        self._moved.update(numbers)
        if numbers and self._listener is not None:
            self._listener.on_revoked(numbers, lost=lost)
            consumer.incremental_unassign(list(partitions))

    def _at(self, partition: int, offset: int = NOTHING) -> TopicPartition:
        return TopicPartition(self._topic, partition, offset)


def _asked(ask: Callable[[], T]) -> T:
    """The answer of a question to Kafka, its errors in our words."""
    try:
        return ask()
    except KafkaException as error:
        raise Transient(f"Kafka did not answer: {_text(error)}") from error


class KafkaOutbox:
    """`Outbox`: completions, quarantine and stream, through a producer that reports what was delivered."""

    def __init__(
        self, bootstrap: str, names: TopicNames, *, name: str | None = None, client: Mapping[str, str] | None = None
    ) -> None:
        self._names = names
        self._topics = {
            Topic.COMPLETIONS: names.completions, Topic.REQUESTS: names.requests, Topic.EVENTS: names.events,
        }  # fmt: skip
        self._acknowledged: SimpleQueue[tuple[Callable[[bool], None], bool]] = SimpleQueue()
        self._problem: Permanent | None = None
        self._unanswered = 0
        common = client_config(bootstrap, name, client)
        self._producer = Producer({
            **producer_config(common), "linger.ms": LINGER_MS, "message.max.bytes": OTHER_BYTES_MAX, "error_cb": self._error,
        })  # fmt: skip
        self._produce: Callable[..., None] = self._producer.produce

    def publish(
        self, topic: Topic, key: str, value: bytes, headers: Headers, acknowledged: Callable[[bool], None]
    ) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            self._acknowledged.put((acknowledged, error is None))

        self._unanswered += 1
        try:
            self._produce(self._topics[topic], value, key, headers=headers, on_delivery=delivered)
        except (BufferError, KafkaException):
            self._acknowledged.put((acknowledged, False))

    def quarantine(self, key: str, value: bytes, headers: Headers) -> None:
        try:
            self._produce(self._names.quarantine, value, key, headers=headers)
        except (BufferError, KafkaException):  # the record itself stays in its topic, and its place was told
            return

    def stream(self, run_id: str, value: bytes, headers: Headers) -> None:
        if len(self._producer) < STREAM_BACKLOG_MAX:
            try:
                self._produce(self._names.stream, value, run_id, headers=headers)
            except (BufferError, KafkaException):
                return

    @property
    def is_waiting(self) -> bool:
        """Was something published that is not acknowledged yet?"""
        return self._unanswered > 0

    def poll(self) -> None:
        """Call what was acknowledged. `KafkaRunLog.poll` does it for the outbox it was given."""
        self._producer.poll(0)
        while not self._acknowledged.empty():
            acknowledged, well = self._acknowledged.get()
            self._unanswered -= 1
            acknowledged(well)
        if self._problem is not None:
            raise self._problem

    def close(self) -> None:
        """Send what is still buffered; what Kafka does not take in time is published again after the restart."""
        self._producer.flush(FLUSH_TIMEOUT_S)

    def _error(self, error: KafkaError) -> None:
        self._problem = final_problem(error, "writing completions") or self._problem


def _text(error: Exception) -> str:
    cause = error.args[0] if error.args else error
    return cause.str() if isinstance(cause, KafkaError) else f"the producer's queue is full ({error})"
