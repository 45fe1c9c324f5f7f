"""`runfold doctor`: does Kafka keep what it acknowledges, do the topics fit, did runs lose their beginning?"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from runfold.adapters.kafka_client import client_config, consumer_config, delivery, producer_config
from runfold.adapters.topics import TopicNames, admin_client, log_identity, topic_settings
from runfold.core.restore import Restoring
from runfold.events.codec import Codec, Undecodable
from runfold.events.envelope import HeaderWriter, NotAnEvent, Record, new_event_id, read_envelope
from runfold.events.types import RunLost
from runfold.executor.mark import read_mark
from runfold.executor.settings import ExecutorSettings
from runfold.installation import codec_of, topics_of
from runfold.ports import Committed, Transient
from runfold.settings import Settings

TIMEOUT_S = 30.0
REPLICAS, IN_SYNC = 3, 2  # of a cluster that keeps what it acknowledged when a broker is lost
CARRIED_IN_TIME = 4  # a run is carried forward when a quarter of the retention time has passed
REASON = "the beginning of this run is no longer in the log; an operator accepted the loss"


def doctor(settings: Settings, *, accept_loss: bool) -> int:
    """Print what is found; 0 if all is well, 1 if somebody has to act."""
    names = topics_of(settings)
    admin = admin_client(settings.bootstrap_servers, settings.kafka_client)
    patient = Patient(settings, names, codec_of(settings, names), admin)
    try:
        problems = [*_durability(patient), *_lost(patient, accept_loss=accept_loss)]
    except KafkaException as error:
        raise Transient(f"Kafka did not answer: {error.args[0].str()}") from error
    for problem in problems:
        sys.stdout.write(f"! {problem}\n")
    sys.stdout.write("all is well\n" if not problems else f"{len(problems)} findings\n")
    return 1 if problems else 0


@dataclass(frozen=True, slots=True)
class Patient:
    """The installation that is looked at."""

    settings: Settings
    names: TopicNames
    codec: Codec
    admin: AdminClient  # one for all questions: an answer is lost when its client is collected before

    def client(self) -> dict[str, object]:
        return client_config(self.settings.bootstrap_servers, None, self.settings.kafka_client)

    def reader(self, group: str) -> dict[str, object]:
        """Of a consumer that is assigned by hand: its group is never joined."""
        return consumer_config(self.client(), group, None) | {
            "isolation.level": "read_uncommitted", "enable.partition.eof": True,
        }  # fmt: skip


def _durability(patient: Patient) -> Iterator[str]:
    """A log that forgets what it acknowledged starts tools twice (design section 5)."""
    admin, names = patient.admin, patient.names
    found = topic_settings(admin, [names.requests, names.events, names.completions])
    for topic, values in found.items():
        partitions = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions.values()
        replicas = min(len(partition.replicas) for partition in partitions)
        if replicas < REPLICAS:
            yield f"{topic} has {replicas} replicas: a production cluster needs {REPLICAS}"
        if int(values["min.insync.replicas"]) < IN_SYNC:
            yield f"{topic}: min.insync.replicas is below {IN_SYNC}: an acknowledged record may be lost with one broker"
        if values["unclean.leader.election.enable"] == "true":
            yield f"{topic}: unclean leader election is on: switch it off"
    yield from _retention(names.events, found[names.events])


def _retention(events: str, values: Mapping[str, str]) -> Iterator[str]:
    """The log must keep a run's beginning until the run is carried forward."""
    kept_ms, least_ms = int(values["retention.ms"]), CARRIED_IN_TIME * ExecutorSettings().checkpoint_age_ms
    if 0 <= kept_ms < least_ms:
        yield f"{events}: retention.ms is {kept_ms}: runs that last may lose their beginning; set {least_ms} at least"
    if int(values["retention.bytes"]) >= 0:
        yield f"{events}: retention.bytes is set: a busy hour may delete the beginning of a run; set it to -1"


def _lost(patient: Patient, *, accept_loss: bool) -> Iterator[str]:
    """Runs whose mark lies before the start of the log."""
    settings, events = patient.settings, patient.names.events
    identity = log_identity(settings.bootstrap_servers, events, settings.kafka_client)
    group = f"{settings.topic_prefix}.executor"
    wanted = [TopicPartition(events, number) for number in range(identity.partitions)]
    asked = [ConsumerGroupTopicPartitions(group, wanted)]
    future = patient.admin.list_consumer_group_offsets(asked, request_timeout=TIMEOUT_S)[group]
    try:
        committed = future.result().topic_partitions
    except KafkaException:
        committed = []  # the group has never committed
    for place in committed:
        mark, _ = read_mark(Committed(place.offset, place.metadata or ""), identity)
        if mark is None:
            continue
        consumer = Consumer(patient.reader(f"{group}.doctor"))
        try:
            first, end = consumer.get_watermark_offsets(TopicPartition(events, place.partition), timeout=TIMEOUT_S)
            if mark.offset < first:
                lost = _lost_in(patient, consumer, place.partition, (first, end))
                yield from _accepted(patient, place.partition, lost) if accept_loss else _said(lost)
        finally:
            consumer.close()


def _lost_in(patient: Patient, consumer: Consumer, number: int, bounds: tuple[int, int]) -> list[str]:
    """The runs of one partition that are going on and have no beginning in the log."""
    position, end = bounds
    restoring = Restoring(mark=position)
    consumer.assign([TopicPartition(patient.names.events, number, position)])
    while position < end:
        message = consumer.poll(TIMEOUT_S)
        error = None if message is None else message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  its name in librdkafka
            break
        if message is None or error is not None:
            raise Transient(f"{patient.names.events}, partition {number}: cannot be read from {position} on: {error}")
        position = (message.offset() or 0) + 1
        record = _record(message)
        if record is not None and record.run_id:
            restoring.take(record)

    def opened(record: Record) -> None:
        with suppress(Undecodable):
            record.body = patient.codec.decode(record.value)

    for _ in restoring.runs(opened, lambda run_id, reason: None):
        pass
    return restoring.without_base()


def _said(lost: Iterable[str]) -> Iterator[str]:
    for run_id in lost:
        yield f"run {run_id} lost its beginning; `runfold doctor --accept-loss` ends it as failed"


def _accepted(patient: Patient, number: int, lost: Sequence[str]) -> Iterator[str]:
    """Write RunLost for each. Answers those that Kafka did not take."""
    headers, value = HeaderWriter("/runfold/doctor"), patient.codec.encode(RunLost(reason=REASON))
    producer = Producer(producer_config(patient.client()))
    written: set[str] = set()

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            written.add((message.key() or b"").decode())

    produce: Callable[..., None] = producer.produce  # typed wide: its list of headers is invariant
    for run_id in lost:
        stamped = headers.fact("RunLost", new_event_id(), time.time_ns() // 1_000_000)
        produce(patient.names.events, value, run_id, number, headers=stamped, on_delivery=delivered)
        producer.poll(0)
    producer.flush(TIMEOUT_S)
    for run_id in lost:
        if run_id in written:
            sys.stdout.write(f"run {run_id}: RunLost was written\n")
        else:
            yield f"run {run_id}: RunLost could not be written; try again"


def _record(message: Message) -> Record | None:
    found = delivery(message)
    try:
        return read_envelope(found.partition, found.offset, found.time_ms, found.key, found.value, found.headers)
    except NotAnEvent:
        return None
