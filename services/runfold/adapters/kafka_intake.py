"""Kafka behind the intake's `RequestLog`.

Three clients: a consumer of the group, for requests; a consumer that is assigned the same partitions of
task-completions by hand, from their start; a producer that reports what was delivered. A fourth asks where the
completions end: on a connection that is fetching, the question would wait for the fetch.
"""

# ruff: noqa: SLF001  librdkafka's own error codes begin with an underscore; they are public

import time
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # public, but not in its __all__

from runfold.adapters.kafka_client import (
    OTHER_BYTES_MAX,
    QUERY_TIMEOUT_S,
    client_config,
    committed_of,
    consumer_config,
    delivery,
    final_problem,
    producer_config,
    taken,
)
from runfold.adapters.topics import TopicNames, admin_client, log_identity
from runfold.intake.ports import Fate, Outgoing, RequestListener, Settled, Topic
from runfold.ports import Delivery, Permanent, Transient

BATCH = 500
FOLLOW_ROUNDS_MAX = 20  # batches of completions at a time: a tenth of a second of work, between two polls
FLUSH_TIMEOUT_S = 10.0
FULL_TIMEOUT_S = 5.0  # how long a record may wait for room in the producer's queue
NOTHING = -1001  # librdkafka's word for "no offset"
BEGINNING = -2  # and for the start of the log
MOVED = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
REFUSALS = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.POLICY_VIOLATION,
    KafkaError._INVALID_ARG,
)


