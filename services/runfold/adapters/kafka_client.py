"""What every Kafka client of ours is configured with, and which of librdkafka's errors end a process.

librdkafka heals what can be healed by itself: lost connections, moved leaders, a coordinator that starts up. What it
reports beyond that is either about one partition (see `kafka.py`) or final.
"""

# ruff: noqa: SLF001  librdkafka's own error codes begin with an underscore; they are public

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from runfold.ports import Delivery, Permanent, Transient

DELIVERY_TIMEOUT_MS = 30_000
EVENT_BYTES_MAX = 1_000_000  # as the topic's max.message.bytes: refused here, it costs nothing
OTHER_BYTES_MAX = 5 * 1024 * 1024  # a quarantined request
QUEUE_RECORDS_MAX = 200_000
QUERY_TIMEOUT_S = 10.0
COMMITTED_PATIENCE_S = 60.0  # well below the time a consumer may spend between two polls
AGAIN_S = 0.2
Config = dict[str, object]

FINAL = {
    KafkaError._AUTHENTICATION: "check the user and password for Kafka",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant this user READ, WRITE and DESCRIBE on Runfold's topics",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "grant this user READ on the consumer group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "grant this user IDEMPOTENT_WRITE on the cluster",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "the topic was deleted; create the topics again and restart",
    KafkaError.FENCED_INSTANCE_ID: "another process of the same name joined the group; give each its own name",
    KafkaError._FENCED: "another process of the same name took over; give each its own name",
}


def final_problem(error: KafkaError, doing: str) -> Permanent | None:
    """What to die of, if this error does not pass by itself."""
    advice = FINAL.get(error.code())
    if error.code() == KafkaError._FATAL and "group.instance.id" in error.str():
        advice = FINAL[KafkaError.FENCED_INSTANCE_ID]  # a consumer's fatal error hides the code of its cause
    if advice is None and not error.fatal() and error.code() != KafkaError._FATAL:
        return None
    return Permanent(f"cannot go on {doing}: {error.str()}; {advice or 'restart this process'}")


def client_config(bootstrap: str, name: str | None, client: Mapping[str, str] | None) -> Config:
    return {
        "bootstrap.servers": bootstrap,
        "client.id": name or "runfold",
        "socket.nagle.disable": True,  # records are small and somebody waits for each
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "log_level": 3,
        **(client or {}),
    }


def producer_config(common: Config) -> Config:
    return {
        "acks": "all",
        "enable.idempotence": True,  # order within a partition, and no repeats by retrying
        "partitioner": "murmur2_random",
        "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
        "compression.type": "none",
        "queue.buffering.max.messages": QUEUE_RECORDS_MAX,
        "queue.buffering.max.kbytes": 512 * 1024,
        **common,
    }


def consumer_config(common: Config, group: str, name: str | None) -> Config:
    config: Config = {
        "group.id": group,
        "group.protocol": "classic",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 1000,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",  # never jump by itself: see `on_truncated`
        "fetch.min.bytes": 1,
        "fetch.wait.max.ms": 100,  # a new or sought partition waits for the fetch under way; idle it is 10 requests/s
        "fetch.queue.backoff.ms": 5,  # by default a full queue pauses fetching for a whole second
        "fetch.error.backoff.ms": 50,
        "check.crcs": False,  # TCP and the broker check already; the codec refuses what is broken
        **common,
    }
    if name is not None:
        config["group.instance.id"] = name
    return config


def committed_of(consumer: Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
    """What the group committed for these. Asked again for a while: a broker that comes back from a pause expels its
    members and answers slowly, just when it is asked. Raises Transient."""
    ends_at = time.monotonic() + COMMITTED_PATIENCE_S
    while True:
        try:
            committed: list[TopicPartition] = consumer.committed(partitions, QUERY_TIMEOUT_S)
            broken = next((each.error for each in committed if each.error is not None), None)
        except KafkaException as error:
            broken = error.args[0]
        if broken is None:
            return committed
        if time.monotonic() >= ends_at:
            raise Transient(f"cannot read what the group committed: {broken}")
        time.sleep(AGAIN_S)


def taken(consumer: Consumer, batch: int, timeout_s: float) -> list[Message]:
    """What is there, or else the first that comes: `consume` with a time-out would wait until the batch is full."""
    messages = consumer.consume(batch, 0)
    if messages or timeout_s <= 0:
        return messages
    first = consumer.poll(timeout_s)
    return [] if first is None else [first, *consumer.consume(batch - 1, 0)]


def delivery(message: Message) -> Delivery:
    """A record that came without an error.

    Nobody checks what a foreign producer calls its headers, and the library fails on reading a record that has one whose
    name is not UTF-8: such a record has no headers here, so that it is set aside instead of stopping the partition.
    """
    m: Any = message  # of a record without error all of it is there
    try:
        return Delivery(m.partition(), m.offset(), m.timestamp()[1], m.key(), m.value(), m.headers())
    except SystemError:
        return Delivery(m.partition(), m.offset(), m.timestamp()[1], m.key(), m.value(), None)
