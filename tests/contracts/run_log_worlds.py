"""Two clusters for the one suite of `RunLog` and `Outbox`: memory, and a real broker."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from runfold.adapters.kafka import KafkaOutbox, KafkaRunLog
from runfold.adapters.memory import MemoryKafka, MemoryOutbox, MemoryRunLog
from runfold.adapters.topics import TopicNames, delete_topics, ensure_topics
from runfold.events.partitioner import murmur2_partition
from runfold.ports import Committed, Delivery, Outbox, RunLog

PARTITIONS = 4
PATIENCE_S = 40.0


class Member:
    """One process of the group: its log, its outbox, and a listener that remembers what it was told."""

    def __init__(self, log: RunLog, outbox: Outbox) -> None:
        self.log = log
        self.outbox = outbox
        self.owned: dict[int, Committed] = {}
        self.revoked: list[tuple[int, bool]] = []
        self.failures: list[tuple[int, str, str]] = []
        self.truncated: list[int] = []
        self.starts: dict[int, int] = {}  # where to begin, instead of at the committed offset
        self.read: list[Delivery] = []

    def on_assigned(self, partitions: Mapping[int, Committed]) -> Mapping[int, int]:
        self.owned.update(partitions)
        return {
            number: self.starts.get(number, committed.offset if committed.offset >= 0 else -2)
            for number, committed in partitions.items()
        }

    def on_revoked(self, partitions: Sequence[int], *, lost: bool) -> None:
        for number in partitions:
            del self.owned[number]
            self.revoked.append((number, lost))

    def on_append_failed(self, partition: int, run_id: str, reason: str) -> None:
        self.failures.append((partition, run_id, reason))

    def on_truncated(self, partition: int) -> int:
        self.truncated.append(partition)
        return self.log.start_of(partition)

    def poll_until(self, done: Callable[[], bool], *others: "Member") -> None:
        """Poll, the others too, until it is so; fail when it never is."""
        ends_at = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < ends_at, f"it never came to be: {self.owned=} {self.failures=} {len(self.read)=}"
            for member in (self, *others):
                member.read += member.log.poll(0.05)

    def read_until(self, count: int) -> list[Delivery]:
        self.poll_until(lambda: len(self.read) >= count)
        return self.read


class World(Protocol):
    def member(self, name: str) -> Member:
        """A process that has opened its log, and owns nothing until it polls."""

    def settle(self, *members: Member) -> None:
        """Let these share the partitions evenly: the only ones in the group."""

    def fail_next_append(self, member: Member, key: str) -> None:
        """An append to partition 1 that cannot reach the log."""

    def truncate(self, partition: int, offset: int) -> None: ...

    def close(self) -> None: ...


class MemoryWorld:
    def __init__(self) -> None:
        self._now_ms = 1_000

        self._cluster = MemoryKafka(
            PARTITIONS, self._tick, partition_of=lambda key, count: murmur2_partition(key.encode(), count)
        )

    def _tick(self) -> int:
        self._now_ms += 1
        return self._now_ms

    def member(self, name: str) -> Member:
        log = MemoryRunLog(self._cluster, name)
        member = Member(log, MemoryOutbox(log))
        log.open(member)
        return member

    def settle(self, *members: Member) -> None:
        for number in range(PARTITIONS):
            log = members[number % len(members)].log
            assert isinstance(log, MemoryRunLog)
            self._cluster.move(number, log)
        first, *rest = members
        first.poll_until(lambda: shared_evenly(members), *rest)

    def fail_next_append(self, member: Member, key: str) -> None:
        log = member.log
        assert isinstance(log, MemoryRunLog)
        log.held = True
        log.append(1, key, b"x", [])
        log.lose()
        log.held = False

    def truncate(self, partition: int, offset: int) -> None:
        self._cluster.truncate(partition, offset)

    def close(self) -> None:
        return


class KafkaWorld:
    def __init__(self, bootstrap: str, prefix: str) -> None:
        self._bootstrap = bootstrap
        self._names: TopicNames = ensure_topics(
            bootstrap, prefix, run_partitions=PARTITIONS, task_partitions=PARTITIONS
        )
        self._members: list[Member] = []

    def member(self, name: str) -> Member:
        outbox = KafkaOutbox(self._bootstrap, self._names, name=name)
        log = KafkaRunLog(self._bootstrap, self._names, group=self._names.prefix, name=name, outbox=outbox)
        member = Member(log, outbox)
        log.open(member)
        self._members.append(member)
        return member

    def settle(self, *members: Member) -> None:
        first, *rest = members
        first.poll_until(lambda: shared_evenly(members), *rest)

    def fail_next_append(self, member: Member, key: str) -> None:
        member.log.append(1, key, b"x" * 1_100_000, [])

    def truncate(self, partition: int, offset: int) -> None:
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        where = TopicPartition(self._names.events, partition, offset)
        for future in admin.delete_records([where]).values():
            future.result(PATIENCE_S)

    def close(self) -> None:
        for member in self._members:
            member.log.close()
            if isinstance(member.outbox, KafkaOutbox):
                member.outbox.close()
        delete_topics(self._bootstrap, self._names)


def shared_evenly(members: Sequence[Member]) -> bool:
    owned = sorted(number for member in members for number in member.owned)
    return owned == list(range(PARTITIONS)) and all(len(m.owned) == PARTITIONS // len(members) for m in members)
