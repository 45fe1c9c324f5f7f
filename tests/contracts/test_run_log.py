"""What every `RunLog` and `Outbox` must do. The suite runs in memory always, and on a real broker."""

import time
from collections.abc import Iterator

import pytest

from runfold.events.partitioner import murmur2_partition
from runfold.ports import Committed, Topic
from tests.contracts.run_log_worlds import PARTITIONS, KafkaWorld, MemoryWorld, World


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made: World
    if request.param == "memory":
        made = MemoryWorld()
    else:
        made = KafkaWorld(request.getfixturevalue("kafka_bootstrap"), request.getfixturevalue("topic_prefix"))
    try:
        yield made
    finally:
        made.close()


def test_what_is_appended_is_read_back(world: World) -> None:
    """Key, value and headers come back as they were, with a place and the broker's time."""
    member = world.member("a")
    world.settle(member)
    headers = [("ce_id", b"1"), ("empty", b""), ("ce_id", b"again")]
    member.log.append(2, "läuft", b"\x00value", headers)
    member.log.append(2, "", b"", [])
    first, second = member.read_until(2)
    assert (first.partition, first.key, first.value, first.headers) == (2, "läuft".encode(), b"\x00value", headers)
    assert (second.key, second.value, second.headers or []) == (b"", b"", [])
    assert second.offset == first.offset + 1
    assert second.time_ms >= first.time_ms > 0


def test_records_of_a_partition_keep_their_order(world: World) -> None:
    """More than one batch, spread over all partitions: each partition in order, without a gap, time never back."""
    member = world.member("a")
    world.settle(member)
    for number in range(3000):
        member.log.append(number % PARTITIONS, "k", b"%d" % number, [])
    read = member.read_until(3000)
    for partition in range(PARTITIONS):
        mine = [delivery for delivery in read if delivery.partition == partition]
        assert [delivery.value for delivery in mine] == [b"%d" % n for n in range(partition, 3000, PARTITIONS)]
        assert [delivery.offset for delivery in mine] == list(range(len(mine)))
        times = [delivery.time_ms for delivery in mine]
        assert times == sorted(times)


def test_a_key_decides_the_partition(world: World) -> None:
    """Whoever computes a run's partition must look where the log put it."""
    member = world.member("a")
    world.settle(member)
    for number in range(100):
        member.log.append(None, f"run-{number}", b"", [])
    for delivery in member.read_until(100):
        assert delivery.partition == murmur2_partition(delivery.key or b"", PARTITIONS)


def test_nothing_comes_when_there_is_nothing(world: World) -> None:
    """An empty poll is an answer, and comes soon."""
    member = world.member("a")
    world.settle(member)
    started = time.monotonic()
    assert member.log.poll(0.05) == []
    assert time.monotonic() - started < 5


def test_a_new_owner_gets_what_was_committed(world: World) -> None:
    """Position and metadata go with the partition; the first owner is told before it loses it."""
    first = world.member("a")
    world.settle(first)
    assert set(first.owned.values()) == {Committed(-1, "")}
    for partition in range(PARTITIONS):
        for number in range(5):
            first.log.append(partition, "k", b"%d" % number, [])
    first.read_until(5 * PARTITIONS)
    marks = {number: Committed(3, f'{{"mark": {number}}}') for number in range(PARTITIONS)}
    first.log.commit(marks, wait=True)

    second = world.member("b")
    world.settle(first, second)
    assert sorted(first.revoked) == [(number, False) for number in sorted(second.owned)]
    assert second.owned == {number: marks[number] for number in second.owned}
    read = second.read_until(2 * len(second.owned))
    assert {(d.partition, d.value) for d in read} == {(p, v) for p in second.owned for v in (b"3", b"4")}


