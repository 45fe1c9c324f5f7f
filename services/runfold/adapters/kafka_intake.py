"""Kafka behind the intake's `RequestLog`.

Two consumers: one of the group, for requests; one without a group, which follows the same partitions of
task-completions. `fetch.wait` is short for both: somebody waits for each request.
"""

from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from runfold.adapters.kafka_client import OTHER_BYTES_MAX, client_config, final_problem, producer_config
from runfold.adapters.topics import TopicNames
from runfold.events.envelope import Headers
from runfold.intake.ports import Acknowledged, RequestListener
from runfold.ports import Delivery, Permanent

BATCH = 500
TIMEOUT_S = 10.0
READ_TIMEOUT_S = 300.0  # for all completions of the partitions of one assignment


class KafkaRequestLog:
    def __init__(
        self,
        bootstrap: str,
        names: TopicNames,
        *,
        group: str,
        name: str | None = None,
        client: Mapping[str, str] | None = None,
    ) -> None:
        self._names = names
        common = client_config(bootstrap, name, client)
        self._producer = Producer({**producer_config(common), "linger.ms": 0, "message.max.bytes": OTHER_BYTES_MAX})
        self._send: Callable[..., None] = self._producer.produce  # typed wide: its list of headers is invariant
        reading = {
            **common,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            "fetch.queue.backoff.ms": 5,
            "partition.assignment.strategy": "cooperative-sticky",
        }
        grouped = {"group.id": group, "session.timeout.ms": 6000, "heartbeat.interval.ms": 1000}
        if name:
            grouped["group.instance.id"] = name
        self._requests = Consumer({**reading, **grouped})
        self._completions = Consumer({**reading, "group.id": f"{group}.completions", "enable.partition.eof": True})
        self._listener: RequestListener | None = None
        self.topic = names.requests
        topics = self._requests.list_topics(names.requests, timeout=TIMEOUT_S).topics
        self.partitions = len(topics[names.requests].partitions)

    def open(self, listener: RequestListener) -> None:
        self._listener = listener
        self._requests.subscribe([self.topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke)

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        if self._listener is not None:
            self._listener.on_assigned([partition.partition for partition in partitions])

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self._listener is not None:
            self._listener.on_revoked([partition.partition for partition in partitions])
        gone = [TopicPartition(self._names.completions, partition.partition) for partition in partitions]
        self._completions.incremental_unassign(gone)
        consumer.incremental_unassign(partitions)

    def poll(self, timeout_s: float) -> list[Delivery]:
        self._producer.poll(0)
        return self._deliveries(self._requests.consume(BATCH, timeout_s))

    def read_completions(self, partitions: Sequence[int]) -> list[Delivery]:
        self._completions.incremental_assign([TopicPartition(self._names.completions, n, 0) for n in partitions])
        waiting = set(partitions)
        found: list[Delivery] = []
        tries = int(READ_TIMEOUT_S / 0.5)
        while waiting and tries:
            messages = self._completions.consume(BATCH, 0.5)
            tries -= not messages
            for message in messages:
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  the library's name
                    waiting.discard(message.partition() or 0)
            found += self._deliveries(messages)
        if waiting:
            raise Permanent(f"the completions of partitions {sorted(waiting)} could not be read to their end")
        return found

    def completions(self) -> list[Delivery]:
        return self._deliveries(self._completions.consume(BATCH, 0))

    def _deliveries(self, messages: Sequence[Message]) -> list[Delivery]:
        found = []
        for message in messages:
            error = message.error()
            if error is None:
                found.append(_delivery(message))
            elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  the library's name
                problem = final_problem(error, "reading requests")
                if problem is not None:
                    raise problem
        return found

    def append(self, run_id: str, value: bytes, headers: Headers, acknowledged: Acknowledged) -> None:
        self._produce(self._names.events, -1, run_id, value, headers, acknowledged)

    def reroute(self, partition: int, task_id: str, value: bytes, headers: Headers, acknowledged: Acknowledged) -> None:
        self._produce(self._names.requests, partition, task_id, value, headers, acknowledged)

    def quarantine(self, key: str, value: bytes, headers: Headers, acknowledged: Acknowledged) -> None:
        self._produce(self._names.quarantine, -1, key, value, headers, acknowledged)

    def _produce(
        self, topic: str, partition: int, key: str, value: bytes, headers: Headers, acknowledged: Acknowledged
    ) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            acknowledged(error is None)

        while True:
            try:
                self._send(topic, value, key, partition, headers=headers, on_delivery=delivered)
                return
            except BufferError:
                self._producer.poll(0.05)

    def commit(self, positions: Mapping[int, int], *, wait: bool) -> None:
        offsets = [TopicPartition(self.topic, number, offset) for number, offset in positions.items()]
        try:
            if wait:
                self._requests.commit(offsets=offsets, asynchronous=False)
            else:
                self._requests.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            problem = final_problem(error.args[0], "committing requests")
            if problem is not None:
                raise problem from error  # otherwise the next commit says it again

    def flush(self) -> None:
        self._producer.flush(TIMEOUT_S)

    def close(self) -> None:
        self._producer.flush(TIMEOUT_S)
        self._requests.close()
        self._completions.close()


def _delivery(message: Message) -> Delivery:
    return Delivery(
        message.partition() or 0,
        message.offset() or 0,
        message.timestamp()[1],
        message.key(),
        message.value(),
        message.headers(),  # type: ignore[arg-type]  # its list is invariant
    )
