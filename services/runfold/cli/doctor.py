"""`runfold doctor`: does Kafka keep what it acknowledges, do the topics fit, did runs lose their beginning?"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it is public
    AdminClient,
    ConfigResource,
)

from runfold.adapters.kafka_client import client_config, producer_config
from runfold.adapters.topics import TopicNames, admin_client, log_identity
from runfold.core.restore import Restoring
from runfold.events.codec import Codec, Undecodable
from runfold.events.envelope import HeaderWriter, NotAnEvent, Record, new_event_id, read_envelope
from runfold.events.types import RunLost
from runfold.executor.ownership import read_mark
from runfold.installation import codec_of, topics_of
from runfold.ports import Committed
from runfold.settings import Settings

TIMEOUT_S = 30.0
REASON = "the beginning of this run is no longer in the log; an operator accepted the loss"


def doctor(settings: Settings, *, accept_loss: bool) -> int:
    """Print what is found; 0 if all is well, 1 if somebody has to act."""
    names = topics_of(settings)
    patient = Patient(settings, names, codec_of(settings, names))
    problems = [*_durability(patient), *_lost(patient, accept_loss=accept_loss)]
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

    def admin(self) -> AdminClient:
        return admin_client(self.settings.bootstrap_servers, self.settings.kafka_client)

    def client(self) -> dict[str, object]:
        return client_config(self.settings.bootstrap_servers, None, self.settings.kafka_client)


def _durability(patient: Patient) -> Iterator[str]:
    """A log that forgets what it acknowledged starts tools twice (design section 5)."""
    admin, events = patient.admin(), patient.names.events
    resource = ConfigResource(ConfigResource.Type.TOPIC, events)
    values = {entry.name: entry.value for entry in admin.describe_configs([resource])[resource].result().values()}
    partitions = admin.list_topics(events, timeout=TIMEOUT_S).topics[events].partitions.values()
    replicas = min(len(partition.replicas) for partition in partitions)
    if replicas < 3:
        yield f"{events} has {replicas} replicas: a production cluster needs 3"
    if int(values.get("min.insync.replicas", "1")) < 2:
        yield f"{events}: min.insync.replicas is below 2: an acknowledged record may be lost with one broker"
    if values.get("unclean.leader.election.enable") == "true":
        yield f"{events}: unclean leader election is on: switch it off"


def _lost(patient: Patient, *, accept_loss: bool) -> Iterator[str]:
    """Runs whose mark lies before the start of the log."""
    settings, events = patient.settings, patient.names.events
    identity = log_identity(settings.bootstrap_servers, events, settings.kafka_client)
    group = f"{settings.topic_prefix}.executor"
    wanted = [TopicPartition(events, number) for number in range(identity.partitions)]
    future = patient.admin().list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)])[group]
    try:
        committed = future.result().topic_partitions
    except KafkaException:
        committed = []  # the group has never committed
    for place in committed:
        mark, _ = read_mark(Committed(place.offset, place.metadata or ""), identity)
        if mark is None:
            continue
        consumer = Consumer({**patient.client(), "group.id": f"{group}.doctor", "enable.auto.commit": False})
        try:
            first, end = consumer.get_watermark_offsets(TopicPartition(events, place.partition), timeout=TIMEOUT_S)
            if mark < first:
                lost = _lost_in(patient, consumer, place.partition, (first, end))
                yield from _accepted(patient, place.partition, lost) if accept_loss else _said(lost)
        finally:
            consumer.close()


def _lost_in(patient: Patient, consumer: Consumer, number: int, bounds: tuple[int, int]) -> list[str]:
    """The runs of one partition that are going on and have no beginning in the log."""
    first, end = bounds
    restoring = Restoring(mark=first)
    consumer.assign([TopicPartition(patient.names.events, number, first)])
    position = first
    while position < end:
        for message in consumer.consume(500, 1.0):
            if message.error() is None:
                position = (message.offset() or 0) + 1
                record = _record(message)
                if record is not None and record.run_id:
                    restoring.take(record)

    def opened(record: Record) -> None:
        try:
            record.body = patient.codec.decode(record.value)
        except Undecodable:
            record.body = None

    for _ in restoring.runs(opened, lambda run_id, reason: None):
        pass
    return restoring.without_base()


def _said(lost: Iterable[str]) -> Iterator[str]:
    for run_id in lost:
        yield f"run {run_id} lost its beginning; `runfold doctor --accept-loss` ends it as failed"


def _accepted(patient: Patient, number: int, lost: Iterable[str]) -> Iterator[str]:
    """Write RunLost for each. Answers what went wrong."""
    events, headers = patient.names.events, HeaderWriter("/runfold/doctor")
    producer = Producer(producer_config(patient.client()))
    for run_id in lost:
        stamped = headers.fact("RunLost", new_event_id(), 0)
        producer.produce(events, patient.codec.encode(RunLost(reason=REASON)), run_id, number, headers=stamped)  # type: ignore[arg-type]  # its list is invariant
        sys.stdout.write(f"run {run_id}: RunLost was written\n")
    producer.flush(TIMEOUT_S)
    yield from ()


def _record(message: Message) -> Record | None:
    try:
        return read_envelope(
            message.partition() or 0,
            message.offset() or 0,
            0,
            message.key(),
            message.value(),
            message.headers(),  # type: ignore[arg-type]  # its list is invariant
        )
    except NotAnEvent:
        return None
