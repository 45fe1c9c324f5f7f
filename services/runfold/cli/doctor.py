"""`runfold doctor`: does Kafka keep what it acknowledges, do the topics fit, did runs lose their beginning?"""

import sys
from collections.abc import Iterator

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]  # it is public

from runfold.adapters.kafka_client import client_config, producer_config
from runfold.adapters.topics import TopicNames, admin_client, ensure_topics, log_identity
from runfold.core.restore import Restoring
from runfold.events.codec import Codec, Undecodable
from runfold.events.envelope import HeaderWriter, NotAnEvent, Record, new_event_id, read_envelope
from runfold.events.types import RunLost
from runfold.executor.ownership import read_mark
from runfold.ports import Committed
from runfold.settings import Settings

TIMEOUT_S = 30.0
REASON = "the beginning of this run is no longer in the log; an operator accepted the loss"


def doctor(settings: Settings, *, accept_loss: bool) -> int:
    """Print what is found; 0 if all is well, 1 if somebody has to act."""
    names = ensure_topics(
        settings.bootstrap_servers,
        settings.topic_prefix,
        run_partitions=settings.run_partitions,
        task_partitions=settings.run_partitions,
        replication=settings.replication,
        client=settings.kafka_client,
    )
    problems = list(_durability(settings, names)) + list(_lost(settings, names, accept_loss=accept_loss))
    for problem in problems:
        sys.stdout.write(f"! {problem}\n")
    sys.stdout.write("all is well\n" if not problems else f"{len(problems)} findings\n")
    return 1 if problems else 0


def _durability(settings: Settings, names: TopicNames) -> Iterator[str]:
    """A log that forgets what it acknowledged starts tools twice (design section 5)."""
    admin = admin_client(settings.bootstrap_servers, settings.kafka_client)
    resource = ConfigResource(ConfigResource.Type.TOPIC, names.events)
    values = {entry.name: entry.value for entry in admin.describe_configs([resource])[resource].result().values()}
    replicas = {
        len(partition.replicas)
        for partition in admin.list_topics(names.events, timeout=TIMEOUT_S).topics[names.events].partitions.values()
    }
    if min(replicas) < 3:
        yield f"{names.events} has {min(replicas)} replicas: a production cluster needs 3"
    if int(values.get("min.insync.replicas", "1")) < 2:
        yield f"{names.events}: min.insync.replicas is below 2: an acknowledged record may be lost with one broker"
    if values.get("unclean.leader.election.enable") == "true":
        yield f"{names.events}: unclean leader election is on: switch it off"


def _lost(settings: Settings, names: TopicNames, *, accept_loss: bool) -> Iterator[str]:
    """Runs whose mark lies before the start of the log."""
    admin = admin_client(settings.bootstrap_servers, settings.kafka_client)
    identity = log_identity(settings.bootstrap_servers, names.events, settings.kafka_client)
    group = f"{settings.topic_prefix}.executor"
    wanted = [TopicPartition(names.events, number) for number in range(identity.partitions)]
    future = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)])[group]
    try:
        committed = future.result().topic_partitions
    except KafkaException:
        committed = []  # the group has never committed
    for place in committed:
        mark, _ = read_mark(Committed(place.offset, place.metadata or ""), identity)
        if mark is None:
            continue
        consumer = Consumer(
            {
                **client_config(settings.bootstrap_servers, None, settings.kafka_client),
                "group.id": f"{group}.doctor",
                "enable.auto.commit": False,
            }
        )
        try:
            first, end = consumer.get_watermark_offsets(
                TopicPartition(names.events, place.partition), timeout=TIMEOUT_S
            )
            if mark < first:
                yield from _lost_in(settings, names, consumer, place.partition, (first, end), accept_loss=accept_loss)
        finally:
            consumer.close()


def _lost_in(
    settings: Settings,
    names: TopicNames,
    consumer: Consumer,
    number: int,
    bounds: tuple[int, int],
    *,
    accept_loss: bool,
) -> Iterator[str]:
    first, end = bounds
    codec = Codec()
    restoring = Restoring(mark=first)
    consumer.assign([TopicPartition(names.events, number, first)])
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
            record.body = codec.decode(record.value)
        except Undecodable:
            record.body = None

    for _ in restoring.runs(opened, lambda run_id, reason: None):
        pass
    lost = restoring.without_base()
    if not accept_loss:
        for run_id in lost:
            yield f"run {run_id} lost its beginning; `runfold doctor --accept-loss` ends it as failed"
        return
    producer = Producer(producer_config(client_config(settings.bootstrap_servers, None, settings.kafka_client)))
    headers = HeaderWriter("/runfold/doctor")
    for run_id in lost:
        stamped = headers.fact("RunLost", new_event_id(), 0)
        producer.produce(names.events, codec.encode(RunLost(reason=REASON)), run_id, number, headers=stamped)  # type: ignore[arg-type]  # its list is invariant
        sys.stdout.write(f"run {run_id}: RunLost was written\n")
    producer.flush(TIMEOUT_S)


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