def test_a_partition_given_up_is_silent(world: World) -> None:
    """After the revocation the first owner reads nothing more of it."""
    first = world.member("a")
    world.settle(first)
    second = world.member("b")
    world.settle(first, second)
    first.read.clear()
    for partition in range(PARTITIONS):
        first.log.append(partition, "k", b"x", [])
    first.poll_until(lambda: len(first.read) + len(second.read) >= PARTITIONS, second)
    assert {delivery.partition for delivery in first.read} == set(first.owned)
    assert {delivery.partition for delivery in second.read} == set(second.owned)


def test_reading_begins_where_the_listener_says(world: World) -> None:
    """A restoring owner begins at its mark, before the committed position or behind it."""
    first = world.member("a")
    world.settle(first)
    for number in range(10):
        first.log.append(1, "k", b"%d" % number, [])
    first.read_until(10)
    first.log.close()
    second = world.member("a")
    second.starts = {1: 7}
    world.settle(second)
    assert [delivery.offset for delivery in second.read_until(3)] == [7, 8, 9]


def test_seek_reads_again(world: World) -> None:
    """From the offset on, in order, and then what is new."""
    member = world.member("a")
    world.settle(member)
    for number in range(10):
        member.log.append(0, "k", b"%d" % number, [])
    member.read_until(10)
    member.read.clear()
    member.log.seek(0, 4)
    member.log.append(0, "k", b"10", [])
    assert [delivery.value for delivery in member.read_until(7)] == [b"%d" % number for number in range(4, 11)]


def test_a_failed_append_is_told_during_a_later_poll(world: World) -> None:
    """On the thread that polls, with the run's id; the records after it get through."""
    member = world.member("a")
    world.settle(member)
    world.fail_next_append(member, "too-large")
    assert member.failures == []
    member.log.append(1, "fits", b"x", [])
    member.poll_until(lambda: bool(member.failures and member.read))
    assert [(partition, run_id) for partition, run_id, _ in member.failures] == [(1, "too-large")]
    assert [delivery.key for delivery in member.read] == [b"fits"]


def test_a_completion_is_acknowledged_during_a_later_poll(world: World) -> None:
    """Not when it is handed over, and once."""
    member = world.member("a")
    world.settle(member)
    answers: list[bool] = []
    member.outbox.publish(Topic.COMPLETIONS, "task-1", b"done", [("ce_id", b"1")], answers.append)
    member.outbox.stream("task-1", b"text", [])
    member.outbox.quarantine("task-1", b"bad", [])
    assert answers == []
    member.poll_until(lambda: answers != [])
    member.log.poll(0.05)
    assert answers == [True]


def test_a_log_that_lost_its_beginning_says_so(world: World) -> None:
    """The start moves; whoever stood before it is asked where to go on."""
    member = world.member("a")
    world.settle(member)
    for number in range(10):
        member.log.append(3, "k", b"%d" % number, [])
    member.read_until(10)
    assert member.log.start_of(3) == 0
    world.truncate(3, 6)
    assert member.log.start_of(3) == 6
    member.read.clear()
    member.log.seek(3, 2)
    assert [delivery.offset for delivery in member.read_until(4)] == [6, 7, 8, 9]
    assert member.truncated == [3]


def test_an_assignment_before_the_start_of_the_log_is_told_too(world: World) -> None:
    """The mark may be older than the log: the listener hears it, and reading begins at the start."""
    first = world.member("a")
    world.settle(first)
    for number in range(10):
        first.log.append(0, "k", b"%d" % number, [])
    first.read_until(10)
    first.log.close()
    world.truncate(0, 8)
    second = world.member("a")
    second.starts = {0: 1}
    world.settle(second)
    assert [delivery.offset for delivery in second.read_until(2)] == [8, 9]
    assert second.truncated == [0]


def test_the_log_knows_which_one_it_is(world: World) -> None:
    """Offsets are worth nothing in another log."""
    identity = world.member("a").log.identity
    assert identity.partitions == PARTITIONS
    assert identity.cluster and identity.topic
