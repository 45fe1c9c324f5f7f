"""What the intake needs of Kafka. Everything is called on the thread that polls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from runfold.events.envelope import Headers
from runfold.ports import Delivery


class Topic(Enum):
    """Where the intake writes."""

    EVENTS = "run-events"
    REQUESTS = "task-requests"
    QUARANTINE = "quarantine"


class Fate(Enum):
    """What became of a record that was sent."""

    DONE = "acknowledged"
    UNKNOWN = "it did not arrive, or nobody knows: may be sent again"
    REFUSED = "Kafka does not take it, however often it is sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A record to send."""

    topic: Topic
    key: str
    value: bytes
    headers: Headers
    partition: int | None = None  # None: the partition of the key


Settled = Callable[[Fate, str], None]  # with Kafka's own words


class RequestListener(Protocol):
    """Called inside `RequestLog.poll` and `close`."""

    def on_assigned(self, partitions: Sequence[int]) -> None: ...

    def on_revoked(self, partitions: Sequence[int], *, lost: bool) -> None:
        """They go away when this returns. `lost`: they are gone already, commit nothing."""

    def on_truncated(self, partition: int) -> None:
        """The log no longer holds the request that was next; it is read from its start."""


class RequestLog(Protocol):
    """The group's partitions of task-requests, and the same partitions of task-completions."""

    @property
    def partitions(self) -> int:
        """How many task-requests has; task-completions has as many."""

    @property
    def topic(self) -> str: ...

    def open(self, listener: RequestListener) -> None: ...

    def poll(self, timeout_s: float) -> list[Delivery]:
        """The next requests of our partitions."""

    def hold(self, partition: int) -> None:
        """Bring no more requests of this partition. What was on its way may still come."""

    def release(self, partition: int) -> None: ...

    def completions(self) -> list[Delivery]:
        """Completions of our partitions: each from its start, in order. Never waits."""

    def completions_read(self, partition: int) -> int:
        """Every completion before this offset was handed out."""

    def completions_end(self, partitions: Sequence[int]) -> Mapping[int, int]:
        """Where each partition of completions ends now. Asks Kafka; raises Transient."""

    def send(self, outgoing: Outgoing, settled: Settled) -> None:
        """Send a record with acks=all; `settled` is called once, now or during a later poll or flush."""

    def commit(self, positions: Mapping[int, int], *, wait: bool) -> None: ...

    def flush(self) -> None:
        """Wait, within bounds, until what was sent is settled."""

    def close(self) -> None: ...
