"""What the contract cannot say about memory: how the Kafka adapter fails, and what becomes of a broker's parent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from runfold.adapters.kafka import KafkaRunLog
from runfold.adapters.topics import TopicNames, delete_topics, ensure_topics, is_reachable, log_identity
from runfold.ports import Committed, Permanent

pytestmark = pytest.mark.kafka
PATIENCE_S = 30.0


class Owner:
    """Begins at the committed offset; raises what it is armed with."""

    def __init__(self) -> None:
        self.owned: set[int] = set()
        self.failures: list[tuple[int, str, str]] = []
        self.raises: Exception | None = None

    def on_assigned(self, partitions: Mapping[int, Committed]) -> Mapping[int, int]:
        if self.raises is not None:
            raise self.raises
        self.owned.update(partitions)
        return dict.fromkeys(partitions, -2)

    def on_revoked(self, partitions: Sequence[int], *, lost: bool) -> None:
        self.owned.difference_update(partitions)

    def on_append_failed(self, partition: int, run_id: str, reason: str) -> None:
        self.failures.append((partition, run_id, reason))

    def on_truncated(self, partition: int) -> int:
        return 0


@pytest.fixture
def names(kafka_bootstrap: str, topic_prefix: str) -> Iterator[TopicNames]:
    made = ensure_topics(kafka_bootstrap, topic_prefix, run_partitions=2, task_partitions=2)
    yield made
    delete_topics(kafka_bootstrap, made)


def test_a_second_process_of_one_name_ends_the_first(kafka_bootstrap: str, names: TopicNames) -> None:
    """Static membership: Kafka obeys the newcomer, and the other must not go on."""
    first = KafkaRunLog(kafka_bootstrap, names, group=names.prefix, name="same")
    owner, newcomer = Owner(), Owner()
    first.open(owner)
    ends_at = time.monotonic() + PATIENCE_S
    while not owner.owned and time.monotonic() < ends_at:
        first.poll(0.05)
    second = KafkaRunLog(kafka_bootstrap, names, group=names.prefix, name="same")
    second.open(newcomer)
    with pytest.raises(Permanent, match="same name"):
        while time.monotonic() < ends_at:
            second.poll(0.05)
            first.poll(0.05)
    first.close()
    while not newcomer.owned and time.monotonic() < ends_at:
        second.poll(0.05)
    assert newcomer.owned == {0, 1}
    second.close()


def test_what_the_listener_raises_comes_out_of_poll(kafka_bootstrap: str, names: TopicNames) -> None:
    """librdkafka stands between: it must not swallow a bug."""
    log = KafkaRunLog(kafka_bootstrap, names, group=names.prefix)
    owner = Owner()
    owner.raises = RuntimeError("a bug")
    log.open(owner)
    ends_at = time.monotonic() + PATIENCE_S
    with pytest.raises(RuntimeError, match="a bug"):
        while time.monotonic() < ends_at:
            log.poll(0.05)
    log.close()


def test_an_append_to_no_partition_is_told(kafka_bootstrap: str, names: TopicNames) -> None:
    """However Kafka refuses, at once or later, the listener hears it in a poll."""
    log = KafkaRunLog(kafka_bootstrap, names, group=names.prefix)
    owner = Owner()
    log.open(owner)
    log.append(77, "run-1", b"x", [])
    ends_at = time.monotonic() + PATIENCE_S
    while not owner.failures and time.monotonic() < ends_at:
        log.poll(0.05)
    assert [(partition, run_id) for partition, run_id, _ in owner.failures] == [(77, "run-1")]
    log.close()


def test_a_topic_made_anew_is_another_log(kafka_bootstrap: str, topic_prefix: str) -> None:
    """Same name, same partitions, other topic id."""
    names = ensure_topics(kafka_bootstrap, topic_prefix, run_partitions=2, task_partitions=2)
    before = log_identity(kafka_bootstrap, names.events)
    delete_topics(kafka_bootstrap, names)
    ensure_topics(kafka_bootstrap, topic_prefix, run_partitions=2, task_partitions=2)
    after = log_identity(kafka_bootstrap, names.events)
    assert before.cluster == after.cluster
    assert before.topic != after.topic
    delete_topics(kafka_bootstrap, names)


@pytest.mark.parametrize(
    ("run_partitions", "task_partitions", "said"), [(3, 2, "would change partition"), (2, 2, None)]
)
def test_topics_that_exist_are_checked(
    kafka_bootstrap: str, names: TopicNames, run_partitions: int, task_partitions: int, said: str | None
) -> None:
    """A start with another number of partitions is refused; with the same it changes nothing."""

    def again() -> TopicNames:
        return ensure_topics(
            kafka_bootstrap, names.prefix, run_partitions=run_partitions, task_partitions=task_partitions
        )

    if said is None:
        assert again() == names
    else:
        with pytest.raises(Permanent, match=said):
            again()


def test_the_largest_request_fits_its_topic(kafka_bootstrap: str, names: TopicNames) -> None:
    """4 MiB are promised."""
    refused: list[object] = []
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "message.max.bytes": 5 * 1024 * 1024})
    producer.produce(names.requests, b"x" * 4 * 1024 * 1024, "task", on_delivery=lambda error, _: refused.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert refused == [None]


def test_an_embedded_broker_dies_with_its_parent() -> None:
    """Killed tests leak no broker."""
    command = [sys.executable, "-m", "runfold.dev.embedded_kafka"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        bootstrap = parent.stdout.readline().strip()
        assert is_reachable(bootstrap, timeout_s=10)
        os.kill(parent.pid, signal.SIGKILL)
    ends_at = time.monotonic() + PATIENCE_S
    while is_reachable(bootstrap, timeout_s=0.3):
        assert time.monotonic() < ends_at, f"the broker at {bootstrap} outlived its parent"


def test_a_taken_port_is_told(kafka_bootstrap: str) -> None:
    """One line that says what to do."""
    port = kafka_bootstrap.rpartition(":")[2]
    command = [sys.executable, "-m", "runfold.dev.embedded_kafka", "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"port {port} is taken: stop what listens there, or choose another port"]


def test_new_topics_answer_at_once(kafka_bootstrap: str, topic_prefix: str) -> None:
    """A partition just created may have no leader that answers yet; nobody who starts next has to know."""
    for number in range(3):
        names = ensure_topics(kafka_bootstrap, f"{topic_prefix}-{number}", run_partitions=4, task_partitions=4)
        consumer = Consumer({"bootstrap.servers": kafka_bootstrap, "group.id": topic_prefix})
        try:
            for topic in names.all():
                assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (0, 0)
        finally:
            consumer.close()
            delete_topics(kafka_bootstrap, names)
