"""The intake on a real broker, fed by producers as users write them."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from runfold.adapters import kafka_client
from runfold.adapters.blobs import DirectoryBlobs
from runfold.adapters.clock import SystemClock
from runfold.adapters.kafka_intake import KafkaRequestLog
from runfold.adapters.topics import TopicNames, delete_topics, ensure_topics
from runfold.dev.stack import Stack
from runfold.events.codec import Codec
from runfold.events.partitioner import murmur2_partition
from runfold.events.types import (
    CancelRequested,
    Event,
    Quarantined,
    RunRequested,
    TaskCancelled,
    TaskCompleted,
    TaskRequested,
    Totals,
)
from runfold.intake.loop import OTHER_BODY, Intake
from runfold.intake.requests import digest_of

pytestmark = pytest.mark.kafka
CODEC = Codec()
PARTITIONS = 2
PATIENCE_S = 40.0
GOOD = TaskRequested(task_id="t-1", agent="clerk", input="count to four")
LAST = "the-last-one"


class Place:
    """Topics of one test, an intake on them, and everything that was written to them."""

    def __init__(self, bootstrap: str, names: TopicNames, blobs: Path) -> None:
        self.bootstrap, self.names = bootstrap, names
        self.blobs = DirectoryBlobs(blobs)
        self.told: list[str] = []
        self.intakes: list[Intake] = []
        self.producer = Producer({
            "bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "message.max.bytes": 6_000_000,
        })  # fmt: skip
        self.reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "-", "auto.offset.reset": "earliest"})
        topics = {names.events: PARTITIONS, names.requests: PARTITIONS, names.quarantine: 1}
        self.reader.assign([TopicPartition(topic, n, 0) for topic, many in topics.items() for n in range(many)])
        self.records: list[Any] = []

    def intake(self) -> Intake:
        """One more intake of the group."""
        log = KafkaRequestLog(self.bootstrap, self.names, group=f"{self.names.prefix}.intake")
        made = Intake(log=log, codec=CODEC, blobs=self.blobs, clock=SystemClock(), name="test", tell=self.told.append)
        made.open()
        self.intakes.append(made)
        return made

    def close(self) -> None:
        for intake in self.intakes:
            intake.close()
        self.reader.close()

    def until(self, done: Callable[[], bool]) -> None:
        ends_at = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < ends_at, (self.told, [i.counts for i in self.intakes], len(self.records))
            for intake in self.intakes:
                intake.step(0.01)
            self.records += [m for m in self.reader.consume(500, 0.01) if m.error() is None]

    def put(self, topic: str, value: bytes | Event | None, key: str | None = None, **more: Any) -> None:
        """Produce, and wait until it is there."""
        errors: list[KafkaError | None] = []
        bytes_ = value if value is None or isinstance(value, bytes) else CODEC.encode(value)
        self.producer.produce(topic, bytes_, key, on_delivery=lambda error, _: errors.append(error), **more)
        self.producer.flush(PATIENCE_S)
        assert errors == [None]

    def request(self, value: bytes | Event | None, key: str | None = "t-1", **more: Any) -> None:
        self.put(self.names.requests, value, key, **more)

    def settle(self) -> None:
        """A last request to every partition went through: whatever stood before it did too."""
        for partition in range(PARTITIONS):
            names = (f"{LAST}-{n}-{len(self.records)}" for n in range(1000))
            task_id = next(name for name in names if murmur2_partition(name.encode(), PARTITIONS) == partition)
            self.request(replace(GOOD, task_id=task_id), task_id)
            self.until(partial(self.has_event, task_id))

    def has_event(self, key: str) -> bool:
        return any(m.key() == key.encode() and m.topic() == self.names.events for m in self.records)

    def uncommitted(self) -> int:
        """How many requests a new owner would read again."""
        asked = [TopicPartition(self.names.requests, number) for number in range(PARTITIONS)]
        group = Consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{self.names.prefix}.intake"})
        ends = [group.get_watermark_offsets(where, PATIENCE_S)[1] for where in asked]
        committed = [max(0, where.offset) for where in group.committed(asked, PATIENCE_S)]
        group.close()
        return sum(ends) - sum(committed)

    def events(self, topic: str | None = None) -> list[tuple[str, Event]]:
        """What was written, without the last ones of `settle`."""
        found = [
            (m.key().decode(), CODEC.decode(m.value()))
            for m in self.records
            if m.topic() == (topic or self.names.events)
        ]
        return [(key, event) for key, event in found if not key.startswith(LAST)]

    def quarantined(self) -> list[Quarantined]:
        return [event for _, event in self.events(self.names.quarantine) if isinstance(event, Quarantined)]


@pytest.fixture
def names(kafka_bootstrap: str, topic_prefix: str) -> Iterator[TopicNames]:
    made = ensure_topics(kafka_bootstrap, topic_prefix, run_partitions=PARTITIONS, task_partitions=PARTITIONS)
    yield made
    delete_topics(kafka_bootstrap, made)


@pytest.fixture
def place(kafka_bootstrap: str, names: TopicNames, tmp_path: Path) -> Iterator[Place]:
    made = Place(kafka_bootstrap, names, tmp_path / "blobs")
    yield made
    made.close()


@pytest.mark.requirement("R33")
def test_a_request_begins_one_run_however_often_it_is_sent(place: Place) -> None:
    """With headers or without; another body under its id is set aside."""
    place.intake()
    place.request(GOOD)
    place.request(GOOD, headers=[("ce_type", b"runfold.TaskRequested")])
    place.request(GOOD, key=None, partition=murmur2_partition(b"t-1", PARTITIONS))
    place.request(replace(GOOD, input="something else"))
    place.settle()
    wanted = RunRequested(task_id="t-1", agent="clerk", input="count to four", request_digest=digest_of(GOOD))
    assert place.events() == [("t-1", wanted)]
    (aside,) = place.quarantined()
    assert (aside.reason, aside.topic, aside.key) == (OTHER_BODY, place.names.requests, b"t-1")
    assert aside.value == CODEC.encode(replace(GOOD, input="something else"))
    place.until(lambda: place.uncommitted() == 0)


BAD_TEXT = CODEC.encode(replace(GOOD, input="xxx"))
REJECTED = {
    "both agent and definition": CODEC.encode(replace(GOOD, definition="{}")),
    "not Avro": b'{"task_id": "t-1", "agent": "clerk"}',
    "an unknown schema": b"\xc3\x01unknown!body",
    "an empty id": CODEC.encode(replace(GOOD, task_id="")),
    "half a surrogate pair": BAD_TEXT.replace(b"xxx", b"\xed\xa0\x80"),
    "no text at all": BAD_TEXT.replace(b"xxx", b"\xff\xfe\xfd"),
    "a tombstone": None,
}


@pytest.mark.requirement("R34")
def test_what_is_malformed_is_rejected_or_set_aside(place: Place) -> None:
    """By the id in its body or its key; without one it is kept with the reason. Nothing stops the partition."""
    place.intake()
    for number, value in enumerate(REJECTED.values()):
        keyed = f"bad-{number}"
        place.request(value.replace(b"\6t-1", b"\nbad-0") if value and not number else value, keyed)
        place.request(value if number else b"", None, partition=number % PARTITIONS)
    place.settle()
    events = place.events()
    assert sorted(key for key, _ in events) == [f"bad-{number}" for number in range(len(REJECTED))]
    for key, event in events:
        assert isinstance(event, RunRequested)
        assert event.task_id == key
        assert event.problem
    assert len(place.quarantined()) == len(REJECTED)
    assert all(aside.reason for aside in place.quarantined())


def test_nul_in_a_text_is_replaced(place: Place) -> None:
    """No store after us takes it; the task itself is fine."""
    place.intake()
    place.request(replace(GOOD, input="a\0b"))
    place.settle()
    ((_, event),) = place.events()
    assert isinstance(event, RunRequested)
    assert (event.input, event.problem) == ("a\ufffdb", None)


def test_a_large_task_goes_through_and_a_too_large_one_is_refused(place: Place) -> None:
    """Two megabytes by the blob store; at five the producer is told at once."""
    place.intake()
    text = "ä" * 1_000_000
    place.request(replace(GOOD, input=text))
    place.settle()
    ((_, event),) = place.events()
    assert isinstance(event, RunRequested)
    assert event.input_ref is not None
    assert place.blobs.get(event.input_ref) == text.encode()
    errors: list[KafkaError | None] = []
    place.producer.produce(
        place.names.requests, CODEC.encode(replace(GOOD, input="x" * 5_000_000)), "t-2",
        on_delivery=lambda error, _: errors.append(error),
    )  # fmt: skip
    place.producer.flush(PATIENCE_S)
    assert [error and error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]


@pytest.mark.requirement("R33")
def test_a_request_in_the_wrong_partition_is_sent_to_its_own(place: Place) -> None:
    """Another partitioner, no key, the key of somebody else: the id in the body decides."""
    place.intake()
    right = murmur2_partition(b"t-1", PARTITIONS)
    for key in ("t-1", None, "customer-7"):
        place.request(GOOD, key, partition=1 - right, headers=[("mine", b"1")])
    place.settle()
    assert [key for key, _ in place.events()] == ["t-1"]
    sent_on = [m for m in place.records if m.topic() == place.names.requests and m.partition() == right and m.headers()]
    assert [m.headers() for m in sent_on] == [[("mine", b"1"), ("runfold-rerouted", b"1")]] * 3
    assert [(m.key(), m.value()) for m in sent_on] == [(b"t-1", CODEC.encode(GOOD))] * 3


@pytest.mark.requirement("R10")
def test_a_cancel_reaches_a_run_that_did_not_end(place: Place) -> None:
    """Before its request or after; for an ended one nothing is written."""
    ended = TaskCompleted(task_id="t-2", status="completed", totals=Totals())
    place.put(place.names.completions, ended, "t-2")
    place.intake()
    place.request(TaskCancelled(task_id="t-1", reason="early"))
    place.request(GOOD)
    place.request(TaskCancelled(task_id="t-1", reason="late"), headers=[("ce_type", b"runfold.TaskCancelled")])
    place.request(TaskCancelled(task_id="t-2"), "t-2")
    place.settle()
    kinds = [
        event.reason if isinstance(event, CancelRequested) else type(event).__name__ for _, event in place.events()
    ]
    assert (kinds[0], kinds[-1], kinds.count("RunRequested")) == ("early", "late", 1)
    assert len(kinds) <= 4, "one that waited already stands before the run as well, under the same id"


@pytest.mark.requirement("R33")
def test_partitions_move_between_intakes_without_a_second_run(place: Place) -> None:
    """A second intake takes half of them, the first goes away: ended ids stay ended, new ones begin once."""
    first = place.intake()
    ids = [f"task-{number}" for number in range(40)]

    def request_all() -> None:
        for task_id in ids:
            place.request(replace(GOOD, task_id=task_id), task_id)

    def complete(task_id: str) -> None:
        body = replace(GOOD, task_id=task_id)
        done = TaskCompleted(task_id=task_id, status="completed", totals=Totals(), request_digest=digest_of(body))
        place.put(place.names.completions, done, task_id)

    request_all()
    place.until(lambda: len(place.events()) == len(ids))
    for task_id in ids:
        complete(task_id)
    second = place.intake()
    place.until(lambda: len(first.partitions) == len(second.partitions) == 1)
    request_all()
    place.settle()
    place.intakes.remove(first)
    first.close()
    request_all()
    place.until(lambda: len(second.partitions) == PARTITIONS)
    place.settle()
    assert sorted(key for key, _ in place.events()) == sorted(ids)
    assert place.quarantined() == []


@pytest.mark.requirement("R33")
def test_a_killed_intake_starts_nothing_twice(place: Place, tmp_path: Path) -> None:
    """As a process: killed after its work, started again; what ended stays ended, what was not taken is."""
    environment = {
        "KAFKA_BOOTSTRAP_SERVERS": place.bootstrap,
        "RUNFOLD_TOPIC_PREFIX": place.names.prefix,
        "RUNFOLD_RUN_PARTITIONS": str(PARTITIONS),
        "RUNFOLD_BLOBS": str(tmp_path / "blobs"),
        "RUNFOLD_INTAKE_NAME": "intake-0",
        "PYTHONPATH": os.pathsep.join(["services", os.environ.get("PYTHONPATH", "")]),
    }
    done = TaskCompleted(task_id="t-1", status="completed", totals=Totals(), request_digest=digest_of(GOOD))
    with Stack(environment) as stack:
        process = stack.start("intake")
        place.request(GOOD)
        place.until(lambda: len(place.events()) == 1)
        place.put(place.names.completions, done, "t-1")
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)
        place.request(GOOD)
        again = stack.start("intake")
        place.settle()
        again.send_signal(signal.SIGTERM)
        assert again.wait(PATIENCE_S) == 0
    assert [key for key, _ in place.events()] == ["t-1"]
    assert place.quarantined() == []


def test_a_header_whose_name_is_no_text_stops_nothing() -> None:
    """Seen with confluent-kafka 2.16.1 and a producer in C: the library fails on reading such a record's headers."""

    class Message:
        def headers(self) -> None:
            raise SystemError("<method 'headers' of 'Message'> returned a result with an exception set")

        def __getattr__(self, name: str) -> Any:
            return lambda: (1, 1) if name == "timestamp" else None

    assert kafka_client.delivery(Message()).headers is None  # type: ignore[arg-type]