class KafkaRequestLog:
    """`RequestLog` on task-requests. With a name the group knows this process again after a restart."""

    def __init__(
        self,
        bootstrap: str,
        names: TopicNames,
        *,
        group: str,
        name: str | None = None,
        client: Mapping[str, str] | None = None,
    ) -> None:
        common = client_config(bootstrap, name, client)
        self.topic = names.requests
        self.partitions = log_identity(bootstrap, names.requests, client).partitions
        self._completions = names.completions
        self._topics = {
            Topic.EVENTS: names.events, Topic.REQUESTS: names.requests, Topic.QUARANTINE: names.quarantine,
        }  # fmt: skip
        self._listener: RequestListener | None = None
        self._problem: Permanent | None = None
        self._read: dict[int, int] = {}  # of completions, by partition: everything before was handed out
        self._address = (bootstrap, client)
        self._admin = admin_client(*self._address)
        self._producer = Producer({
            **producer_config(common), "linger.ms": 0, "message.max.bytes": OTHER_BYTES_MAX, "error_cb": self._error,
        })  # fmt: skip
        self._produce: Callable[..., None] = self._producer.produce  # typed wide: its list of headers is invariant
        self._requests = Consumer({**consumer_config(common, group, name), "error_cb": self._error})
        self._follower = Consumer({
            **consumer_config(common, f"{group}.completions", None),  # a group that nobody joins
            "auto.offset.reset": "earliest", "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",  # somebody's open transaction must not hide where the log ends
            "error_cb": self._error,
        })  # fmt: skip

    # ---- the group

    def open(self, listener: RequestListener) -> None:
        self._listener = listener
        self._requests.subscribe([self.topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lost)

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if not partitions or self._listener is None:
            return
        committed = committed_of(consumer, partitions)
        for each in committed:
            each.offset = BEGINNING if each.offset == NOTHING else each.offset
        numbers = [each.partition for each in committed]
        self._read.update(dict.fromkeys(numbers, 0))
        self._follower.incremental_assign([TopicPartition(self._completions, n, BEGINNING) for n in numbers])
        consumer.incremental_assign(committed)
        self._listener.on_assigned(numbers)

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._leave(consumer, partitions, lost=False)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._leave(consumer, partitions, lost=True)

    def _leave(self, consumer: Consumer, partitions: list[TopicPartition], *, lost: bool) -> None:
        if not partitions or self._listener is None:
            return
        numbers = [each.partition for each in partitions]
        self._listener.on_revoked(numbers, lost=lost)
        followed = [number for number in numbers if self._read.pop(number, None) is not None]
        self._follower.incremental_unassign([TopicPartition(self._completions, number) for number in followed])
        consumer.incremental_unassign(partitions)

    def commit(self, positions: Mapping[int, int], *, wait: bool) -> None:
        offsets = [TopicPartition(self.topic, number, offset) for number, offset in positions.items()]
        try:
            if wait:
                self._requests.commit(offsets=offsets, asynchronous=False)
            else:
                self._requests.commit(offsets=offsets, asynchronous=True)
        except KafkaException:  # not the owner any more, or Kafka is away: what is read again starts nothing new
            return

    # ---- reading

    def poll(self, timeout_s: float) -> list[Delivery]:
        self._producer.poll(0)
        if self._problem is not None:
            raise self._problem
        messages = taken(self._requests, BATCH, timeout_s)
        return [delivery(message) for message in messages if not self._is_error(message)]

    def _is_error(self, message: Message) -> bool:
        error, partition = message.error(), message.partition()
        if error is None:
            return False
        if error.code() in MOVED and partition is not None and partition >= 0 and self._listener is not None:
            self._requests.seek(TopicPartition(self.topic, partition, BEGINNING))
            self._listener.on_truncated(partition)
            return True
        self._problem = final_problem(error, f"reading {self.topic}") or self._problem
        return True

    def hold(self, partition: int) -> None:
        self._requests.pause([TopicPartition(self.topic, partition)])

    def release(self, partition: int) -> None:
        self._requests.resume([TopicPartition(self.topic, partition)])

    def completions(self) -> list[Delivery]:
        found: list[Delivery] = []
        for _ in range(FOLLOW_ROUNDS_MAX):
            messages = self._follower.consume(BATCH, 0)
            for message in messages:
                self._follow(message, found)
            if len(messages) < BATCH:
                break
        return found

    def _follow(self, message: Message, found: list[Delivery]) -> None:
        error, partition, offset = message.error(), message.partition() or 0, message.offset() or 0
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            self._problem = final_problem(error, f"reading {self._completions}") or self._problem
        elif partition in self._read:
            if error is None:
                found.append(delivery(message))
            self._read[partition] = offset if error is not None else offset + 1  # the end's own offset is not read

    def completions_read(self, partition: int) -> int:
        return self._read.get(partition, 0)

    def completions_end(self, partitions: Sequence[int]) -> Mapping[int, int]:
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the library's
        asked = {TopicPartition(self._completions, number): latest for number in partitions}
        try:
            futures = self._admin.list_offsets(asked, request_timeout=QUERY_TIMEOUT_S)
            return {where.partition: future.result().offset for where, future in futures.items()}
        except KafkaException as error:
            # A client that asks under the epoch of a leader that is gone asks under it for ever: only another one learns.
            self._admin = admin_client(*self._address)
            raise Transient(f"Kafka did not say where {self._completions} ends: {error.args[0].str()}") from error

    # ---- writing

    def send(self, outgoing: Outgoing, settled: Settled) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            settled(*self._fate(error))

        number = -1 if outgoing.partition is None else outgoing.partition
        topic, headers = self._topics[outgoing.topic], outgoing.headers
        ends_at = time.monotonic() + FULL_TIMEOUT_S
        while True:
            try:
                self._produce(topic, outgoing.value, outgoing.key, number, headers=headers, on_delivery=delivered)
            except BufferError:
                if time.monotonic() > ends_at:
                    settled(Fate.UNKNOWN, "the producer's queue is full")
                    return
                self._producer.poll(0.05)
            except KafkaException as error:
                settled(*self._fate(error.args[0]))
                return
            else:
                return

    def _fate(self, error: KafkaError | None) -> tuple[Fate, str]:
        if error is None:
            return Fate.DONE, ""
        if error.code() in REFUSALS:
            return Fate.REFUSED, error.str()
        self._error(error)
        return Fate.UNKNOWN, error.str()

    def _error(self, error: KafkaError) -> None:
        self._problem = final_problem(error, "with requests") or self._problem

    def flush(self) -> None:
        self._producer.flush(FLUSH_TIMEOUT_S)

    def close(self) -> None:
        try:
            self._requests.close()  # calls `on_revoked` first
        finally:
            self._producer.flush(FLUSH_TIMEOUT_S)
            self._follower.close()
