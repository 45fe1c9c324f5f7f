"""Kafka behind the gateway's ports: one consumer that follows everything, one for each look back, one producer.

No group is joined and nothing is committed: every gateway reads everything, and begins anew when it starts. What
`enable.partition.eof` says is how far reading has come also where nobody writes.
"""

# ruff: noqa: SLF001  librdkafka's own error codes begin with an underscore; they are public

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from runfold.adapters.kafka_client import (
    OTHER_BYTES_MAX,
    Config,
    client_config,
    consumer_config,
    delivery,
    final_problem,
    producer_config,
    taken,
)
from runfold.adapters.topics import TopicNames
from runfold.events.envelope import Headers
from runfold.gateway.ports import Sent, Topic
from runfold.ports import Delivery, Permanent, Transient

BATCH = 500
QUERY_TIMEOUT_S = 10.0
SILENCE_S = 20.0  # of a look back: Kafka is away
FLUSH_TIMEOUT_S = 10.0
DELIVERY_TIMEOUT_MS = 10_000  # somebody waits for the answer
POLL_S = 0.1


def _follower(common: Config, group: str) -> Config:
    """A consumer that joins no group: the name is there because the library wants one."""
    return {**consumer_config(common, group, None), "enable.partition.eof": True}


class KafkaFeed:
    """`Feed` on one consumer."""

    def __init__(self, bootstrap: str, names: TopicNames, *, client: Mapping[str, str] | None = None) -> None:
        self._names = names
        self._problem: Permanent | None = None
        common = client_config(bootstrap, None, client)
        self._consumer = Consumer({**_follower(common, f"{names.prefix}.gateway"), "error_cb": self._error})
        topics = self._consumer.list_topics(timeout=QUERY_TIMEOUT_S).topics
        self._partitions = sorted(topics[names.events].partitions)
        self._positions: dict[int, int] = {}
        events = [TopicPartition(names.events, number, OFFSET_BEGINNING) for number in self._partitions]
        stream = [TopicPartition(names.stream, number, OFFSET_END) for number in topics[names.stream].partitions]
        self._consumer.assign([*events, *stream])

    @property
    def partitions(self) -> int:
        """How many run-events has."""
        return len(self._partitions)

    @property
    def positions(self) -> Mapping[int, int]:
        return self._positions

    def ends(self) -> Mapping[int, int]:
        return {number: _end_of(self._consumer, self._names.events, number) for number in self._partitions}

    def poll(self, timeout_s: float) -> tuple[list[Delivery], list[Delivery]]:
        events: list[Delivery] = []
        stream: list[Delivery] = []
        for message in taken(self._consumer, BATCH, timeout_s):
            is_event = message.topic() == self._names.events
            error, partition, offset = message.error(), message.partition() or 0, message.offset() or 0
            if error is None:
                (events if is_event else stream).append(delivery(message))
            elif error.code() != KafkaError._PARTITION_EOF:
                self._failed(error, is_event=is_event)
                continue
            if is_event:
                self._positions[partition] = offset + (error is None)
        if self._problem is not None:
            raise self._problem
        return events, stream

    def _failed(self, error: KafkaError, *, is_event: bool) -> None:
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE) and is_event:
            raise Transient(
                f"{self._names.events} no longer holds what was to be read next: start again ({error.str()})"
            )
        self._error(error)

    def _error(self, error: KafkaError) -> None:
        self._problem = final_problem(error, f"reading {self._names.events}") or self._problem

    def close(self) -> None:
        self._consumer.close()


class KafkaHistory:
    """`History`: a consumer of its own for each look back, so that nobody waits for somebody else's."""

    def __init__(self, bootstrap: str, names: TopicNames, *, client: Mapping[str, str] | None = None) -> None:
        self._topic = names.events
        self._config = _follower(client_config(bootstrap, None, client), f"{names.prefix}.gateway.history")
        self._asking = Consumer(self._config)
        self._lock = threading.Lock()

    def end_of(self, partition: int) -> int:
        with self._lock:
            return _end_of(self._asking, self._topic, partition)

    def read(self, partition: int, first: int, end: int, key: bytes) -> Iterator[Delivery]:
        consumer = Consumer(self._config)
        try:
            consumer.assign([TopicPartition(self._topic, partition, first)])
            yield from _until(consumer, first, end, key)
        finally:
            consumer.close()

    def close(self) -> None:
        self._asking.close()


def _until(consumer: Consumer, first: int, end: int, key: bytes) -> Iterator[Delivery]:
    position, heard_s = first, time.monotonic()
    while position < end:
        for message in taken(consumer, BATCH, 1.0):
            heard_s = time.monotonic()
            error, offset = message.error(), message.offset() or 0
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                position = offset
            elif error is not None and error.code() != KafkaError._TRANSPORT:
                raise Transient(f"the run's events cannot be read again: {error.str()}")
            elif error is None:
                position = offset + 1
                if offset >= end:
                    return
                if message.key() == key:
                    yield delivery(message)
        if time.monotonic() - heard_s > SILENCE_S:
            raise Transient("Kafka does not answer")


def _end_of(consumer: Consumer, topic: str, partition: int) -> int:
    try:
        end: int = consumer.get_watermark_offsets(TopicPartition(topic, partition), QUERY_TIMEOUT_S)[1]
    except KafkaException as error:
        raise Transient(f"Kafka did not say where {topic} ends: {error.args[0].str()}") from error
    return end


class KafkaSender:
    """`Sender` on one producer, served by a thread of its own: whoever waits is told at once."""

    def __init__(self, bootstrap: str, names: TopicNames, *, client: Mapping[str, str] | None = None) -> None:
        self._topics = {Topic.EVENTS: names.events, Topic.REQUESTS: names.requests}
        common = client_config(bootstrap, None, client)
        self._producer = Producer({
            **producer_config(common), "linger.ms": 0, "message.max.bytes": OTHER_BYTES_MAX,
            "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
        })  # fmt: skip
        self._produce: Callable[..., None] = self._producer.produce  # typed wide: its list of headers is invariant
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="sender")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        self._producer.flush(FLUSH_TIMEOUT_S)

    def send(self, topic: Topic, key: str, value: bytes, headers: Headers, settled: Callable[[Sent], None]) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            settled(Sent(problem=error.str()) if error is not None else Sent(offset=message.offset() or 0))

        try:
            self._produce(self._topics[topic], value, key, headers=headers, on_delivery=delivered)
        except BufferError:
            settled(Sent(problem="too much is being sent already"))
        except KafkaException as error:
            settled(Sent(problem=error.args[0].str()))

    def _serve(self) -> None:
        while not self._stopped.is_set():
            self._producer.poll(POLL_S)
