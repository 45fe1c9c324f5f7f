"""Runfold's five topics: their names, how each is created, and whether those that exist are fit.

What must hold is written here once and checked at every start: runs never change partition, completions stand beside
their requests, time on run-events is the broker's. Anything else about an existing topic is its operator's choice.
"""

# ruff: noqa: SLF001  librdkafka's own error codes begin with an underscore; they are public

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # two are public, but not in its __all__
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

from runfold.ports import LogIdentity, Permanent, Transient

TIMEOUT_S = 30.0
NO_LEADER_YET = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
PROPAGATION_S = 3.0  # until every broker has heard of a new topic; a few ms as a rule
PROPAGATION_PAUSE_S = 0.02
DAY_MS = 24 * 60 * 60 * 1000
REQUEST_BYTES_MAX = 4 * 1024 * 1024 + 64 * 1024  # a request of 4 MiB, with room for key and headers
EVENT_BYTES_MAX = 1_000_000  # Kafka's usual bound; an event is at most 900 KiB
QUARANTINE_BYTES_MAX = 5 * 1024 * 1024  # a quarantined request, with its place and reason
BROKER_STAMP = ("message.timestamp.type", "LogAppendTime")


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The topics of one installation."""

    prefix: str

    @property
    def requests(self) -> str:
        return f"{self.prefix}.task-requests"

    @property
    def events(self) -> str:
        return f"{self.prefix}.run-events"

    @property
    def stream(self) -> str:
        return f"{self.prefix}.run-stream"

    @property
    def completions(self) -> str:
        return f"{self.prefix}.task-completions"

    @property
    def quarantine(self) -> str:
        return f"{self.prefix}.quarantine"

    def all(self) -> tuple[str, ...]:
        return (self.requests, self.events, self.stream, self.completions, self.quarantine)


@dataclass(frozen=True, slots=True)
class _Wanted:
    partitions: int
    settings: dict[str, str]  # at creation
    required: tuple[tuple[str, str], ...] = ()  # of these, what an existing topic must have too


def ensure_topics(
    bootstrap: str,
    prefix: str,
    *,
    run_partitions: int = 16,
    task_partitions: int = 16,
    replication: int = 1,
    client: Mapping[str, str] | None = None,
) -> TopicNames:
    """Create the topics that are missing and check the others. Raises Permanent if one is unfit.

    `client`: further settings of librdkafka, such as security.
    """
    names = TopicNames(prefix)
    admin = admin_client(bootstrap, client)
    wanted = _wanted(names, run_partitions, task_partitions)
    asked = [
        NewTopic(name, num_partitions=topic.partitions, replication_factor=replication, config=topic.settings)
        for name, topic in wanted.items()
    ]
    existed = []
    for name, future in admin.create_topics(asked, operation_timeout=TIMEOUT_S, request_timeout=TIMEOUT_S).items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise _translated(error, f"create the topic {name}") from error
            existed.append(name)
    try:
        _described(admin, list(names.all()))
    except KafkaException as error:
        raise _translated(error, "find the topics created just now") from error
    _wait_for_leaders(admin, wanted)
    if existed:
        _check(admin, names, {name: wanted[name] for name in existed}, run_partitions)
    return names


def _wait_for_leaders(admin: AdminClient, wanted: Mapping[str, _Wanted]) -> None:
    """Wait until every partition answers: for a second or two after its creation it may have no leader that does."""
    places = {
        TopicPartition(name, number): OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the library's
        for name, topic in wanted.items()
        for number in range(topic.partitions)
    }
    deadline = time.monotonic() + TIMEOUT_S
    while places:
        for place, future in admin.list_offsets(places, request_timeout=TIMEOUT_S).items():
            try:
                future.result()
                del places[place]
            except KafkaException as error:
                code = error.args[0].code()
                if code not in NO_LEADER_YET:
                    del places[place]  # fewer partitions than wanted, or no right to ask: others say so better
                elif time.monotonic() > deadline:
                    raise _translated(error, f"reach {place.topic}, partition {place.partition}") from error


def delete_topics(bootstrap: str, names: TopicNames, client: Mapping[str, str] | None = None) -> None:
    """Delete all five with everything in them, and wait until they are gone. Missing ones are no error."""
    admin = admin_client(bootstrap, client)
    deleted = admin.delete_topics(list(names.all()), operation_timeout=TIMEOUT_S)
    for name, future in deleted.items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise _translated(error, f"delete the topic {name}") from error
    ends_at = time.monotonic() + PROPAGATION_S
    while time.monotonic() < ends_at:  # a topic made anew too soon would answer with its old id
        found = admin.list_topics(timeout=TIMEOUT_S).topics
        if not any(name in found for name in names.all()):
            return
        time.sleep(PROPAGATION_PAUSE_S)


def log_identity(bootstrap: str, topic: str, client: Mapping[str, str] | None = None) -> LogIdentity:
    """Which log this is: cluster, topic id, number of partitions. Raises Permanent if there is no such topic."""
    admin = admin_client(bootstrap, client)
    try:
        cluster = admin.describe_cluster(request_timeout=TIMEOUT_S).result()
        described = _described(admin, [topic])[topic]
    except KafkaException as error:
        raise _translated(error, f"describe the topic {topic}") from error
    return LogIdentity(str(cluster.cluster_id), str(described.topic_id), len(described.partitions))


def is_reachable(bootstrap: str, timeout_s: float, client: Mapping[str, str] | None = None) -> bool:
    """Whether a broker answers there with a controller at its side, so that topics can be created."""
    admin = admin_client(bootstrap, client)  # kept by name: the answer is lost when its client is collected
    try:
        cluster = admin.describe_cluster(request_timeout=timeout_s).result(timeout_s + 1.0)
    except (KafkaException, TimeoutError):
        return False
    return bool(cluster.nodes) and cluster.controller is not None


def _wanted(names: TopicNames, run_partitions: int, task_partitions: int) -> dict[str, _Wanted]:
    stamp = dict([BROKER_STAMP])
    compacted = {"cleanup.policy": "compact", **stamp}
    return {
        names.requests: _Wanted(
            task_partitions,
            {**stamp, "max.message.bytes": str(REQUEST_BYTES_MAX), "retention.ms": str(7 * DAY_MS)},
            required=(("cleanup.policy", "delete"),),
        ),
        names.events: _Wanted(
            run_partitions,
            {**stamp, "max.message.bytes": str(EVENT_BYTES_MAX), "retention.ms": str(365 * DAY_MS)},
            required=(BROKER_STAMP, ("cleanup.policy", "delete")),
        ),
        names.stream: _Wanted(run_partitions, {"retention.ms": str(DAY_MS // 24), "segment.ms": str(DAY_MS // 96)}),
        names.completions: _Wanted(task_partitions, compacted, required=(("cleanup.policy", "compact"),)),
        names.quarantine: _Wanted(
            1, {**stamp, "max.message.bytes": str(QUARANTINE_BYTES_MAX), "retention.ms": str(30 * DAY_MS)}
        ),
    }


def _check(admin: AdminClient, names: TopicNames, existing: Mapping[str, _Wanted], run_partitions: int) -> None:
    try:
        described = _described(admin, [names.requests, names.events, names.completions])
        settings = topic_settings(admin, list(existing))
    except KafkaException as error:
        raise _translated(error, "describe the topics") from error
    found = {name: len(topic.partitions) for name, topic in described.items()}
    if found[names.events] != run_partitions:
        raise Permanent(
            f"{names.events} has {found[names.events]} partitions, {run_partitions} are configured: runs would change"
            f" partition; configure {found[names.events]}, or use another prefix"
        )
    if found[names.requests] != found[names.completions]:
        raise Permanent(
            f"{names.requests} has {found[names.requests]} partitions and {names.completions} has"
            f" {found[names.completions]}: they must agree; recreate one of them, or use another prefix"
        )
    for name, topic in existing.items():
        for key, value in topic.required:
            if settings[name].get(key) != value:
                raise Permanent(
                    f"{name} has {key}={settings[name].get(key)} and needs {value}:"
                    f" kafka-configs.sh --alter --topic {name} --add-config {key}={value}"
                )


def _described(admin: AdminClient, topics: list[str]) -> dict[str, Any]:
    """What the brokers know of these topics. One created just now may be unknown to some of them for a moment."""
    ends_at = time.monotonic() + PROPAGATION_S
    while True:
        futures = admin.describe_topics(TopicCollection(topics), request_timeout=TIMEOUT_S)
        try:
            return {name: future.result() for name, future in futures.items()}
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > ends_at:
                raise
        time.sleep(PROPAGATION_PAUSE_S)


def topic_settings(admin: AdminClient, topics: list[str]) -> dict[str, dict[str, str]]:
    """Every setting of these topics, those by default too."""
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]
    futures = admin.describe_configs(resources, request_timeout=TIMEOUT_S)
    return {
        resource.name: {key: entry.value for key, entry in future.result().items()}
        for resource, future in futures.items()
    }


def admin_client(bootstrap: str, client: Mapping[str, str] | None) -> AdminClient:
    return AdminClient({
        "bootstrap.servers": bootstrap, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200,
        "log_level": 0,  # what fails is raised here; librdkafka would write it to stderr as well
        **(client or {}),
    })  # fmt: skip


def _translated(error: KafkaException, doing: str) -> Permanent | Transient:
    cause = error.args[0]
    if cause.retriable() or cause.code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
        return Transient(f"could not {doing}: {cause.str()}")
    return Permanent(f"could not {doing}: {cause.str()}")
