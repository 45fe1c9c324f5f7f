"""What the gateway needs of Kafka."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from runfold.events.envelope import Headers
from runfold.ports import Delivery


class Topic(Enum):
    """Where the gateway writes."""

    EVENTS = "run-events"
    REQUESTS = "task-requests"


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a record that was sent."""

    offset: int = -1
    problem: str = ""  # empty: acknowledged by Kafka


class Feed(Protocol):
    """All partitions of run-events from their beginning, and run-stream from now on. Belongs to one thread."""

    @property
    def positions(self) -> Mapping[int, int]:
        """The next offset to read, by partition of run-events: everything before was handed out."""

    def ends(self) -> Mapping[int, int]:
        """Where each partition of run-events ends now. Asks Kafka; raises Transient."""

    def poll(self, timeout_s: float) -> tuple[list[Delivery], list[Delivery]]:
        """The next records of run-events, in offset order within a partition, and of run-stream.

        Raises Transient or Permanent where reading on would leave something out.
        """

    def close(self) -> None: ...


class History(Protocol):
    """Parts of run-events read again. Any thread."""

    def end_of(self, partition: int) -> int:
        """Where the partition ends now. Raises Transient."""

    def read(self, partition: int, first: int, end: int, key: bytes) -> Iterator[Delivery]:
        """The records with this key from `first` to before `end`. Raises Transient."""


class Sender(Protocol):
    """Appends with acks=all. Any thread."""

    def send(self, topic: Topic, key: str, value: bytes, headers: Headers, settled: Callable[[Sent], None]) -> None:
        """Hand one record to Kafka; `settled` is called once, on a thread of the sender."""
